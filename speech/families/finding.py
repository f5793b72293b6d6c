"""The adapter of what a recogniser is made of."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import FeatureExtractionMixin, PreTrainedTokenizerBase

from mmaccel.adapter import adapters, instead_of, similar_classes
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.linears.packed import has_twin, with_packed_linears
from mmaccel.linears.skinny import with_skinny_linears
from mmaccel.session import Session

from .adapter import SpeechAdapter
from .rows import REFUSED


def recognising(model: Any, packed: bool) -> Any:
    """What recognises in place of a model: a twin for passes of a few tokens, and with its weights laid out if packed.

    A session or an adapter stays what it is, and so does a model of which a part was compiled or had its `forward`
    replaced, as accelerate does to move it between devices: that calls the model's own parts, not those of a twin.
    """
    if packed and isinstance(model, Session | SpeechAdapter):
        raise SettingError(f"packed=True with a {type(model).__name__}: pass the model itself")
    if not _can_have_twin(model):
        if isinstance(model, torch.nn.Module) and model.training:
            raise SettingError(f"this {type(model).__name__} is in training mode, which drops out: call .eval() on it")
        return model
    return (with_packed_linears(model) if packed else with_skinny_linears(model)).eval()


def _can_have_twin(model: Any) -> bool:
    return isinstance(model, torch.nn.Module) and has_twin(model)


def parts_of(model: Any) -> list[tuple[Any, ...]]:
    """The modules that a twin was made of, and which adapter is active in those of peft; none where there is no twin.

    Not whether adapters are on: Granite's own `generate` switches that.
    """
    return _parts(model) if _can_have_twin(model) else []


def check_parts(model: Any, parts: list[tuple[Any, ...]]) -> None:
    """Raise if a model has others than its twin was made of, by :func:`parts_of`."""
    if parts and _parts(model) != parts:
        raise SettingError(
            f"modules or adapters of this {type(model).__name__} were replaced, which its recogniser does"
            " not follow: make another, as with speech.StreamingRecognizer(model, processor)"
        )


def _parts(model: torch.nn.Module) -> list[tuple[Any, ...]]:
    return [(part, getattr(part, "active_adapter", None)) for part in model.modules()]


def adapter_of(model: Any, processor: Any) -> SpeechAdapter:
    """The adapter of a model, of a session of it, or a copy of the one that is given, with its processor."""
    model = model.target if isinstance(model, Session) else model
    if isinstance(model, SpeechAdapter):
        adapter = copy.copy(model)
    else:
        advice = "" if isinstance(model, str) else instead_of(model)  # of a name, the error says how it is loaded
        adapter = adapter_class(type(model), advice)(model)
    if processor is not None:
        adapter.processor = processor
    if adapter.processor is None:
        raise SettingError(
            "no processor: pass the model's own, as in"
            " speech.StreamingRecognizer(model, AutoProcessor.from_pretrained(...))"
        )
    if isinstance(adapter.processor, FeatureExtractionMixin | PreTrainedTokenizerBase):
        raise SettingError(
            f"{type(adapter.processor).__name__} is a part of a processor: pass all of it, as in"
            " speech.StreamingRecognizer(model, AutoProcessor.from_pretrained(...))"
        )
    if getattr(adapter.processor, "decoder", None) is not None:
        raise SettingError(
            "streams do not ask this processor's language model: pass"
            " Wav2Vec2Processor(processor.feature_extractor, processor.tokenizer)"
        )
    return adapter


def adapter_class(model_class: type, advice: str = "") -> type[SpeechAdapter]:
    """The adapter of a class of recognisers or of one that it is derived from.

    Parameters
    ----------
    model_class
        Such as transformers' `WhisperForConditionalGeneration`.
    advice
        What to give instead where no adapter fits, if that is known.

    Raises
    ------
    UnsupportedTargetError
        Says what to give instead, or why the class cannot be served, where that is known.
    """
    lineage = [cls.__name__ for cls in model_class.__mro__]
    for name in lineage:
        for adapter in adapters():
            if issubclass(adapter, SpeechAdapter) and name in adapter.classes:
                return adapter
    similar = similar_classes(model_class.__name__, SpeechAdapter)
    reason = next((REFUSED[name] for name in lineage if name in REFUSED), similar)
    load = "load another, as with model, processor = speech.load('moonshine-tiny')"
    raise UnsupportedTargetError(f"no recogniser for {model_class.__name__}; {advice or f'{reason}: {load}'}")
