"""Keys and values of what a stream remembers: appended to with each frame, evicted from, never computed anew."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

from mmaccel.cache.argument import cached
from mmaccel.cache.model_hash import adapters_of
from mmaccel.errors import UnsupportedTargetError
from mmaccel.stepping.tensors import count_bytes

from ..context.turning import has_turning_keys, turned

HEAD = -1  # instead of a frame's number: words before the video


class StreamCache:
    """What the layers of a decoder made of words and frames, without positions.

    Keys are held turned back to position 0 and get their positions when they are read, so that these count up without
    gaps whatever was evicted, and rounding does not add up.

    Parameters
    ----------
    decoder
        A decoder with one rotary embedding, all of whose layers attend to everything before.
    config
        Its configuration.
    evicts
        False where nothing will be evicted: keys stay as they are then, and any decoder will do.

    Attributes
    ----------
    numbers : list of int
        The frame that each column shows, :data:`HEAD` for words.
    evicted
        Columns that are gone.

    Raises
    ------
    UnsupportedTargetError
        If the decoder is of another kind.
    """

    def __init__(self, decoder: Any, config: Any, evicts: bool = True) -> None:
        self.decoder, self.config, self.evicts = decoder, config, evicts
        if evicts:
            self._check()
        self.numbers: list[int] = []
        self.evicted = 0
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._adapters: dict[str, str] = {}  # by which they were computed

    def _check(self) -> None:
        if not has_turning_keys(self.decoder, self.config):
            raise UnsupportedTargetError(
                f"the keys of {type(self.decoder).__name__} cannot take other positions:"
                " give the stream prefill=True, which computes them at each question"
            )

    def __len__(self) -> int:
        return len(self.numbers)

    @torch.no_grad()
    def append(self, embeds: torch.Tensor, numbers: list[int]) -> None:
        """Let the decoder read embeddings `[1, K, D]` of frames with these numbers, behind all that is there."""
        cache, before = self.read(), len(self)
        self._adapters = self._adapters if before else adapters_of(self.decoder)
        self.decoder(inputs_embeds=embeds, **cached(cache), use_cache=True)
        layers: list[Any] = list(cache.layers)
        fresh = [(layer.keys[:, :, before:], layer.values[:, :, before:]) for layer in layers]
        places = torch.arange(before, before + len(numbers), device=embeds.device)
        fresh = [(self._turned(key, places, back=True), value) for key, value in fresh]
        known = self._layers or [(key[:, :, :0], value[:, :, :0]) for key, value in fresh]
        pairs = zip(known, fresh, strict=True)
        self._layers = [(torch.cat([a, c], 2), torch.cat([b, d], 2)) for (a, b), (c, d) in pairs]
        self.numbers += numbers

    def keep(self, frames: set[int]) -> None:
        """Evict all frames but these; words stay."""
        stays = [place for place, number in enumerate(self.numbers) if number == HEAD or number in frames]
        if len(stays) == len(self):
            return
        self.evicted += len(self) - len(stays)
        self.numbers = [self.numbers[place] for place in stays]
        index, kept = torch.tensor(stays, dtype=torch.long), []
        for key, value in self._layers:
            index = index.to(key.device)  # which most layers share: sent there once
            kept.append((key[:, :, index], value[:, :, index]))
        self._layers = kept

    def lost(self, frames: set[int]) -> int:
        """Columns that are gone, and that would be with all frames but these."""
        return self.evicted + sum(number != HEAD and number not in frames for number in self.numbers)

    @property
    def is_outdated(self) -> bool:
        """Whether the decoder has read what is here by other adapters than those that count now."""
        return bool(self.numbers) and self._adapters != adapters_of(self.decoder)

    def read(self) -> DynamicCache:
        """A cache of its own for a call of the model, with positions that count up from 0."""
        cache = DynamicCache(config=self.config)
        for number, (key, value) in enumerate(self._layers):
            places = torch.arange(len(self), device=key.device)
            cache.update(self._turned(key, places), value, number)
        return cache

    def _turned(self, key: torch.Tensor, places: torch.Tensor, back: bool = False) -> torch.Tensor:
        """Keys `[1, H, K, E]` turned to positions `[K]`, or from them back to 0."""
        return turned(self.decoder, key, places, back) if self.evicts else key

    def nbytes(self) -> int:
        return count_bytes(self._layers)
