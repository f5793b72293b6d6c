"""The cache among arguments and outputs of a model: `cache` since transformers 5.24, before it `past_key_values`."""

from __future__ import annotations

import functools
import inspect
from typing import Any

CACHE_NAMES = ("cache", "past_key_values")
OF_LAYERS = "layer_past"  # as GPT-NeoX hands it to its layers


@functools.cache
def cache_name() -> str:
    """The one of them that the installed transformers has."""
    from transformers import GenerationMixin

    known = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    return next(name for name in CACHE_NAMES if name in known)


def cached(cache: Any, part: str = "") -> dict[str, Any]:
    """The argument that hands a cache to a model, or to its `part`, such as "encoder_"."""
    return {part + cache_name(): cache}


def cache_of(given: Any) -> Any:
    """The cache among arguments of a model, its layers or `generate`, or in its output; None if there is none."""
    return next((given[name] for name in (*CACHE_NAMES, OF_LAYERS) if given.get(name) is not None), None)


def own_cache(cache: Any) -> Any:
    """Of the cache of an encoder and a decoder, that of the text itself; any other as it is."""
    return getattr(cache, "self_attention_cache", cache)
