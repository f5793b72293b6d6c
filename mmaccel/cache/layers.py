"""What the caches share: one cache layer per layer of the model, and counting bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from mmaccel.stepping.tensors import count_bytes


class AttentionReader(Protocol):
    """Attention that reads these caches: it is told of every update, and asks layers for more than keys and values."""

    active: bool

    def updated(self, layer: Any) -> None:
        """The layer returned new views; the next attention call that gets them reads this layer."""


class ReadByAttention:
    """A cache whose layers attention of ours may read; they know it by the state that they share, not by the cache."""

    shared: Any

    @property
    def reader(self) -> AttentionReader | None:
        """The attention that reads the layers, if any."""
        return self.shared.reader

    @reader.setter
    def reader(self, reader: AttentionReader | None) -> None:
        self.shared.reader = reader


def cache_layers(config: Any, make: Callable[[], Any]) -> list[Any]:
    """A cache layer for each layer of the model: `make()` for full attention, transformers' own for the others.

    Layers with a sliding window, a linear state or none at all keep what `DynamicCache` gives them.
    """
    text = config.get_text_config(decoder=True)
    return [make() if is_full(layer, text) else layer for layer in DynamicCache(config=text).layers]


def is_full(layer: Any, text_config: Any) -> bool:
    """Whether a layer of `DynamicCache` attends to all of a text: its window, if any, ends behind the last position."""
    if type(layer) is DynamicSlidingWindowLayer:
        longest = getattr(text_config, "max_position_embeddings", None)
        return longest is not None and layer.sliding_window >= longest
    return type(layer) is DynamicLayer


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor to write into: one made in `torch.inference_mode` takes nothing outside of it, and is copied."""
    return tensor.clone() if tensor.is_inference() and not torch.is_inference_mode_enabled() else tensor


def layer_bytes(layers: Iterable[Any]) -> int:
    """Bytes of the keys, values and positions of cache layers."""
    names = ("keys", "values", "positions")
    return count_bytes([getattr(layer, name, None) for layer in layers for name in names])


def check_crop(tokens_to_remove: int) -> int:
    """How many tokens a call of `crop` takes away; transformers passes them with a minus sign."""
    if tokens_to_remove > 0:
        raise ValueError(f"crop takes a count of at most 0, got {tokens_to_remove}: crop(-n) removes n tokens")
    return -tokens_to_remove
