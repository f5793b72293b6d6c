"""Guesses of a head that reads the hidden states of the model it drafts for."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
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
        self._nodes: dict[Path, tuple[Tensor, Path]] = {}  # the head's state `[H]` at each, and its places
        self._first: int | None = None  # its guess for the next token

    def root(self) -> State:
        return ((), 1.0) if self._nodes or self._unread else None

    def guesses(self, state: State) -> Iterator[Guess]:
        path, share = state
        if not self.cost.is_worth(share):
            return
        began = self._now()
        logits, read = self._after(path)
        likely = self._likely(logits, len(path))
        self.cost.observe_step(self._now() - began, read)
        if not path and likely:
            self._first = likely[0][0]
        kind = "headed" if self.dice is None else "headed, drawn"
        for token, probability in likely:
            if token not in self.forbidden:
                yield token, (kind, bisect(LEVELS, probability)), ((*path, token), share * probability)

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
        self._nodes, self._first = {}, None
        states = self.told()[1 - len(self._text) :]
        if len(states):
            self._unread.append(states)

    @torch.no_grad()
    def _after(self, path: tuple[int, ...]) -> tuple[Tensor, int]:
        """Logits `[D]` after a path that follows the text, and how many tokens were read for them."""
        read = 1
        if not self._nodes:
            read = self._read()
        elif path not in self._nodes:
            before, columns = self._nodes[path[:-1]]
            place = self._cache.get_seq_length()
            seen = torch.zeros(1, place + 1, dtype=torch.bool, device=self.head.device)
            seen[:, : self._held] = True
            seen[:, [*columns, place]] = True
            hidden = self._step(list(path[-1:]), before[None], len(self._text) + len(path) - 2, seen)
            self._nodes[path] = hidden[-1], (*columns, place)
        return self.head.logits(self._nodes[path][0]), read

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
            hidden = self._step(self._text[first : first + count], self.head.join(states), first - 1, seen)
            self._held, first = self._held + count, first + count
        self._unread, self._nodes[()] = [], (hidden[-1], ())
        return len(unread)

    def _step(self, tokens: list[int], hidden: Tensor, place: int, seen: Tensor) -> Tensor:
        """The head's states `[N, H]` for tokens from a place on, each beside the state before it."""
        fed = torch.tensor([tokens], device=self.head.device)
        places = place + torch.arange(len(tokens), device=self.head.device)[None]
        found: Tensor = self.head(fed, hidden[None], places, seen[None, None], self._cache)[0]
        return found
