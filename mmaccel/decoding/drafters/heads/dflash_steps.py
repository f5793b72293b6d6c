"""Steps of DFlash's draft model: whole blocks, for the texts of a batch at once and with one cache."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .dflash_head import Sees
from .steps import HeadStep, HeadSteps


class BlockSteps(HeadSteps):
    """A draft model and its cache, which keeps what it made of the model's states.

    The tokens of a step are a block, or none where states alone are read; its states are those of the text before.
    """

    head: Any  # a DFlashHead

    def _read(self, steps: Sequence[HeadStep]) -> None:
        """Read what the model read of the texts, and fill a block behind each."""
        told = [(step, step.states) for step in steps if len(step.states)]
        if told:
            behind = [(step, torch.arange(step.place - len(states), step.place)) for step, states in told]
            places = self._padded(behind, -1)
            self._held = torch.cat([self._held, places], 1)
            self.head.read(self._padded(told), places.clamp(min=0).to(self.head.device), self._cache)
        asked = [step for step in steps if step.tokens]
        if not asked:
            return
        places = self._padded([(step, step.places) for step in asked])
        tokens = self._padded([(step, torch.tensor(step.tokens)) for step in asked])
        masks = {sees: self._mask(places, sees) for sees in self.head.config.sees}
        fed, at = torch.stack([tokens, places]).to(self.head.device)
        hidden = self.head(fed, None, at, masks, self._cache)
        self._cache.crop(-tokens.shape[1])
        for step in asked:
            step.hidden = list(hidden[step.row, 0 if self.head.config.from_anchor else 1 :])

    def _mask(self, places: Tensor, sees: Sees) -> Tensor | None:
        """Which columns of the texts and tokens of a block a layer sees from its places `[B, N]`; None for all."""
        window, is_causal = sees
        ahead = places[:, None] - places[..., None]
        own = ahead.abs() < (window or sys.maxsize)
        if is_causal:
            own &= ahead <= 0
        seen = torch.cat([self._seen(places, window), own], -1)
        return None if bool(seen.all()) else seen.to(self.head.device)[:, None]

    def _depths(self, step: HeadStep) -> Sequence[int]:
        return range(len(step.hidden))
