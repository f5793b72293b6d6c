"""Which recognisers can be streamed: one list for loading them and for making streams of them."""

from __future__ import annotations

from mmaccel.adapter import adapters
from mmaccel.errors import UnsupportedTargetError

from .adapter import SpeechAdapter
from .rows import REFUSED


def served_classes() -> list[str]:
    """Names of transformers' classes that have an adapter, in alphabetical order."""
    return sorted(name for one in adapters() if issubclass(one, SpeechAdapter) for name in one.classes)


def adapter_class(model_class: type) -> type[SpeechAdapter]:
    """The adapter of a class of recognisers or of one that it is derived from.

    Raises
    ------
    UnsupportedTargetError
        Says why the class cannot be served, where that is known, or which classes can.
    """
    lineage = [cls.__name__ for cls in model_class.__mro__]
    for name in lineage:
        for adapter in adapters():
            if issubclass(adapter, SpeechAdapter) and name in adapter.classes:
                return adapter
    reason = next((REFUSED[name] for name in lineage if name in REFUSED), "")
    known = f"supported are {', '.join(served_classes())}"
    raise UnsupportedTargetError(
        f"no recogniser for {model_class.__name__}; {reason or known}: load another, as with"
        " model, processor = speech.load('moonshine-tiny')"
    )
