"""KeptWindow: keys and values of a whole canvas, of which a pass renews a few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..method import UNSURE
from .kept import KeptStates


class KeptWindow(KeptStates):
    """Runs whole passes that keep all keys and values, and between them passes over a window of the block.

    Parameters
    ----------
    window, seen, refresh
        Masked tokens that are computed and attended to, and passes from one whole one to the next.
    mask
        Gives the token that stands for nothing yet.
    """

    def __init__(self, window: int, seen: int, refresh: int, mask: Callable[[], int | None]) -> None:
        self.window, self.seen, self.refresh, self.mask = window, seen, refresh, mask
        self.begin()

    def begin(self) -> None:
        """Keep nothing, for a new run."""
        super().begin()
        self.since = 0
        self.before: torch.Tensor | None = None  # the canvas of the last whole pass
        self.logits = torch.empty(0)  # of its block

    def compute(
        self, original: Callable[..., Any], ids: torch.Tensor, rows: int, length: int, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, float]:
        """Logits of the block, and the share of the tokens that were computed."""
        old = self.before
        known = old is not None and old.shape == ids.shape and torch.equal(old[:, :-length], ids[:, :-length])
        if not known or self.since >= self.refresh:
            self.before, self.since = ids.clone(), 1
            self.logits = self._within("keep", original, ids, kwargs)[:, -length:].clone()
            self._note_bytes()
            return self.logits, 1.0
        self.since += 1
        self.reused += 1
        return self._windowed(original, ids, length, kwargs)

    def _windowed(
        self, original: Callable[..., Any], ids: torch.Tensor, length: int, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, float]:
        mask = self.mask()
        assert self.before is not None and mask is not None
        masked = ids == mask
        number = masked.cumsum(1)
        wanted = (masked & (number <= self.window)) | (ids != self.before)
        self.places = self._places(wanted, length)
        visible = ~(masked & (number > self.seen))
        padding = kwargs.get("attention_mask")
        self.visible = (visible if padding is None else visible & padding.bool())[:, None, None, :]
        own = {
            name: value.gather(1, self.places) if isinstance(value, torch.Tensor) and value.ndim == 2 else value
            for name, value in kwargs.items()
        }
        logits = self._within("renew", original, ids.gather(1, self.places), own)
        unsure = UNSURE * self.logits  # of the same tokens as before, and not to be committed
        at = (self.places - (ids.shape[1] - length))[..., None].expand(-1, -1, logits.shape[-1])
        return unsure.scatter(1, at, logits), self.places.shape[1] / ids.shape[1]

    @staticmethod
    def _places(wanted: torch.Tensor, length: int) -> torch.Tensor:
        """Columns to compute `[B, n]`, as many in each row; rows that want fewer take others of the block."""
        block = wanted[:, -length:]
        count = max(int(block.sum(1).amax()), 1)
        found = block.int().argsort(dim=1, descending=True, stable=True)[:, :count].sort(1).values
        return found + wanted.shape[1] - length

    def _attend(
        self,
        original: Callable[..., Any],
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        **kwargs: Any,
    ) -> Any:
        if self.mode == "keep":
            self.kept[id(module)] = key.clone(), value.clone()
        if self.mode == "renew":
            places, visible = (x.to(key.device) for x in (self.places, self.visible))  # of several devices
            at = places[:, None, :, None].expand(-1, key.shape[1], -1, key.shape[3])
            old_key, old_value = self.kept[id(module)]
            key, value = old_key.scatter(2, at, key), old_value.scatter(2, at, value)
            attention_mask, kwargs["is_causal"] = visible.expand(-1, 1, query.shape[2], -1), False
        return original(module, query, key, value, attention_mask, **kwargs)
