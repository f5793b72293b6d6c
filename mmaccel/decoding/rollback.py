"""Take drafts back from the cache of one text, whatever its layers keep of the past."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

# Layers with a state of the text so far, which cannot be cropped: linear attention and state spaces.
WITH_STATE = (LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)
States = list[dict[int, torch.Tensor | None]]


def can_go_back(cache: DynamicCache) -> bool:
    """Whether drafts can be taken back from every layer; one with keys tells how many tokens there are."""
    layers: list[Any] = cache.layers
    counts = not layers or any(isinstance(layer, DynamicLayer) for layer in layers)
    return counts and all(type(layer) in WITH_STATE or layer.is_croppable for layer in layers)


class Rollback:
    """The cache of one text that grows by chains.

    Keys and values are cropped. A state is put back as it was before the draft, and with it the whole cache; what was
    accepted is then read again with the next token.

    Parameters
    ----------
    cache
        That of the decoder itself, after the prompt.

    Attributes
    ----------
    unread
        Committed tokens before the last that it does not hold any more.
    """

    def __init__(self, cache: DynamicCache) -> None:
        self.unread = 0
        self._layers: list[Any] = cache.layers
        self._stateful = [
            layer
            for layer in self._layers
            if isinstance(layer, LinearAttentionCacheLayerMixin) and not layer.is_croppable
        ]
        self._states: list[tuple[Any, States]] = []  # before the last draft
        self._record(True)

    def mark(self, drafted: int) -> None:
        """A pass over a draft of so many tokens follows."""
        self._states = [(layer, _copied(layer)) for layer in self._stateful] if drafted else []

    def keep(self, accepted: int, drafted: int) -> None:
        """Take back from the last pass what was not accepted."""
        is_put_back = accepted < drafted and bool(self._states)
        if is_put_back:
            for layer, states in self._states:
                layer.conv_states, layer.recurrent_states = states
        self._crop(self.unread + 1 + drafted if is_put_back else drafted - accepted)
        self.unread = self.unread + 1 + accepted if is_put_back else 0

    def _crop(self, count: int) -> None:
        for layer in self._layers:
            if layer not in self._stateful:
                layer.crop(-count)
            elif isinstance(layer, DynamicLayer):
                DynamicLayer.crop(layer, -count)  # of its keys and values alone

    def close(self) -> None:
        """Layers forget again what is out of their window."""
        self._record(False)

    def _record(self, on: bool) -> None:
        """Let layers that forget what is out of their window keep it until the next crop, or not."""
        for layer in self._layers:
            if layer not in self._stateful and hasattr(layer, "record_past"):
                layer.record_past = on


def _copied(layer: Any) -> States:
    return [
        {number: None if state is None else state.clone() for number, state in states.items()}
        for states in (layer.conv_states, layer.recurrent_states)
    ]
