"""The adapter of what a recogniser is made of."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from mmaccel.adapter import adapters, find_adapter
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.packed_linear import with_packed_linears
from mmaccel.session import Session

from .adapter import SpeechAdapter


def packed_copy(model: Any) -> Any:
    """A model with a second copy of its matrix weights, in oneDNN's layout."""
    if isinstance(model, Session | SpeechAdapter):
        raise SettingError(f"packed=True with a {type(model).__name__}: pass the model itself")
    return with_packed_linears(model) if isinstance(model, torch.nn.Module) else model


def adapter_of(model: Any, processor: Any) -> SpeechAdapter:
    """The adapter of a model, of a session of it, or the one that is given, with its processor."""
    model = model.target if isinstance(model, Session) else model
    adapter = model if isinstance(model, SpeechAdapter) else _find(model)
    if processor is not None:
        adapter.processor = processor
    if adapter.processor is None:
        raise SettingError(
            "no processor: pass the model's own, as in"
            " speech.StreamingRecognizer(model, AutoProcessor.from_pretrained(...))"
        )
    return adapter


def _find(model: Any) -> SpeechAdapter:
    """The adapter for a recogniser; those of other models are no help here, and are not listed."""
    with suppress(UnsupportedTargetError):
        adapter = find_adapter(model)
        if isinstance(adapter, SpeechAdapter):
            return adapter
    known = ", ".join(sorted(name for one in adapters() if issubclass(one, SpeechAdapter) for name in one.classes))
    raise UnsupportedTargetError(
        f"no recogniser for {type(model).__name__}; supported are {known}: load one such as"
        " model, processor = speech.load('moonshine-tiny')"
    )
