"""A prompt's cache put together: what was encoded alone is turned to its place, the rest is computed."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

from mmaccel.cache.argument import cached
from mmaccel.cache.context_store import State

from .parts import Part
from .turning import turned


class Joining:
    """The cache of one prompt, from its beginning to its end.

    A part is encoded behind the token that texts of the model begin with, so that its own first tokens do not draw the
    attention that the first token of any text does.

    Parameters
    ----------
    adapter
        Of a model whose keys can take other positions.
    kwargs
        Arguments of `generate`.

    Attributes
    ----------
    kwargs
        Those arguments, with tensors where the model is: `generate` moves none before its first pass.
    cache
        What there is so far.
    """

    def __init__(self, adapter: Any, kwargs: dict[str, Any]) -> None:
        self.adapter, device = adapter, adapter.target.device
        self.kwargs = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in kwargs.items()
        }
        self.positions = self._positions(self.kwargs)
        self.cache = DynamicCache(config=adapter.text_config)
        first, known = self.kwargs["input_ids"][:, :1], getattr(adapter.text_config, "bos_token_id", None)
        self._first = torch.full_like(first, known) if isinstance(known, int) else first

    def _positions(self, kwargs: dict[str, Any]) -> torch.Tensor | None:
        """Positions of the tokens, `[..., 1, L]`; None if they count up."""
        found: torch.Tensor | None = self.adapter.positions(kwargs) if hasattr(self.adapter, "positions") else None
        return found

    def opening(self, part: Part) -> torch.Tensor:
        """The words that a part is encoded behind, `[1, 0]` or `[1, 1]`."""
        return self._first[:, : min(1, part.start)]

    def is_exact(self, part: Part) -> bool:
        """Whether all that stands before a part in the prompt is what it is encoded behind."""
        return torch.equal(self.kwargs["input_ids"][:, : part.start], self.opening(part))

    def hash(self, part: Part) -> str:
        """The hash by which a part is found again."""
        return part.hash(self.kwargs, self.opening(part))

    def shift(self, part: Part) -> int | None:
        """Positions that a part's keys have to be turned by; None if its tokens lie otherwise in the prompt."""
        opening = self.opening(part)
        call = part.alone(self.kwargs, opening)
        here = _axes(self.positions, self.kwargs["input_ids"])[:, part.start : part.stop]
        there = _axes(self._positions(call), call["input_ids"])[:, opening.shape[1] :]
        shifts = (here - there).unique()
        return int(shifts) if len(shifts) == 1 else None

    @torch.no_grad()
    def encode(self, part: Part) -> list[State]:
        """Keys and values of a part alone, `[heads, tokens, dim]` for each layer."""
        opening, cache = self.opening(part), DynamicCache(config=self.adapter.text_config)
        call = part.alone(self.kwargs, opening)
        if part.content:
            call["position_ids"] = self._positions(call)
            self.adapter.target(**call, **cached(cache), use_cache=True, logits_to_keep=1)
        else:
            self.adapter.decoder(input_ids=call["input_ids"], **cached(cache), use_cache=True)
        layers: list[Any] = list(cache.layers)
        behind = opening.shape[1]
        return [(layer.keys[0, :, behind:], layer.values[0, :, behind:]) for layer in layers]

    @torch.no_grad()
    def compute(self, stop: int) -> None:
        """Let the decoder read the words up to a place."""
        start = self.cache.get_seq_length()
        if start < stop:
            ids = self.kwargs["input_ids"][:, start:stop]
            positions = None if self.positions is None else self.positions[..., start:stop]
            self.adapter.decoder(input_ids=ids, position_ids=positions, **cached(self.cache), use_cache=True)

    def place(self, part: Part, states: list[State], shift: int, stop: int) -> None:
        """Append what is stored of a part from here on, up to a place."""
        kept = slice(self.cache.get_seq_length() - part.start, stop - part.start)
        for layer, (key, value) in enumerate(states):
            key, value = key[None, :, kept], value[None, :, kept]
            places = torch.full((key.shape[2],), shift, device=key.device)
            self.cache.update(turned(self.adapter.decoder, key, places) if shift else key, value, layer)


def _axes(positions: torch.Tensor | None, ids: torch.Tensor) -> torch.Tensor:
    """Positions of tokens `[1, L]` as rotary embeddings take them, `[axes, L]`."""
    if positions is None:
        return torch.arange(ids.shape[1], device=ids.device)[None]
    return positions[-3:, 0]  # time, row and column; a count comes before them
