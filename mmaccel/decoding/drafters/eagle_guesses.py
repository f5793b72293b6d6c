"""Guesses of a head that reads the hidden states of the model it drafts for."""

from __future__ import annotations

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
from .assistant import AssistantCost
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
    hidden, logits
        The head's state `[H]` behind it, and what it says of the next token, `[D]`.
    places
        Of its tokens in the cache.
    """

    hidden: Tensor
    logits: Tensor
    places: tuple[int, ...]


class EagleGuesses:
    """What the head of a model would write, token by token, as a tree.

    Parameters
    ----------
    head
        Trained for the model, on its device.
    cost
        Of its steps.
    told
        Takes the hidden states `[N, F]` of tokens of the text that the model read since it was last asked.
    forbidden
        Tokens that are never proposed.
    dice
        Of a sampled text.
    """

    costs_a_pass = True

    def __init__(
        self,
        head: EagleHead,
        cost: AssistantCost,
        told: Callable[[], Tensor],
        forbidden: Container[int] = (),
        dice: Dice | None = None,
    ) -> None:
        self.head, self.cost, self.told, self.forbidden, self.dice = head, cost, told, forbidden, dice
        self._now = clock(head.device)  # as the passes that it is weighed against are timed
        self.begin(())

    def begin(self, tokens: Sequence[int]) -> None:
        self._text, self._unread = list(tokens), list[Tensor]()  # hidden states of the last tokens but one
        self._cache: Any = DynamicCache(config=self.head.config)
        self._held = 0  # places of the cache that are of the text, before those of guesses
        self._nodes: dict[Path, Node] = {}
        self._after: dict[Path, list[State]] = {}  # what was guessed to follow
        self._first: int | None = None  # its guess for the next token

    def root(self) -> State:
        return ((), 1.0) if self._nodes or self._unread else None

    def guesses(self, state: State) -> Iterator[Guess]:
        path, share = state
        if not self.cost.is_worth(share):
            return
        began = self._now()
        fed = self._feed(path)
        likely = [one for one in self._likely(self._nodes[path].logits, len(path)) if one[0] not in self.forbidden]
        self._after[path] = [((*path, token), share * probability) for token, probability in likely]
        if fed:
            self.cost.observe_step(self._now() - began, fed)
        if not path and likely:
            self._first = likely[0][0]
        kind = "headed" if self.dice is None else "headed, drawn"
        for (token, probability), behind in zip(likely, self._after[path], strict=True):
            yield token, (kind, bisect(LEVELS, probability)), behind

    def _likely(self, logits: Tensor, depth: int) -> list[tuple[int, float]]:
        """Tokens by logits `[D]`, the likeliest first; of a sampled text the one that will be drawn."""
        if self.dice is not None:
            whole = logits.new_full((self.dice.size,), -torch.inf)
            return [self.dice.choose(whole.index_copy(0, self.head.draft_tokens, logits), depth)]
        shares, rows = logits.float().softmax(-1).topk(min(FOLLOW, len(logits)))
        return list(zip(self.head.draft_tokens[rows].tolist(), shares.tolist(), strict=True))

    def learn(self, tokens: Sequence[int], ends: Sequence[Context], likely: Sequence[Likely]) -> None:
        if self._first is not None:
            self.cost.observe_guess(self._first == tokens[0])
        self._text.extend(tokens)
        self._nodes, self._after, self._first = {}, {}, None
        states = self.told()[1 - len(self._text) :]
        if len(states):
            self._unread.append(states)

    @torch.no_grad()
    def _feed(self, path: Path) -> int:
        """Make sure that a path that follows the text was read; how many tokens were read for that."""
        if not self._nodes:
            return self._read()
        if path in self._nodes:
            return 0
        beside = [other for other, share in self._after[path[:-1]] if other != path and self.cost.pays(share)]
        group = [
            path,
            *(other for other in beside if other not in self._nodes),
        ]  # one pass is hardly more than one of them
        node, first = self._nodes[path[:-1]], self._cache.get_seq_length()
        seen = torch.zeros(len(group), first + len(group), dtype=torch.bool, device=self.head.device)
        seen[:, : self._held] = True
        seen[:, list(node.places)] = True
        seen[:, first:].fill_diagonal_(True)
        place = len(self._text) + len(path) - 2
        places = torch.full((len(group),), place)
        hidden = self._step([other[-1] for other in group], node.hidden.expand(len(group), -1), places, seen)
        for number, (other, state, logits) in enumerate(zip(group, hidden, self.head.logits(hidden), strict=True)):
            self._nodes[other] = Node(state, logits, (*node.places, first + number))
        return len(group)

    def _read(self) -> int:
        """Read what the model read of the text; how many tokens that was."""
        extra = self._cache.get_seq_length() - self._held
        if extra:
            self._cache.crop(-extra)
        unread = torch.cat(self._unread)
        first = len(self._text) - len(unread)
        for states in unread.split(CHUNK):
            count = len(states)
            seen = torch.ones(count, self._held + count, dtype=torch.bool, device=self.head.device).tril(self._held)
            places = torch.arange(first - 1, first - 1 + count)
            hidden = self._step(self._text[first : first + count], self.head.join(states), places, seen)
            self._held, first = self._held + count, first + count
        self._unread, self._nodes[()] = [], Node(hidden[-1], self.head.logits(hidden[-1]), ())
        return len(unread)

    def _step(self, tokens: list[int], hidden: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        """The head's states `[N, H]` for tokens at some places, each beside the state before it."""
        fed, places = torch.tensor([tokens]).to(self.head.device), places[None].to(self.head.device)
        found: Tensor = self.head(fed, hidden[None], places, seen[None, None], self._cache)[0]
        return found
