"""Guesses of a draft model that fills a whole block at once."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile
from operator import mul

import torch

from ...matching import Likely
from ..assistant import FEW
from ..sources import LEVELS, Guess, State
from ..steps import Waiting, together
from .guesses import HeadSource
from .steps import HeadStep


class BlockGuesses(HeadSource):
    """What is likely at each place of a block, as a tree: a state is a place, as none looks at those before it."""

    def _forget(self) -> None:
        self._block: list[Likely] | None = None

    def root(self) -> State:
        return 0 if self._block is not None or self._unread else None

    def is_worth(self, state: State, left: float = 1.0, place: float = 0.0) -> bool:
        return self._block is not None or self.steps.cost.is_worth(left, self.row, place)

    def asking(self, state: State) -> Waiting[None]:
        """Wait for the block; a long text is read before it, as that would tell nothing of its time."""
        if self._block is not None:
            return
        states, place, head = torch.cat(self._unread), len(self._text) - 1, self.steps.head
        if len(states) > FEW + 1:  # so that the reading alone counts as one of a long text
            yield HeadStep(self.steps, self.row, [], place - 1, states[:-1])
            states = states[-1:]
        masks = [head.config.mask_token] * (head.config.block - 1)
        step = HeadStep(self.steps, self.row, [self._text[-1], *masks], place, states)
        yield step
        self._unread, self._block = [], step.likely

    def guesses(self, state: State) -> Iterator[Guess]:
        together([self.asking(state)])  # where nobody waited
        block = self._block or []
        for token, probability in block[state] if state < len(block) else ():
            yield token, (self.kind, bisect(LEVELS, probability)), state + 1

    def _judge(self, tokens: Sequence[int]) -> None:
        if self._block is None:
            return
        path = [places[0] for places in takewhile(len, self._block)]
        hits = (guess == token for (guess, _), token in zip(path, tokens, strict=False))
        right = len(list(takewhile(bool, hits)))
        judged = len(path) if right < len(tokens) else right  # what was not written was not judged
        self.steps.cost.observe_path(right, judged, tuple(accumulate((share for _, share in path), mul)))
