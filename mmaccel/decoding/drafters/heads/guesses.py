"""Guesses of a head that reads the hidden states of the model it drafts for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...matching import Likely
from ..assistant import FEW
from ..sources import LEVELS, Context, CostlySource, Guess, State
from ..steps import Waiting, together
from .steps import HeadStep, HeadSteps

Path = tuple[int, ...]
EXPECTED: dict[Hashable, float] = {
    (kind, level + 1): 0.9 * share for kind in ("headed", "headed, drawn") for level, share in enumerate(LEVELS)
}


@dataclass(frozen=True)
class ReadPath:
    """A path that follows the text, as far as the head has read it.

    Attributes
    ----------
    hidden
        The head's state `[H]` behind it.
    likely
        Tokens after it and their probabilities.
    columns
        Of its tokens in the cache.
    share
        Probability of the path.
    """

    hidden: Tensor
    likely: Likely
    columns: tuple[int, ...]
    share: float


class HeadSource(CostlySource, ABC):
    """Base of guesses that a head makes of what a model read of a text.

    Parameters
    ----------
    steps
        Of the head, for all texts of a batch.
    take_states
        Takes the hidden states `[N, F]` of tokens of the text that the model read since it was last asked.
    branches
        Whether several tokens may follow one.
    row
        Of the batch.
    """

    def __init__(
        self, steps: HeadSteps, take_states: Callable[[], Tensor], *, branches: bool = True, row: int = 0
    ) -> None:
        self.steps, self.take_states, self.branches, self.row = steps, take_states, branches, row
        self.kind = "headed" if steps.dice is None else "headed, drawn"
        self.begin(())

    def begin(self, tokens: Sequence[int]) -> None:
        self._text, self._unread = list(tokens), list[Tensor]()  # hidden states of the last tokens but one
        self.steps.forget(self.row)
        self._forget()

    def learn(self, tokens: Sequence[int], ends: Sequence[Context], likely: Sequence[Likely]) -> None:
        self._judge(tokens)
        self._text.extend(tokens)
        self._forget()
        states = self.take_states()
        if len(states) and len(self._text) > 1:
            self._unread.append(states[-len(self._text) + 1 :].to(self.steps.head.fc.weight))

    @abstractmethod
    def root(self) -> State:
        """The state at the end of the text; None where nothing was read."""

    @abstractmethod
    def guesses(self, state: State) -> Iterator[Guess]:
        """Tokens that may follow, the likeliest first."""

    @abstractmethod
    def _judge(self, tokens: Sequence[int]) -> None:
        """Learn how often guesses are right: the text goes on with these tokens."""

    @abstractmethod
    def _forget(self) -> None:
        """The text goes on: what was guessed of it is of no more use."""


class HeadGuesses(HeadSource):
    """What the head of a model would write, token by token, as a tree."""

    def _forget(self) -> None:
        self._nodes: dict[Path, ReadPath] = {}
        self._guess: tuple[int, float] | None = None  # for the next token, and how sure it is

    def root(self) -> State:
        self._nodes = {path: node for path, node in self._nodes.items() if not path}  # the cache may keep no others
        return ((), 1.0) if self._nodes or self._unread else None

    def is_worth(self, state: State, left: float = 1.0, place: float = 0.0) -> bool:
        return self.steps.cost.is_worth(state[1] * left, self.row, place)

    def asking(self, state: State) -> Waiting[None]:
        """Wait for the steps that its guesses take; of a long text they tell nothing, and the likeliest is read too."""
        path, _ = state
        read = 0
        if not self._nodes:
            read = yield from self._read()
        elif path not in self._nodes:
            yield from self._feed(path)
        likely = self._nodes[()].likely
        if read > FEW and likely:
            yield from self._feed((likely[0][0],))

    def guesses(self, state: State) -> Iterator[Guess]:
        path, share = state
        together([self.asking(state)])  # where nobody waited
        likely = self._nodes[path].likely
        if not path and likely:
            self._guess = likely[0]
        for token, probability in likely:
            yield token, (self.kind, bisect(LEVELS, probability)), ((*path, token), share * probability)

    def _judge(self, tokens: Sequence[int]) -> None:
        self.steps.cost.observe_written(self._guess, tokens[0])

    def _feed(self, path: Path) -> Waiting[None]:
        """Read a path that follows the text, and those beside it that pay too."""
        before = self._nodes[path[:-1]]
        others = before.likely if self.branches else ()
        beside = [t for t, share in others if t != path[-1] and self.steps.cost.pays(before.share * share)]
        group = [path[-1], *(token for token in beside if (*path[:-1], token) not in self._nodes)]
        place, states = len(self._text) + len(path) - 2, before.hidden.expand(len(group), -1)
        step = HeadStep(self.steps, self.row, group, place, states, before.columns, len(path))
        yield step
        shares = dict(before.likely)
        for token, hidden, likely, column in zip(group, step.hidden, step.likely, step.columns, strict=True):
            columns = (*before.columns, column)
            self._nodes[*path[:-1], token] = ReadPath(hidden, likely, columns, before.share * shares[token])

    def _read(self) -> Waiting[int]:
        """Read what the model read of the text; how many tokens that was."""
        states = torch.cat(self._unread)
        count = len(states)
        step = HeadStep(self.steps, self.row, self._text[-count:], len(self._text) - 1 - count, states)
        yield step
        self._unread = []
        self._nodes[()] = ReadPath(step.hidden[0], step.likely[0], (), 1.0)
        return count
