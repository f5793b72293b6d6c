"""Private names of torch and transformers that mmaccel calls; tests compare them with the installed version.

Modules of transformers are imported in the functions: its modeling code imports torch's compiler, and that Triton.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch


def generation_settings(model: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Split arguments of `generate` as the model itself does.

    Returns
    -------
    A filled `GenerationConfig` of this call, and the arguments that are meant for the model.

    Raises
    ------
    ValueError
        If an argument is meant for neither.
    """
    rest = dict(kwargs)
    config, model_kwargs = model._prepare_generation_config(rest.pop("generation_config", None), **rest)
    config.validate()
    model._validate_model_kwargs(model_kwargs.copy())
    return config, model_kwargs


def own_loop(
    model: Any, input_ids: torch.Tensor, processors: Any, criteria: Any, config: Any, kwargs: dict[str, Any]
) -> Any:
    """The model's own loop of `generate`, greedy or sampling, from within a `custom_generate`."""
    return model._sample(
        input_ids, logits_processor=processors, stopping_criteria=criteria, generation_config=config, **kwargs
    )


def for_steps(model: Any) -> AbstractContextManager[None]:
    """What the model's own loop enters for its steps of one token: on a GPU, experts are multiplied otherwise there."""
    return model._optimize_model_for_decode()


def is_synced(model: Any, asked: bool | None) -> bool:
    """Whether all ranks make equally many passes in `generate`: as was asked, or with ZeRO-3 and FSDP by itself."""
    ranks = torch.distributed
    if asked is not None or not ranks.is_available() or not ranks.is_initialized() or ranks.get_world_size() == 1:
        return bool(asked)
    from transformers.distributed.fsdp import is_fsdp_managed_module
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

    return bool(is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model))


def is_hooked(module: torch.nn.Module) -> bool:
    """Whether something is hooked to a module, before or after what it does."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is no subclass, such as torchao's quantized weights, which look like any other and know few ops."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


# Of transformers, whose `generate` writes several texts of codes at once, or lays codes out by itself.
OF_CODES = ("MoshiForConditionalGeneration", "MusicgenForCausalLM", "MusicgenMelodyForCausalLM")


def makes_no_text(model: Any) -> bool:
    """Whether what `generate` writes is no text of single tokens: transformers has another loop for its class."""
    names = {cls.__name__ for cls in type(model).__mro__}
    loop = getattr(type(model), "_sample", None)
    return not names.isdisjoint(OF_CODES) or getattr(loop, "__module__", "").startswith("transformers.models.")


def pad_token(config: Any) -> int:
    """The token with which a loop of `generate` fills texts up that ended before others; 0 where none can end."""
    found = config._pad_token_tensor
    return 0 if found is None else int(found)


def padding_mask(model: Any, input_ids: torch.Tensor, pad: Any, end: Any) -> torch.Tensor:
    """The attention mask `[B, L]` that `generate` makes of a prompt without one, given the tokens that pad and end."""
    from transformers import GenerationConfig

    config = GenerationConfig(pad_token_id=pad, eos_token_id=end)
    model._prepare_special_tokens(config, device=input_ids.device)
    return model._prepare_attention_mask_for_generation(input_ids, config, {})


def kwargs_after(model: Any, kwargs: dict[str, Any], count: int) -> dict[str, Any]:
    """Arguments of a model within `generate` after `count` more tokens: mask, positions and token types."""
    grown = dict(kwargs)
    if count:
        encoded: bool = model.config.is_encoder_decoder
        grown = model._update_model_kwargs_for_generation({}, grown, is_encoder_decoder=encoded, num_new_tokens=count)
        kinds = kwargs.get("token_type_ids")
        if kinds is not None:  # transformers repeats the last `count`, of which some may be of pictures
            grown["token_type_ids"] = torch.cat([kinds, kinds[:, -1:].expand(-1, count)], -1)
    return grown


# The attribute in which `torch.nn.Module.compile` keeps the compiled call.
COMPILED_CALL = "_compiled_call_impl"


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether `module.compile()` was called."""
    return getattr(module, COMPILED_CALL, None) is not None


def is_forward_compiled(module: torch.nn.Module) -> bool:
    """Whether what stands as a module's `forward` is what `torch.compile` gave for it, with nothing put around that."""
    forward = vars(module).get("forward")
    return getattr(forward, "_torchdynamo_wrapper_id", None) == id(forward)


def runs_compiled(module: torch.nn.Module) -> bool:
    """Whether a module was compiled: its call, its `forward` alone, or in a wrapper around it."""
    forward = vars(module).get("forward")
    alone = hasattr(forward, "_torchdynamo_orig_callable") and not hasattr(forward, "_torchdynamo_disable")
    return is_compiled(module) or alone or hasattr(module, "_orig_mod")


def _onednn(name: str) -> Any:
    return getattr(torch.ops.mkldnn, name, None) if torch.backends.mkldnn.is_available() else None


_REORDER, _LINEAR = _onednn("_reorder_linear_weight"), _onednn("_linear_pointwise")


def can_pack(tensor: torch.Tensor) -> bool:
    """Whether oneDNN is available and accepts this as a weight or input of :func:`onednn_linear`."""
    fits = is_plain(tensor) and tensor.is_cpu and tensor.dtype == torch.float32 and tensor.numel() > 0
    return _LINEAR is not None and fits


def pack_weight(matrix: torch.Tensor) -> torch.Tensor:
    """A weight `[O, I]` in oneDNN's layout, for an unknown number of input rows."""
    return _REORDER(matrix, None)


def onednn_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`x [..., I]` times the transpose of a weight `[O, I]`, plain or from :func:`pack_weight`, plus `bias`."""
    return _LINEAR(x, weight, bias, "none", [], "")


def decoder_of(model: Any) -> Any:
    """The module that holds a model's decoder layers; of ModernBERT transformers finds the head, which has its name."""
    found = model.get_decoder()
    return model.base_model if isinstance(found, torch.nn.Linear) else found


TABLE = "ALL_ATTENTION_FUNCTIONS"  # of attention functions by their names, in each file of transformers that asks it


def attention_function(name: str | None, module: Any = None) -> Callable[..., Any]:
    """The function that transformers runs for an attention implementation; `"eager"` is one of the module's file."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return ALL_ATTENTION_FUNCTIONS.get_interface(name or "sdpa", eager)


def register_attention(name: str, function: Callable[..., Any]) -> None:
    """Register an attention function under a name; it gets the same masks as `sdpa`."""
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, sdpa_mask)  # without a mask function padding is silently dropped


def unregister_attention(name: str) -> None:
    """Remove a registered name; transformers has no function for that."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface._global_mapping.pop(name, None)
    AttentionMaskInterface._global_mapping.pop(name, None)


def makes_keys_after_cache(module: torch.nn.Module) -> bool:
    """Whether attention computes its keys from the cache's content, such as from latents or one set for many heads."""
    # MLA expands latents; JetMoE repeats keys for its experts; Idefics may norm them
    expands = hasattr(module, "expand_kv") or type(module).__name__ == "JetMoeAttention"
    return expands or (hasattr(module, "k_layer_norm") and bool(getattr(module, "qk_layer_norms", False)))


def uses_attention_interface(module: torch.nn.Module) -> bool:
    """Whether the class of this module asks the shared table for its attention function."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    kind: Any = type(module)
    table = getattr(sys.modules[kind.__module__], TABLE, None)
    # others of its file have layers' numbers too, as convolutions
    return table is ALL_ATTENTION_FUNCTIONS and names(kind, TABLE)


@functools.cache
def names(kind: type, name: str) -> bool:
    """Whether a function of a class names something of its file."""
    parts = (inspect.unwrap(part) for cls in kind.__mro__ for part in vars(cls).values() if inspect.isfunction(part))
    return any(name in part.__code__.co_names for part in parts)


def heads_are_split(attention: Iterable[torch.nn.Module]) -> bool:
    """Whether these modules have some of their heads alone, and those of other processes the rest (`tp_plan`)."""
    return any(getattr(part, "_is_hooked", False) for module in attention for part in module.modules())


def attention_name(config: Any) -> str | None:
    """The attention function that a configuration asks for, such as `"sdpa"`; each layer asks in each pass."""
    name: str | None = object.__getattribute__(config, "_attn_implementation_internal")  # past two slow lookups
    return name


def plain_config(config: Any) -> Any:
    """What a configuration of :func:`with_attention` stands for; any other stands for itself."""
    return object.__getattribute__(config, "_instead_of") if hasattr(type(config), "_instead_of") else config


def like(config: Any) -> Any:
    """A shallow copy of a configuration that stands for what that one stands for."""
    plain = plain_config(config)
    kind: Any = type(plain)
    made: Any = object.__new__(_routed(kind))
    vars(made).update(vars(config))
    object.__setattr__(made, "_instead_of", plain)
    return made


class _StandIn(str):
    """A name in the table that also equals the one that it stands before: by that some layers see who hides keys."""

    plain: str | None

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or self.plain == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


@functools.cache
def _routed(kind: Any) -> type:
    """A kind of configuration of which deep copies and pickles are those of the one that it stands for."""

    def asked(self: Any) -> str | None:
        name, plain = attention_name(self), attention_name(plain_config(self))
        if name is not None and name != plain:
            name = _StandIn(name)
            name.plain = plain
        return name

    def copied(self: Any, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._instead_of, memo)

    def reduced(self: Any, protocol: Any) -> Any:
        return operator.itemgetter(0), ((self._instead_of,),)

    own = {"__slots__": ("_instead_of",), "__copy__": like, "__deepcopy__": copied, "__reduce_ex__": reduced}
    public = {"_attn_implementation": property(asked, kind._attn_implementation.fset)}
    return type(kind.__name__, (kind,), {**own, **public, "__module__": kind.__module__})


def with_attention(config: Any, name: str) -> Any:
    """A configuration like another, but that it asks for another attention function.

    One for each module, since models can share one configuration; and the internal name, because the
    public setter would change nested configurations, which it shares with the other.
    """
    changed = like(config)
    changed._attn_implementation_internal = name
    return changed


def is_split(target: Any) -> bool:
    """Whether the processes of a launch hold parts of one model or pipeline, and make every pass of it together."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    from torch.distributed.tensor import DTensor  # takes a second to import

    parts = [target, *getattr(target, "components", {}).values()]
    models = [part for part in parts if isinstance(part, torch.nn.Module)]
    if any(isinstance(each, DTensor) for model in models for each in model.parameters()):
        return True
    # of diffusers' models whose tokens are split
    return any(getattr(model, "_parallel_config", None) is not None for model in models)
