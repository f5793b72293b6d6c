"""A layer of a cache whose heads keep different numbers of tokens, and that takes no more memory than they need."""

from __future__ import annotations

from typing import Any

import torch

from .evicting import EvictingLayer, EvictingState


class RaggedLayer(EvictingLayer):
    """An :class:`EvictingLayer` that becomes one for each key head as soon as tokens are dropped.

    From then on :meth:`update` returns the new states only, and attention must read :attr:`heads`.

    Attributes
    ----------
    heads : list of EvictingLayer
        A layer `[batch, 1, ...]` for each key head, empty until tokens are dropped.
    length
        Slots in use of the widest head.
    """

    def __init__(self, shared: EvictingState) -> None:
        self.heads: list[EvictingLayer] = []
        super().__init__(shared)

    def _clear(self) -> None:
        for head in self.heads:
            head.reset()  # what they held counts no longer
        self.heads = []
        super()._clear()

    def keep(self, token_idx: torch.Tensor) -> None:
        if not self.heads:
            self.heads = [self._head(number) for number in range(token_idx.shape[1])]
            for number, head in enumerate(self.heads):
                head.keep(token_idx[:, number : number + 1])
            # until here all heads had views of the prompt, which can now be freed
            self.keys = self.values = self.positions = self.current = None
            self._note()
        else:
            for number, head in enumerate(self.heads):
                head.keep(token_idx[:, number : number + 1])
        self.follow()

    def _head(self, number: int) -> EvictingLayer:
        assert self.keys is not None and self.values is not None and self.positions is not None
        part = slice(number, number + 1)
        head = EvictingLayer(self.shared)
        head.lazy_initialization(self.keys[:, part], self.values[:, part])
        head.keys, head.values = self.keys[:, part], self.values[:, part]
        head.positions = self.positions[:, part]
        head.length, head.total, head.appended = self.length, self.total, self.appended
        head.hidden = list(self.hidden)
        return head

    def follow(self) -> None:
        """Replace this layer's state by that of its heads."""
        first = self.heads[0]
        self.total, self.hidden = first.total, first.hidden
        self.length = max(head.length for head in self.heads)
        self.appended = min(head.appended for head in self.heads)
        self.evicted, self.starts = True, None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append new states; return all slots in use, and once tokens were dropped the new states."""
        if not self.heads:
            return super().update(key_states, value_states, *args, **kwargs)
        self._refuse_unmasked()
        for number, head in enumerate(self.heads):
            head.update(key_states[:, number : number + 1], value_states[:, number : number + 1])
        self.follow()
        self.current = key_states
        if self.shared.reader is not None:
            self.shared.reader.updated(self)
        return key_states, value_states

    def hide(self, seen: torch.Tensor) -> None:
        if not self.heads:
            super().hide(seen)
        for head in self.heads:
            head.hide(seen)  # the first one's count of padding is this layer's

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        for head in self.heads:
            head.crop(tokens_to_remove)

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        for head in self.heads:
            head.batch_repeat_interleave(repeats)
        if self.heads:
            self.follow()

    def _take(self, rows: torch.Tensor) -> None:
        super()._take(rows)
        for head in self.heads:
            head._take(rows)
        if self.heads:
            self.follow()
