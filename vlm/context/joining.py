"""A prompt's cache put together: what was encoded alone is turned to its place, the rest is computed."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

from mmaccel.cache.argument import cached
from mmaccel.cache.context_store import State

from .parts import Part
from .prompt import own_positions
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
        # None if they count up
        self.positions = own_positions(adapter, self.kwargs)
        self.cache = DynamicCache(config=adapter.text_config)
        first, known = self.kwargs["input_ids"][:, :1], getattr(adapter.text_config, "bos_token_id", None)
        self._first = torch.full_like(first, known) if isinstance(known, int) else first

    def opening(self, part: Part) -> torch.Tensor:
        """The words that a part is encoded behind, `[1, 0]` or `[1, 1]`."""
        return self._first[:, : min(1, part.start)]

    def is_exact(self, part: Part) -> bool:
        """Whether all that stands before a part in the prompt is what it is encoded behind."""
        return torch.equal(self.kwargs["input_ids"][:, : part.start], self.opening(part))

    def hash(self, part: Part) -> str:
        """The hash by which a part is found again."""
        places = self.places(part) if part.content else None
        thousandths = None if places is None else (1000 * places).round().long()  # Qwen3-Omni has parts of a position
        return part.hash(self.kwargs, self.opening(part), thousandths)

    def shift(self, part: Part) -> float:
        """Positions that a part's keys have to be turned by."""
        if self.positions is None:
            first: float = part.start
        else:
            first = self.positions[int(self.adapter.counted) :, :, part.start : part.stop].min().item()
        return first - self.opening(part).shape[1]

    def places(self, part: Part) -> torch.Tensor | None:
        """Positions behind the opening, `[..., 1, K]`: those in the prompt, before they are turned; None to count up.

        A model asked for those of the part alone may see no picture in it, where words around a picture mark it.
        """
        if self.positions is None:
            return None
        moved = self.positions[..., part.start : part.stop] - self.shift(part)
        first = torch.arange(self.opening(part).shape[1], device=moved.device)
        places = torch.cat([first.expand(*moved.shape[:-1], -1), moved], -1)
        if self.adapter.counted:
            places[0] = torch.arange(places.shape[-1], device=moved.device)
        return places

    @torch.no_grad()
    def encode(self, part: Part) -> list[State]:
        """Keys and values of a part alone, `[heads, tokens, dim]` for each layer."""
        opening, cache = self.opening(part), DynamicCache(config=self.adapter.text_config)
        call = part.alone(self.kwargs, opening)
        if part.content:
            places = self.places(part)
            if places is None and hasattr(self.adapter, "positions"):  # which asks for the types of tokens by itself
                places = torch.arange(call["input_ids"].shape[1], device=opening.device)[None]
            call["position_ids"] = places
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

    def place(self, part: Part, states: list[State], stop: int) -> None:
        """Append what is stored of a part from here on, up to a place."""
        shift = self.shift(part)
        kept = slice(self.cache.get_seq_length() - part.start, stop - part.start)
        for layer, (key, value) in enumerate(states):
            key, value = key[None, :, kept], value[None, :, kept]
            places = torch.full((key.shape[2],), shift, device=key.device)
            self.cache.update(turned(self.adapter.decoder, key, places) if shift else key, value, layer)
