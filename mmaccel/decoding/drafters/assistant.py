"""Guesses of a second, smaller model, asked as long as its answer is worth its time."""

from __future__ import annotations

from bisect import bisect
from collections import Counter, deque
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from statistics import fmean, median
from typing import Any

import torch
from transformers import DynamicCache

from mmaccel.cache.argument import cached

from ..generated_text import positions_of
from ..loop import clock
from ..matching import Likely
from ..passes.rollback import record_past
from .pass_cost import PassCost
from .sources import LEVELS, Context, CostlySource, Guess, State

RECENT = 9  # steps whose seconds count
GUESSES = 64  # first ones, whose probabilities count
FEW = 16  # tokens of a step that counts: one of more reads a prompt, or a long draft that was right
FADE = 0.95  # how much of what is known of its guesses counts after each token
AGAIN = 64  # questions after which it is asked once more, where it was not worth its time
TRIAL = 4  # steps before what they take is believed: the first ones warm up
EXPECTED: dict[Hashable, float] = {
    (kind, level + 1): 0.9 * share for kind in ("likeliest", "drawn") for level, share in enumerate(LEVELS)
}
Chooser = Callable[[torch.Tensor, int], tuple[int, float]]


def likeliest(logits: torch.Tensor, depth: int) -> tuple[int, float]:
    """The likeliest token by logits `[V]`, and its probability."""
    probability, token = logits.float().softmax(-1).max(-1)
    return int(token), float(probability)


class AssistantCost:
    """What a step of an assistant costs, and how often its guesses are right; shared by all texts of a session.

    Parameters
    ----------
    plain
        Of the passes of the model.
    rows
        Texts of a batch. A token that one of them gains is worth its share of a pass; a step that several take at once
        costs each its share, too.
    """

    def __init__(self, plain: PassCost, rows: int = 1) -> None:
        self.plain, self.rows = plain, rows
        self.seconds: deque[float] = deque(maxlen=RECENT)
        self._right = self._expected = 2.0  # guesses that were right, and that should have been
        self._sure = deque[tuple[float, ...]]([(2 / 3,)], maxlen=GUESSES)
        self._idle: Counter[int] = Counter()  # questions that did not pay since the last that did, by row

    def observe_step(self, seconds: float, tokens: int = 1, rows: int = 1) -> None:
        """A step over so many tokens of each of some rows took so long; it is no part of the pass that verifies."""
        if tokens <= FEW:
            self.seconds.append(seconds / rows)
        self.plain.leave_out(seconds)

    def observe_guess(self, is_right: bool, probability: float) -> None:
        """Its first guess for a pass, of which it was so sure, was right or not."""
        self.observe_path(int(is_right), 1, (probability,))

    def observe_path(self, right: int, judged: int, shares: tuple[float, ...]) -> None:
        """Of its first path for a pass so many tokens were right; each had this share, of the first ones judged."""
        self._right, self._expected = self._right * FADE + right, self._expected * FADE + sum(shares[:judged])
        self._sure.append(shares)

    def observe_written(self, guess: tuple[int, float] | None, token: int) -> None:
        """The model wrote this token where the first guess, if there was one, stood with its probability."""
        if guess is not None:
            self.observe_guess(guess[0] == token, guess[1])

    def is_worth(self, share: float, row: int = 0, place: float = 0.0) -> bool:
        """Whether to ask after a path that is right with this probability, now and then also where it does not pay."""
        worth = self.pays(share, place)
        self._idle[row] = 0 if worth else self._idle[row] + 1
        return worth or self._idle[row] % AGAIN == 0

    def pays(self, share: float, place: float = 0.0) -> bool:
        """Whether what is asked after a path that is right with this probability pays for itself.

        SpecDec++ (Huang et al., 2024) stops a draft where a rejection is likely; here what a step costs decides how
        likely that may be, and what a `place` in the pass costs, of a plain one: a guess that is not worth that is not
        verified, and its step was for nothing.
        """
        if self.plain.always or len(self.seconds) < TRIAL:
            return True
        ratio = self.rows * median(self.seconds) / self.plain.curve.seconds(1)
        share *= self._right / self._expected
        return fmean(sum(max(0.0, share * each - place) for each in shares) for shares in self._sure) > ratio


class Assistant(CostlySource):
    """What a smaller model would write, step by step.

    Parameters
    ----------
    model
        A decoder with the same tokenizer, and a cache that can be cropped.
    cost
        Of its steps.
    forbidden
        Tokens that it is not shown, and that are never proposed.
    choose
        A token by logits `[V]`, so many tokens after the next one, and how sure it is; the likeliest by default, in
        a sampled text :meth:`mmaccel.decoding.dice.Dice.choose`.
    row
        Of the batch.
    """

    def __init__(
        self,
        model: Any,
        cost: AssistantCost,
        forbidden: Container[int] = (),
        choose: Chooser = likeliest,
        row: int = 0,
    ) -> None:
        self.model, self.cost, self.forbidden, self.choose, self.row = model, cost, forbidden, choose, row
        self.kind = "likeliest" if choose is likeliest else "drawn"
        self._now = clock(model.device)  # as the passes that it is weighed against are timed
        self._cache: Any = DynamicCache(config=model.config.get_text_config(decoder=True))
        record_past(self._cache.layers)  # guesses that are taken back uncover what is out of a window
        self._text: list[int] = []
        self._held: list[int] = []  # tokens in the cache
        self._read = 0  # tokens of the last step
        self._longest = positions_of(model)
        self._first: tuple[int, float] | None = None  # its guess for the next token, and how sure it is

    def begin(self, tokens: Sequence[int]) -> None:
        self._text, self._first = self._known(tokens), None

    def _known(self, tokens: Sequence[int]) -> list[int]:
        return [token for token in tokens if token not in self.forbidden]

    def root(self) -> State:
        return (), 1.0

    def is_worth(self, state: State, left: float = 1.0, place: float = 0.0) -> bool:
        tokens, share = state
        fits = 0 < len(self._text) + len(tokens) <= self._longest
        return fits and self.cost.is_worth(share * left, self.row, place)

    def guesses(self, state: State) -> Iterator[Guess]:
        tokens, share = state
        began = self._now()
        token, probability = self.choose(self._logits([*self._text, *tokens]), len(tokens))
        self.cost.observe_step(self._now() - began, self._read)
        if not tokens:
            self._first = token, probability
        if token not in self.forbidden:
            level = bisect(LEVELS, probability)
            yield token, (self.kind, level), ((*tokens, token), share * probability)

    def learn(self, tokens: Sequence[int], ends: Sequence[Context], likely: Sequence[Likely]) -> None:
        self.cost.observe_written(self._first, tokens[0])
        self._text, self._first = [*self._text, *self._known(tokens)], None

    @torch.no_grad()
    def _logits(self, ids: list[int]) -> torch.Tensor:
        """Logits `[V]` after a text; what the cache holds of it is not read again."""
        same = next((n for n, (a, b) in enumerate(zip(ids, self._held, strict=False)) if a != b), None)
        same = min(len(ids) - 1, len(self._held) if same is None else same)
        if same < len(self._held):
            self._cache.crop(same - len(self._held))
        fed, self._read = torch.tensor([ids[same:]], device=self.model.device), len(ids) - same
        output = self.model(fed, **cached(self._cache), use_cache=True, logits_to_keep=1)
        self._held = list(ids)
        return output.logits[0, -1]
