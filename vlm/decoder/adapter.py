"""Any transformers decoder: where its attention is, and the `generate` of a session."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from mmaccel import private
from mmaccel.adapter import Adapter, register_adapter
from mmaccel.cache.argument import cache_of
from mmaccel.cache.layers import is_full
from mmaccel.decoding.drafters.draft_method import DraftMethod
from mmaccel.decoding.passes.slots import attends_itself, masks_causally
from mmaccel.decoding.setting import tokens_made
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.patching import attention_layers, intercept_attention, wrap_generate
from mmaccel.report import Report
from mmaccel.session import Session

from ..context.stored_context import StoredContext
from ..families.rows import why_refused
from ..input.arguments import guessing
from ..input.prompt import Prompt
from ..input.turns import recalled
from .attention import SessionAttention
from .call import GenerateRun
from .generation import bring_cache, fill, keep_cache
from .kept_tokens import require_all
from .method import DecoderMethod

# Kinds of layers of a cache that hold nothing but keys and values, or nothing, as those that share the keys of others.
STATELESS = {DynamicLayer.__name__, DynamicSlidingWindowLayer.__name__, "DummyLayer"}


@register_adapter
class DecoderAdapter(Adapter):
    """A transformers model that generates, with attention in SDPA. Families with an adapter of their own come first."""

    family = "decoder"
    classes: ClassVar[tuple[str, ...]] = ("GenerationMixin",)
    modality = "vlm"

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.attention: SessionAttention | None = None  # while it is attached
        self._reader: SessionAttention | None = None  # the same from then on, since caches are read by it

    def parts(self) -> list[Any]:
        """Several models may share one decoder, as one that sees and the language model inside it."""
        return [self.target, self.decoder]

    @property
    def text_config(self) -> Any:
        """The configuration of the decoder."""
        return self.target.config.get_text_config(decoder=True)

    @property
    def decoder(self) -> Any:
        """The module that holds the decoder layers."""
        return private.decoder_of(self.target)

    @property
    def layers(self) -> Any:
        """The layers of the decoder."""
        decoder = self.decoder
        return decoder.layers if hasattr(decoder, "layers") else decoder.model.layers

    def attention_modules(self) -> list[torch.nn.Module]:
        """The self-attention of each decoder layer, in order."""
        return attention_layers(self.decoder)

    def unfit(self, method: Any) -> str:
        """Methods of other families leave out visual tokens."""
        name, why = type(self.target).__name__, why_refused(self.target)
        if why is None:
            return (
                f"{method.name} leaves out visual tokens, and {name} is shown no pictures: vlm.SparsePrefill reads text"
            )
        return f"{method.name} cannot leave out visual tokens of {name}: {why}"

    def check(self, method: Any) -> None:
        """Raise, with the reason, for models that would be computed wrongly."""
        name = type(self.target).__name__
        if self.target.config.is_encoder_decoder:
            raise UnsupportedTargetError(f"{name} is an encoder-decoder; the vlm methods work on decoders")
        if private.makes_no_text(self.target):
            raise UnsupportedTargetError(
                f"{name} writes sound, or other codes, in a loop of its own; the vlm methods work on text:"
                " speech.StreamingSpeech is for sound"
            )
        if self.text_config.model_type == "moshi":  # whose mask shows all that is in the cache
            raise UnsupportedTargetError(
                f"{name} has its window by its cache alone: a pass over several tokens sees more than single ones"
            )
        modules = self.attention_modules()
        if self._sees_both_ways(modules):
            advice = ": load it with is_decoder=True" if hasattr(self.text_config, "is_decoder") else ""
            raise UnsupportedTargetError(f"{name} attends in both directions; the vlm methods work on decoders{advice}")
        drafts = isinstance(method, DraftMethod)  # which are verified by the attention that the model has
        if not modules and not (drafts and attends_itself(self.target)):
            raise UnsupportedTargetError(f"{name} does not use transformers' attention interface")
        if getattr(self.text_config, "cross_attention_layers", None) and _takes_part_in_cache(method):
            raise UnsupportedTargetError(
                f"{name} keeps what its pictures say in the cache, in layers of cross-attention, which {method.name}"
                " would cut like text; vlm.SparsePrefill leaves the cache alone"
            )
        if isinstance(method, StoredContext):
            if why := method.why_unfit(self):
                raise UnsupportedTargetError(f"{why}: {method.name} does not work on it")
        elif not drafts:
            self._check_attention(method, name, modules)
            self._check_layers(method, name)
        if isinstance(method, DecoderMethod):
            self._check_keys(method, name, modules)
            self._check_heads(method, name, modules)

    def check_call(self, kwargs: dict[str, Any]) -> None:
        """Raise if a cache holds a prompt that another session has shortened."""
        cache = cache_of(kwargs)
        if cache is not None:
            recalled(cache, self)
            methods = [] if self.attention is None else self.attention.methods
            require_all(cache, any(method.drops_tokens and not method.is_neutral for method in methods))

    def _sees_both_ways(self, modules: list[torch.nn.Module]) -> bool:
        """Whether a token sees what follows it: by what SDPA is told, or where there is none by the mask."""
        causal = masks_causally(self.decoder)
        if not modules or (causal and not getattr(self.decoder, "_supports_sdpa", True)):
            return causal is False
        # layers of BART have cross-attention beside their own
        crossing = [module for name, module in self.decoder.named_modules() if name.endswith(".encoder_attn")]
        return any(getattr(module, "is_causal", True) is False for module in modules if module not in crossing)

    def leaves_attention(self, method: Any) -> bool:
        """Whether a method has nothing to do with the attention of the decoder."""
        return False

    def _check_attention(self, method: Any, name: str, modules: list[torch.nn.Module]) -> None:
        """Raise unless it is plain attention in SDPA."""
        others = f"{method.name} does not support; drafts work on it, such as vlm.FusedDraft"
        text = self.text_config
        reads = not self.leaves_attention(method)
        if reads and getattr(text, "attn_logit_softcapping", None) is not None:
            raise UnsupportedTargetError(f"{name} caps its attention scores (softcap), which {others}")
        if reads and any(getattr(module, "sinks", None) is not None for module in modules):
            raise UnsupportedTargetError(f"{name} has attention sinks (s_aux), which {others}")
        asked = private.attention_name(text)
        if asked != "sdpa" and not getattr(self.decoder, "_supports_sdpa", True):
            raise UnsupportedTargetError(f"{name} attends in its own way, not by SDPA, which {others}")
        if asked != "sdpa":
            raise UnsupportedTargetError(
                f"attn_implementation={asked!r}: load the model with attn_implementation='sdpa'"
            )

    def _check_keys(self, method: DecoderMethod, name: str, modules: list[torch.nn.Module]) -> None:
        """Raise unless keys come from this layer's cache and have the size of the values."""
        if any(_widths_differ(module) for module in modules) and method.attends:
            raise UnsupportedTargetError(
                f"the heads of {name} have keys and values of different sizes, which {method.name} does not"
                " support; drafts work on it, such as vlm.FusedDraft"
            )
        if getattr(self.text_config, "recurrent_kv_cache_mode", None) == "last_loop" and method.replaces_cache:
            raise UnsupportedTargetError(
                f"loops of {name} read its cache past the layers of it (recurrent_kv_cache_mode='last_loop'), as"
                f" {method.name} cannot tell: vlm.SparsePrefill leaves the cache alone"
            )
        chooses = method.replaces_cache or method.drops_tokens
        if chooses and any(private.makes_keys_after_cache(module) for module in modules):
            raise UnsupportedTargetError(
                f"{name} makes its keys anew of what its cache holds, so that {method.name} cannot choose among them;"
                " vlm.SparsePrefill leaves the cache alone"
            )
        if getattr(self.text_config, "num_kv_shared_layers", 0) and method.drops_keys:
            raise UnsupportedTargetError(
                f"layers of {name} share their keys, of which each would keep others: {method.name} cannot drop any;"
                " vlm.SelectKV and vlm.SparsePrefill drop none"
            )

    def _check_heads(self, method: DecoderMethod, name: str, modules: list[torch.nn.Module]) -> None:
        """Raise where each process of a launch has some of the heads that choose among the tokens."""
        if private.heads_are_split(modules) and method.votes(int(self.text_config.num_hidden_layers)):
            raise UnsupportedTargetError(
                f"the heads of {name} are split over processes (tp_plan), each of which would keep other tokens by its"
                f" own: in place of {method.name} use vlm.SparsePrefill, which drops none, or for pictures and clips"
                " vlm.VidCom2, which leaves visual tokens out before"
            )

    def _check_layers(self, method: Any, name: str) -> None:
        if self.leaves_attention(method):
            return
        layers = DynamicCache(config=self.text_config).layers
        if layers and not any(is_full(layer, self.text_config) for layer in layers):
            raise UnsupportedTargetError(f"{name} has no layer of full attention: there is nothing to gain")
        other = {type(layer).__name__ for layer in layers} - STATELESS
        if other and isinstance(method, DecoderMethod) and method.replaces_cache:
            raise UnsupportedTargetError(
                f"{name} has layers with states of their own ({', '.join(sorted(other))}):"
                f" {method.name} cannot replace its cache; vlm.SparsePrefill leaves it alone"
            )
        if isinstance(method, DecoderMethod) and method.drops_tokens:
            self._check_depth(method, name, layers)

    def _check_depth(self, method: DecoderMethod, name: str, layers: Sequence[Any]) -> None:
        """Raise unless the layers after the whole ones can go on with some of the tokens."""
        alike = len({type(layer) for layer in layers}) == 1  # else a mask may be made for a layer after the drop
        if not alike or not all(is_full(layer, self.text_config) for layer in layers):
            raise UnsupportedTargetError(
                f"{name} has layers with a window or a state, to which tokens that {method.name} drops are missing;"
                " vlm.SparsePrefill drops none"
            )
        first = next(iter(getattr(self.decoder, "layers", ())), None)
        first = getattr(first, "_orig_mod", first)  # of torch.compile
        if first is None or "position_embeddings" not in inspect.signature(first.forward).parameters:
            raise UnsupportedTargetError(
                f"the layers of {name} are not given the places of their tokens, as those of Llama and its kin are:"
                f" {method.name} cannot drop any; vlm.SparsePrefill drops none"
            )
        drops, count = [*method.drops(len(layers))], len(layers)
        if not drops[-1] < count - 1:
            most = count - 2 - drops[-1] + drops[0]
            reason = f"layer must be at most {most}" if most >= 0 else "keep must have fewer shares"
            raise SettingError(f"{method}: {reason}, since {name} has {count} layers")

    def attach(self, method: DecoderMethod, session: Session, stack: ExitStack) -> None:
        """Add a method; the first one also installs the session's attention and `generate`."""
        if self.attention is not None:
            return
        methods = [m for m in session.plan.methods if isinstance(m, DecoderMethod)]
        self._reader = self.attention = attention = self._reader or SessionAttention(methods)
        attention.active = True
        stack.callback(self._detach, attention)
        wrap_generate(stack, session, functools.partial(self._generate, attention, session.report))
        if all(m.is_neutral for m in methods):
            return
        intercept_attention(stack, self.attention_modules(), attention)
        if any(m.replaces_cache for m in methods):
            keep_cache(stack, self.target, attention)

    def _generate(
        self, attention: SessionAttention, report: Report, original: Callable[..., Any], kwargs: dict[str, Any]
    ) -> Any:
        """Replaces `generate` of the model."""
        attention.run = run = GenerateRun(guessing=guessing(self.target, kwargs))
        self._follow(attention, run)
        try:
            prompt = self.begin(attention.methods, run, kwargs)
            cache = bring_cache(self.target, self.text_config, attention, run, kwargs)
            result = original(**kwargs)
        finally:
            attention.run = None
        report.tokens = report.tokens or tokens_made(result, kwargs)  # drafts count them without padding
        fill(report, attention, run, cache)
        return result if prompt is None else self.end(prompt, report, result, kwargs)

    def _follow(self, attention: SessionAttention, run: GenerateRun) -> None:
        """Notice where the model was set to another attention than the one that ours stands before."""
        asked = private.attention_name(self.text_config)
        attention.active = asked == "sdpa"
        for method in () if attention.active else attention.methods:
            if method.attends and not method.is_neutral:
                run.warn(
                    f"{method} ran plainly: attn_implementation was set to {asked!r} since accelerate(), call"
                    " model.set_attn_implementation('sdpa')"
                )

    def begin(self, methods: Sequence[DecoderMethod], run: GenerateRun, kwargs: dict[str, Any]) -> Prompt | None:
        """Before a call of `generate`: replaces the prompt in its arguments; None leaves it as it is."""
        return None

    def end(self, prompt: Prompt, report: Report, result: Any, kwargs: dict[str, Any]) -> Any:
        """After it: returns the result with the original prompt, and fills the report."""
        return result

    def _detach(self, attention: SessionAttention) -> None:
        attention.active = False
        self.attention = None


def _takes_part_in_cache(method: Any) -> bool:
    """Whether a method cuts, replaces or takes back what layers keep of a text."""
    return not isinstance(method, DecoderMethod) or method.replaces_cache or method.drops_tokens


def _widths_differ(module: torch.nn.Module) -> bool:
    """Whether the heads of an attention module have keys and values of different sizes."""
    key = getattr(module, "qk_head_dim", getattr(module, "head_dim", None))
    value = getattr(module, "v_head_dim", key)
    return isinstance(key, int) and value != key
