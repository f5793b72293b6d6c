"""Guesses of a head that reads the hidden states of the model it drafts for."""

from __future__ import annotations

import sys
from bisect import bisect
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from ..dice import Dice
from ..loop import clock
from ..matching import Likely
from .assistant import FEW, AssistantCost
from .eagle_head import EagleHead
from .sources import LEVELS, Context, Guess, State

Path = tuple[int, ...]
FOLLOW = 8  # tokens that may follow one, the likeliest
CHUNK = 1024  # tokens of a prompt that are read at once
EXPECTED: dict[Hashable, float] = {
    (kind, level + 1): 0.9 * share for kind in ("headed", "headed, drawn") for level, share in enumerate(LEVELS)
}


@dataclass(frozen=True)
class Node:
    """A path that follows the text, as far as the head has read it.

    Attributes
    ----------
    hidden
        The head's state `[H]` behind it.
    likely
        Tokens after it and their probabilities.
    places
        Of its tokens in the cache.
    share
        Probability of the path.
    """

    hidden: Tensor
    likely: Likely
    places: Path
    share: float


class EagleGuesses:
    """What the head of a model would write, token by token, as a tree.

    Parameters
    ----------
    head
        Trained for the model, on its device.
    cost
        Of its steps.
    take_states
        Takes the hidden states `[N, F]` of tokens of the text that the model read since it was last asked.
    forbidden
        Tokens that are never proposed.
    dice
        Of a sampled text.
    branches
        Whether several tokens may follow one.
    row
        Of the batch.
    """

    costs_a_pass = True

    def __init__(
        self,
        head: EagleHead,
        cost: AssistantCost,
        take_states: Callable[[], Tensor],
        forbidden: Container[int] = (),
        dice: Dice | None = None,
        *,
        branches: bool = True,
        row: int = 0,
    ) -> None:
        self.head, self.cost, self.take_states, self.forbidden, self.dice = head, cost, take_states, forbidden, dice
        self.branches, self.row = branches, row
        self._now = clock(head.device)  # as the passes that it is weighed against are timed
        self.begin(())

    def begin(self, tokens: Sequence[int]) -> None:
        self._text, self._unread = list(tokens), list[Tensor]()  # hidden states of the last tokens but one
        self._cache: Any = DynamicCache()  # its layers keep everything: a window is the mask's
        self._held, self._first = 0, 0  # places of the cache that are of the text, before those of guesses; its start
        self._forget()

    def _forget(self) -> None:
        """The text goes on: what was guessed of it is of no more use."""
        self._nodes: dict[Path, Node] = {}
        self._guess: int | None = None  # for the next token

    def root(self) -> State:
        return ((), 1.0) if self._nodes or self._unread else None

    def guesses(self, state: State, left: float = 1.0) -> Iterator[Guess]:
        path, share = state
        if not self.cost.is_worth(share * left, self.row):
            return
        self._timed(path)
        likely = self._nodes[path].likely
        if not path and likely:
            self._guess = likely[0][0]
        kind = "headed" if self.dice is None else "headed, drawn"
        for token, probability in likely:
            yield token, (kind, bisect(LEVELS, probability)), ((*path, token), share * probability)

    def learn(self, tokens: Sequence[int], ends: Sequence[Context], likely: Sequence[Likely]) -> None:
        if self._guess is not None:
            self.cost.observe_guess(self._guess == tokens[0])
        self._text.extend(tokens)
        self._forget()
        states = self.take_states()
        if len(states) and len(self._text) > 1:
            self._unread.append(states[-len(self._text) + 1 :].to(self.head.fc.weight))

    def _timed(self, path: Path) -> None:
        """Read a path, and tell what the step took; of a long text that says nothing, and the likeliest is read too."""
        began = self._now()
        fed = self._read() if not self._nodes else self._feed(path) if path not in self._nodes else 0
        if fed:
            self.cost.observe_step(self._now() - began, fed)
        if fed > FEW and self._nodes[()].likely:
            self._timed((self._nodes[()].likely[0][0],))

    @torch.no_grad()
    def _feed(self, path: Path) -> int:
        """Read a path that follows the text, and those beside it that pay too; how many tokens were read."""
        before, first = self._nodes[path[:-1]], self._cache.get_seq_length()
        others = before.likely if self.branches else ()
        beside = [token for token, share in others if token != path[-1] and self.cost.pays(before.share * share)]
        group = [path[-1], *(token for token in beside if (*path[:-1], token) not in self._nodes)]
        places = [len(self._text) + len(path) - 2] * len(group)
        own = torch.zeros(len(group), first - self._held + len(group), dtype=torch.bool)
        own[:, [place - self._held for place in before.places]] = True
        own[:, first - self._held :].fill_diagonal_(True)
        seen = torch.cat([self._seen(places, self._held), own], 1)
        hidden = self._step(group, before.hidden.expand(len(group), -1), places, seen)
        shares, found = dict(before.likely), self._likely(hidden, len(path))
        for number, (token, state, likely) in enumerate(zip(group, hidden, found, strict=True)):
            own_places = (*before.places, first + number)
            self._nodes[*path[:-1], token] = Node(state, likely, own_places, before.share * shares[token])
        return len(group)

    @torch.no_grad()
    def _read(self) -> int:
        """Read what the model read of the text; how many tokens that was."""
        extra = self._cache.get_seq_length() - self._held
        if extra:
            self._cache.crop(-extra)
        count = sum(map(len, self._unread))
        place = len(self._text) - 1 - count
        self._first = place - self._held
        for states in (chunk for unread in self._unread for chunk in unread.split(CHUNK)):
            places = list(range(place, place + len(states)))
            self._held, place = self._held + len(states), place + len(states)
            tokens = self._text[places[0] + 1 : place + 1]
            hidden = self._step(tokens, self.head.join(states), places, self._seen(places, self._held))
        self._unread = []
        self._nodes[()] = Node(hidden[-1], self._likely(hidden[-1:], 0)[0], (), 1.0)
        return count

    def _seen(self, places: list[int], held: int) -> Tensor:
        """Which of the first places of the cache, those of the text, are seen from some places, `[N, held]`."""
        far = torch.tensor(places)[:, None] - torch.arange(self._first, self._first + held)
        return (far >= 0) & (far < (self.head.config.window or sys.maxsize))

    def _step(self, tokens: list[int], hidden: Tensor, places: list[int], seen: Tensor) -> Tensor:
        """The head's states `[N, H]` for tokens at some places, each beside the state before it."""
        device = self.head.device
        mask = None if len(tokens) == 1 and bool(seen.all()) else seen.to(device)[None, None]
        fed, at = torch.tensor([tokens, places]).to(device)
        found: Tensor = self.head(fed[None], hidden[None], at[None], mask, self._cache)[0]
        return found

    def _likely(self, hidden: Tensor, depth: int) -> list[Likely]:
        """Tokens after each of some states `[N, H]`, the likeliest first; of a sampled text what will be drawn."""
        logits, tokens = self.head.logits(hidden), self.head.draft_tokens
        if self.dice is not None:
            whole = logits.new_full((len(logits), self.dice.size), -torch.inf).index_copy(1, tokens, logits)
            found: list[Likely] = [[self.dice.choose(row, depth)] for row in whole]
        else:
            shares, rows = logits.float().softmax(-1).topk(min(FOLLOW, len(tokens)))
            found = [list(zip(*row, strict=True)) for row in zip(tokens[rows].tolist(), shares.tolist(), strict=True)]
        least = LEVELS[0]
        return [[(t, share) for t, share in row if share >= least and t not in self.forbidden] for row in found]
