"""KeptPrefix: keys and values of what stands before a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mmaccel.masks import additive

from .kept import KeptStates


class KeptPrefix(KeptStates):
    """Runs whole passes that keep keys and values of the prefix, and between them passes over the block alone.

    Parameters
    ----------
    refresh
        Passes of a block from one whole one to the next; 0 for one at the beginning of a block.
    grows
        Whether tokens before a block do not see it: then a new block needs a pass over itself and the one before.
    prompt
        Passes from one whole one to the next; those of `refresh` and of new blocks then leave the prompt, which is what
        stood before the first block, as it is. 0 makes no difference between prompt and text.
    """

    def __init__(self, refresh: int, grows: bool = False, prompt: int = 0) -> None:
        self.refresh, self.grows, self.prompt = refresh, grows, prompt
        self.begin()

    def begin(self) -> None:
        """Keep nothing, for a new run."""
        super().begin()
        self.prefix, self.since, self.rows = 0, 0, 1
        self.first, self.age = 0, 0  # columns that a pass takes as kept, and the age of those of the prompt
        self.asked: int | None = None  # columns of the prompt
        self.text = torch.empty(0)  # what is kept, `[B, prefix]`
        self.padding: torch.Tensor | None = None

    def compute(
        self, original: Callable[..., Any], ids: torch.Tensor, rows: int, length: int, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, float]:
        """Logits of the block at least, of canvases of so many rows, and the share of the tokens that were computed."""
        self.rows = rows
        before, text = ids.shape[1] - length, ids[:: len(ids) // rows]  # canvases of a row have the same before them
        if self.kept and not torch.equal(text[:, : self.prefix], self.text):  # a callback has edited it
            self.kept = {}
        padding = kwargs.get("attention_mask")
        self.padding = None if padding is None or bool(padding.all()) else padding.bool()[:, None, None, :]
        self.first = self._first(before, length) if self.kept else 0
        if self.asked is None:
            self.asked = before
        self.age = self.age + 1 if self.first else 1
        if self.kept and self.first == before:
            self.since += 1
            self.reused += 1
            return self._from("reuse", before, original, ids, kwargs)
        self.prefix, self.since, self.text = before, 1, text[:, :before].clone()
        mode = "grow" if self.first else "keep" if before else ""
        logits, share = self._from(mode, self.first, original, ids, kwargs)
        self.reused += self.first > 0
        self._note_bytes()
        return logits, share

    def read(
        self, original: Callable[..., Any], ids: torch.Tensor, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, float]:
        """Logits from the token before the block on, which the model masks itself; nothing new is kept."""
        self.first = self.prefix - 1
        return self._from("read", self.first, original, ids, kwargs)

    def _first(self, before: int, length: int) -> int:
        """The first column that has to be computed, where something is kept."""
        if self.prompt and self.age >= self.prompt:
            return 0
        if before == self.prefix and not (self.refresh and self.since >= self.refresh):
            return before
        if self.prompt:
            assert self.asked is not None
            return min(self.asked, self.prefix)
        return self.prefix if self.grows and before == self.prefix + length else 0

    def _from(
        self, mode: str, first: int, original: Callable[..., Any], ids: torch.Tensor, kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, float]:
        """Logits of the tokens from `first` on, and their share of all."""
        own = {
            name: value[:, first:] if isinstance(value, torch.Tensor) and value.ndim == 2 else value
            for name, value in kwargs.items()
        }
        return self._within(mode, original, ids[:, first:], own), 1 - first / ids.shape[1]

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
        if self.mode in ("reuse", "grow", "read"):
            copies = len(key) // len(self.kept[id(module)][0])  # canvases of each row
            old = (x[:, :, : self.first] for x in self.kept[id(module)])
            old_key, old_value = (x.repeat_interleave(copies, 0) for x in old)
            key, value = torch.cat([old_key, key], 2), torch.cat([old_value, value], 2)
            if self.padding is not None:
                self.padding = self.padding.to(key.device)  # layers may be on several devices
            attention_mask, kwargs["is_causal"] = self._mask(attention_mask, old_key.shape[2]), False
        if self.mode in ("keep", "grow"):
            every = len(key) // self.rows  # one of the canvases of a row will do
            own = (x[::every, :, : self.prefix].clone() for x in (key, value))
            self.kept[id(module)] = next(own), next(own)
        return original(module, query, key, value, attention_mask, **kwargs)

    def _mask(self, own: torch.Tensor | None, old: int) -> torch.Tensor | None:
        """What new tokens see: of themselves what they did, of the prefix all but padding."""
        if own is None:
            return self.padding
        before = torch.ones(*own.shape[:-1], old, dtype=torch.bool, device=own.device)
        if self.padding is not None:
            before = before & self.padding[..., :old]
        if own.is_floating_point():  # masks that are added
            before = additive(before, own.dtype)
        return torch.cat([before, own.expand(*before.shape[:-1], -1)], -1)
