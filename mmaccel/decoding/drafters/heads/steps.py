"""Steps of a head, for the texts of a batch at once and with one cache."""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import DynamicCache

from ...dice import Dice
from ...loop import clock
from ...matching import Likely, likeliest_of
from ..assistant import AssistantCost
from ..sources import LEVELS
from .draft_head import DraftHead

FOLLOW = 8  # tokens that may follow one, the likeliest
CHUNK = 1024  # tokens of a prompt that are read at once


@dataclass
class HeadStep:
    """Tokens of one text that the head is to read: those that the text goes on with, or guesses for one place.

    Attributes
    ----------
    stepper, row
        What takes the step, and the row of the batch.
    tokens, place
        And the position of the first; guesses all have that.
    states
        Before each: of the model's layers `[N, F]`, or the head's own `[N, H]` before guesses.
    before
        Columns of the cache in which the guesses before these are; None for tokens of the text.
    depth
        Tokens that are guessed already.
    hidden, likely, columns
        Found behind each guess, or behind the last token: the head's state, what follows, and where the cache has it.
    """

    stepper: HeadSteps
    row: int
    tokens: list[int]
    place: int
    states: Tensor
    before: tuple[int, ...] | None = None
    depth: int = 0
    hidden: list[Tensor] = field(default_factory=list)
    likely: list[Likely] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)

    @property
    def places(self) -> Tensor:
        """Positions `[N]`."""
        count = len(self.tokens)
        return torch.arange(self.place, self.place + count) if self.before is None else torch.full((count,), self.place)


class HeadSteps:
    """A head and its cache, whose columns belong to one position of each text, or to none of it.

    Parameters
    ----------
    head
        Trained for the model, on its device.
    cost
        Of its steps.
    rows
        Texts of the batch.
    forbidden
        Tokens that are never proposed.
    dice
        Of a sampled text.
    """

    def __init__(
        self,
        head: DraftHead,
        cost: AssistantCost,
        rows: int = 1,
        forbidden: Container[int] = (),
        dice: Dice | None = None,
    ) -> None:
        self.head, self.cost, self.rows, self.forbidden, self.dice = head, cost, rows, forbidden, dice
        self._now = clock(head.device)  # as the passes that it is weighed against are timed
        self._cache = DynamicCache()  # its layers keep everything: a window is the mask's
        self._held = torch.empty(rows, 0, dtype=torch.long)  # positions `[B, M]` of the texts' columns; -1 for none

    def forget(self, row: int) -> None:
        """Another text begins in a row."""
        self._held[row] = -1
        if bool((self._held < 0).all()):
            self._cache, self._held = DynamicCache(), self._held[:, :0]

    @torch.no_grad()
    def take(self, steps: Sequence[HeadStep]) -> None:
        """Take steps of several texts; the guesses before are forgotten once a text goes on."""
        began = self._now()
        texts = [step for step in steps if step.before is None]
        guesses = [step for step in steps if step.before is not None]
        if texts:
            self._read(texts)
        if guesses:
            self._guess(guesses)
        if states := [state for step in steps for state in step.hidden]:
            depths = [depth for step in steps for depth in self._depths(step)]
            found = iter(self._likely(torch.stack(states), depths))
            for step in steps:
                step.likely = [next(found) for _ in step.hidden]
        self.cost.observe_step(self._now() - began, max(len(step.states) for step in steps), len(steps))

    def _depths(self, step: HeadStep) -> Sequence[int]:
        """Tokens that are guessed before what follows each state of a step."""
        return [step.depth] * len(step.hidden)

    def _read(self, steps: Sequence[HeadStep]) -> None:
        """Read what texts went on with."""
        extra = self._cache.get_seq_length() - self._held.shape[1]
        if extra:
            self._cache.crop(-extra)
        chunk = max(1, CHUNK // self.rows)  # masks of all rows take no more memory than those of one
        for begin in range(0, max(len(step.tokens) for step in steps), chunk):
            parts = [(step, slice(begin, begin + chunk)) for step in steps if begin < len(step.tokens)]
            places = self._padded([(step, step.places[part]) for step, part in parts], -1)
            own = torch.eye(places.shape[1], dtype=torch.bool)[None] & (places < 0)[..., None]  # what is padding
            before = self._held.shape[1]
            self._held = torch.cat([self._held, places], 1)
            seen = self._seen(places, self.head.config.window)
            seen[..., before:] |= own
            tokens = self._padded([(step, torch.tensor(step.tokens[part])) for step, part in parts])
            joined = self.head.join(self._padded([(step, step.states[part]) for step, part in parts]))
            hidden = self._step(tokens, joined, places, seen)
            for step, _ in parts:
                last = len(step.tokens) - 1 - begin
                if last < chunk:
                    step.hidden, step.columns = [hidden[step.row, last]], [before + last]

    def _guess(self, steps: Sequence[HeadStep]) -> None:
        """Read guesses, each of which sees the text and the guesses before it."""
        first, held = self._cache.get_seq_length(), self._held.shape[1]
        places = self._padded([(step, step.places) for step in steps])
        count = places.shape[1]
        own = torch.zeros(self.rows, count, first - held + count, dtype=torch.bool)
        own[:, :, first - held :] = torch.eye(count, dtype=torch.bool)
        for step in steps:
            own[step.row, :, [column - held for column in step.before or ()]] = True
            step.columns = [first + number for number in range(len(step.tokens))]
        tokens = self._padded([(step, torch.tensor(step.tokens)) for step in steps])
        states = self._padded([(step, step.states) for step in steps])
        hidden = self._step(tokens, states, places, torch.cat([self._seen(places, self.head.config.window), own], -1))
        for step in steps:
            step.hidden = list(hidden[step.row, : len(step.tokens)])

    def _padded(self, parts: Sequence[tuple[HeadStep, Tensor]], fill: int = 0) -> Tensor:
        """What belongs to the rows `[B, N, ...]`, each filled up at its end."""
        sample = parts[0][1]
        if self.rows == 1:
            return sample[None]
        longest = max(len(part) for _, part in parts)
        whole = sample.new_full((self.rows, longest, *sample.shape[1:]), fill)
        for step, part in parts:
            whole[step.row, : len(part)] = part
        return whole

    def _seen(self, places: Tensor, window: int | None) -> Tensor:
        """Which columns of the texts are seen from positions `[B, N]`, `[B, N, M]`."""
        far = places[..., None] - self._held[:, None]
        return (far >= 0) & (far < (window or sys.maxsize)) & (self._held >= 0)[:, None]

    def _step(self, tokens: Tensor, hidden: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        """The head's states `[B, N, H]` for tokens at some positions, each beside the state before it."""
        device = self.head.device
        mask = None if tokens.shape[1] == 1 and bool(seen.all()) else seen.to(device)[:, None]
        fed, at = torch.stack([tokens, places.clamp(min=0)]).to(device)
        return self.head(fed, hidden, at, mask, self._cache)

    def _likely(self, hidden: Tensor, depths: Sequence[int]) -> list[Likely]:
        """Tokens after each of some states `[N, H]`, the likeliest first; of a sampled text what will be drawn."""
        logits = self.head.logits(hidden)
        if self.dice is None:
            (rows,) = likeliest_of(logits[None], FOLLOW)
            found = [[(self.head.drafted[number], share) for number, share in row] for row in rows]
        else:
            whole = logits.new_full((len(logits), self.dice.size), -torch.inf)
            whole = whole.index_copy(1, self.head.draft_tokens, logits)
            found = [[self.dice.choose(row, depth)] for row, depth in zip(whole, depths, strict=True)]
        return [[(t, share) for t, share in row if share >= LEVELS[0] and t not in self.forbidden] for row in found]
