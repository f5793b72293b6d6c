"""Cross-attention keys and values that grow with the audio, for encoders that only append."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache

from .projections import split_heads

if TYPE_CHECKING:
    from ..families.adapter import SpeechAdapter


class CrossCache:
    """Keys and values of the decoder's cross-attention, projected once for each encoder position; exact.

    A decoder that starts anew at each update projects all of the audio again in each layer. Here only those positions
    are projected that are new or that changed, such as the last ones while their lookahead was missing.

    Examples
    --------
    >>> cache = CrossCache()
    >>> cache.length
    0
    >>> decode(adapter, encoded, adapter.prompt(), cache=cache)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._cache = DynamicCache()
        self._states: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Encoder positions that there are keys and values of."""
        return self._cache.get_seq_length()

    @torch.no_grad()
    def update(self, adapter: SpeechAdapter, hidden_states: torch.Tensor) -> DynamicCache:
        """The cache for encoder states `[1, T, D]`: what is still true is kept, the rest is projected."""
        same = self._same(hidden_states)
        try:
            if same < self.length:
                self._cache.crop(same - self.length)
            if same < hidden_states.shape[1]:
                self._append(adapter, hidden_states[:, same:], same)
        except BaseException:  # some layers may have more than others: the next call projects all again
            self._cache, self._states = DynamicCache(), None
            raise
        self._states = hidden_states.clone()
        return self._cache

    def _same(self, hidden_states: torch.Tensor) -> int:
        """How many positions are those of the last time, bit for bit."""
        if self._states is None:
            return 0
        both = min(self._states.shape[1], hidden_states.shape[1])
        differs = (self._states[0, :both] != hidden_states[0, :both]).any(-1).nonzero()
        return int(differs[0]) if len(differs) else both

    def _append(self, adapter: SpeechAdapter, hidden_states: torch.Tensor, start: int) -> None:
        states = adapter.cross_input(hidden_states, start)
        for number, layer in enumerate(adapter.target.get_decoder().layers):
            attention = layer.encoder_attn
            projected = [project(states) for project in (attention.k_proj, attention.v_proj)]
            key, value = (split_heads(one, attention.head_dim).contiguous() for one in projected)
            self._cache.update(key, value, number)
