"""ModelDraft: a smaller model guesses, where that is worth its time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import ne
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from transformers import DynamicCache

from mmaccel.decoding.custom_generate import CustomGenerate
from mmaccel.decoding.drafters.assistant import Assistant, AssistantCost, likeliest
from mmaccel.decoding.drafters.heads.guesses import HeadGuesses
from mmaccel.decoding.drafters.heads.shared_keys import (
    SharedKeysHead,
    SharedKeysSteps,
    reads_keys,
    require_shared_keys,
)
from mmaccel.decoding.drafters.sources import Source
from mmaccel.decoding.generation import Call
from mmaccel.decoding.passes.rollback import can_go_back
from mmaccel.errors import SettingError, shown
from mmaccel.method import Advice, Held
from mmaccel.registry import register

from .fused_draft import FusedDraft

# Share by which vocabularies of one tokenizer may differ: sizes are rounded up, and special tokens renamed.
CLOSE = 0.01
EVERY = 50  # of how many tokens one is compared, as each call is checked


@register("vlm")
@dataclass(frozen=True)
class ModelDraft(FusedDraft):
    """Draft with a smaller model of the same tokenizer, given with the call as `assistant_model` (Leviathan, 2023).

    The argument is that of transformers' own assisted generation: ``generate(..., assistant_model=small)``. Its guesses
    stand in one tree with those of :class:`FusedDraft`, which also serve calls without an assistant. The assistant is
    asked for as many tokens as are worth its measured time at its measured acceptance, and no longer where it slows the
    text down; batches are served too. Assistants of Gemma 4, such as ``google/gemma-4-e2b-it-assistant``, which attend
    to the keys of the model in place of a cache, are served as well, in trees where the layers of the model share no
    keys. Where a text is sampled, the assistant's guesses are drawn with the random
    numbers that the model will draw with (Gumbel coupling, Daliri et al., 2024). Exact in float32: the tokens of the
    model itself, and with sampling those of the same random state, in a batch their distribution. With beams or another
    kind of cache the model's own loop runs, and the report says so.

    Other settings are those of :class:`FusedDraft`.

    Parameters
    ----------
    always
        Verify all guesses, up to `block`, and ask the assistant for each, whether or not that is worth its cost;
        default False, for which passes are timed.

    Raises
    ------
    SettingError
        If a setting is out of range; from `generate`, if the assistant is no loaded model, has no output, a vocabulary
        of another size or no cache that can be cropped, is the model itself, or one for another model of Gemma 4, and
        if the call's `assistant_tokenizer` has other tokens than its `tokenizer`. Without these another tokenizer of
        the same size is not noticed: its guesses are never right, and it is soon no longer asked.

    Examples
    --------
    >>> with mmaccel.accelerate(model, ModelDraft()) as fast:  # doctest: +SKIP
    ...     tokens = fast.generate(**inputs, assistant_model=small, max_new_tokens=200)
    ...     print(fast.report)
    """

    paper: ClassVar[str] = "Fast Inference from Transformers via Speculative Decoding by Leviathan et al., 2023"
    advice: ClassVar[Advice] = Advice(
        "Large models with a small sister of the same tokenizer, at a tenth of its size or less.",
        "Nothing in quality; the memory of the smaller model and its cache, and up to 35 MB for what is learned.",
    )
    call_arguments: ClassVar[frozenset[str]] = frozenset({"assistant_model"})

    def held(self) -> tuple[Held, ...]:
        """What :class:`FusedDraft` learns, and the assistant."""
        given = "the assistant_model of the call, and for each row of a batch a cache of its whole text"
        return (*super().held(), Held(given))

    def custom_generate(self) -> CustomGenerate:
        """Refused: transformers hands the assistant of a call to no `custom_generate`."""
        raise SettingError(
            f"{type(self).__name__} asks the assistant_model of a call, which transformers keeps to itself:"
            " use mmaccel.accelerate(model, vlm.ModelDraft()), or vlm.FusedDraft().custom_generate()"
        )

    def take(self, model: Any, kwargs: dict[str, Any]) -> Any:
        """Take the assistant out of the arguments of a call."""
        super().take(model, kwargs)
        assistant = kwargs.pop("assistant_model", None)
        its_tokenizer = kwargs.pop("assistant_tokenizer", None)  # no argument of calls without an assistant
        if assistant is not None:
            _check(assistant, model)
            if its_tokenizer is not None:
                _check_tokens(its_tokenizer, kwargs.get("tokenizer"))
        return assistant

    def sources(self, call: Call, row: int) -> list[Source]:
        """The guesses of :class:`FusedDraft`, and the assistant."""
        found = super().sources(call, row)
        if call.given is None:
            return found
        costs: WeakKeyDictionary[Any, AssistantCost] = self._kept(
            call, f"costs of assistants of {call.rows} rows", WeakKeyDictionary()
        )
        cost = costs.setdefault(call.given, AssistantCost(self.width(call), call.rows))
        if reads_keys(call.given):
            return [*found, self._reader(call, cost, row)]
        choose = likeliest if call.dice is None else call.dice.choose
        sizes = sorted(_vocabulary(model) for model in (call.given, call.session.target))
        forbidden = self._forbidden(call.session).union(range(*sizes))  # of which one has nothing
        return [*found, Assistant(call.given, cost, forbidden, choose, row)]

    def _reader(self, call: Call, cost: AssistantCost, row: int) -> Source:
        """The guesses of an assistant that reads the keys of the model."""
        texts = call.texts
        assert texts is not None and texts.hidden is not None
        if "assistant" not in call.shared:
            head = SharedKeysHead(call.given, call.session.target)
            forbidden = self._forbidden(call.session)
            call.shared["assistant"] = SharedKeysSteps(head, texts, cost, call.rows, forbidden, call.dice)
        told = partial(texts.hidden.take, row)
        return HeadGuesses(call.shared["assistant"], told, branches=call.branches, row=row)

    def layers(self, holder: Any, given: Any) -> tuple[int, ...]:
        """The last one, whose output an assistant reads that reads the keys of the model."""
        if given is None or not reads_keys(given):
            return ()
        return (holder.target.config.get_text_config(decoder=True).num_hidden_layers,)


def _vocabulary(model: Any) -> int:
    return model.config.get_text_config(decoder=True).vocab_size


def _check(assistant: Any, model: Any) -> None:
    if assistant is model:
        raise SettingError("assistant_model is the model itself: give a smaller one of the same tokenizer")
    if not callable(assistant) or not hasattr(assistant, "config"):
        raise SettingError(f"assistant_model={shown(assistant)} is no model: load it with from_pretrained() first")
    name = f"assistant_model={type(assistant).__name__}"
    if assistant.device.type == "meta":
        raise SettingError(f"{name} has no weights yet, its device is meta: load it with from_pretrained() first")
    config = assistant.config.get_text_config(decoder=True)
    if not hasattr(config, "vocab_size"):
        raise SettingError(
            f"{name} has no vocabulary of its own, as DFlash's drafters: give a plain decoder of the same tokenizer, or"
            " its folder to vlm.DFlashDraft(head=...)"
        )
    if reads_keys(assistant):
        return require_shared_keys(assistant, model)
    if assistant.get_output_embeddings() is None:
        raise SettingError(f"{name} has no lm_head: load it with AutoModelForCausalLM")
    sizes = config.vocab_size, _vocabulary(model)
    if abs(sizes[0] - sizes[1]) > CLOSE * max(sizes):
        raise SettingError(
            f"{name} has {sizes[0]} tokens, this model {sizes[1]}: give a smaller model of the same tokenizer"
        )
    cache = DynamicCache(config=config)
    if assistant.config.is_encoder_decoder or not cache.is_croppable or not can_go_back(cache):
        raise SettingError(f"{name} has no cache that guesses can be taken back from: give a plain decoder")
    return None


def _check_tokens(its_tokenizer: Any, tokenizer: Any) -> None:
    if tokenizer is None:
        raise SettingError(
            "assistant_tokenizer= alone does not tell whether the assistant has the tokens of this model: give"
            " tokenizer= as well, or leave assistant_tokenizer= out"
        )
    ids = list(range(0, min(len(its_tokenizer), len(tokenizer)), EVERY))
    its, ours = its_tokenizer.convert_ids_to_tokens(ids), tokenizer.convert_ids_to_tokens(ids)
    if sum(map(ne, its, ours)) > CLOSE * len(ids):
        raise SettingError(
            "the tokens of assistant_tokenizer= are others than those of tokenizer=: give a smaller model of the same"
            " tokenizer"
        )
