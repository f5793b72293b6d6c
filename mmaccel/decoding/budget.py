"""How many tokens to verify at once: measured forward times against the run lengths seen so far."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from math import log2
from statistics import fmean

from .verify_cost import VerifyCost

WIDTHS = (1, 4, 8, 16, 32, 64)


class Budget:
    """Choose how many tokens the next forward verifies, 1 being plain decoding.

    The first passes are plain ones, which tell what a token costs, then somewhat wider ones until drafts begin to
    be accepted, then as wide as is cheap. Of the widths that were tried the one with the most tokens per second is
    taken; runs of a wide window also tell what a narrower one would have committed, and never the other way round.
    Wide passes are given up once they have lost `PATIENCE` passes of plain decoding, and tried again after a while.

    It sees **only the lengths of committed runs and the seconds they took**, never drafts that were not tested
    yet: those survive into later rounds in Jacobi-style loops, and a width chosen by looking at them would be
    correlated with the tokens it is about to admit and bias the output distribution.

    Deterministic: `width()` is a function of the observations alone.

    Parameters
    ----------
    candidates
        Widths to choose from (last committed token + drafts); 1 is always among them.

    Attributes
    ----------
    cost
        Seconds of recent passes, the least of each width: what other work on the machine takes only adds. None
        before any is known.

    Examples
    --------
    >>> budget = Budget()
    >>> budget.width()  # the first passes tell what plain decoding costs
    1
    """

    START = 8  # width while no draft is accepted yet: the widest candidate up to it
    HISTORY = 32  # recent wide runs that count
    # Wide passes after a plain one that say nothing of a width, at least: its drafts are guesses, not yet refined.
    SETTLE = 6
    TRIAL = 12  # runs that a width needs before its own figures are believed
    # Plain passes that wide ones may lose before they are given up; what they gained before pays for as many more.
    PATIENCE = 10.0
    # Share of a plain pass by which that loss shrinks with each of them; at half of PATIENCE wide passes are tried
    # again. So decoding where no draft is ever accepted stays within this share of plain decoding, and PATIENCE passes.
    FORGIVE = 0.02
    TIMED = 2  # timings that a width needs, besides the first one, which warms up
    RECENT = 8  # timings of a width that count
    FEW = 3  # accepted drafts that show that there are any to be had
    # While few plain passes are timed, a wide one is taken to cost at least this many of them.
    LEAST = 1.25
    # A window that costs up to this many plain passes is tried before anything is known of its drafts.
    CHEAP = 2.75
    # Drafts of half the window are redrawn less often before they are tested: this share of them is accepted.
    MATURE = 0.65
    # Rates differ less by width than by chance: another one has to be better by this factor.
    INERTIA = 1.25

    def __init__(self, candidates: Sequence[int] = WIDTHS) -> None:
        self.candidates = tuple(sorted({1, *candidates}))
        self.wide = self.candidates[1:]
        self.first = max((w for w in self.wide if w <= self.START), default=min(self.wide, default=1))
        self._runs: deque[tuple[int, int]] = deque(maxlen=self.HISTORY)
        self._seconds: dict[int, deque[float]] = {}
        self.cost: VerifyCost | None = None
        self._since, self._accepted = 0, 0.0  # wide passes, and drafts accepted by them, since the last plain one
        self._passes: Counter[int] = Counter()  # wide passes that are judged, by width
        self._gained = 0.0  # their tokens, what was gained before, and what was forgiven since
        self._plain = False
        self._now = 0  # the last wide width

    def begin(self) -> None:
        """A new picture: nothing is drafted yet. What was learned of widths and costs stays."""
        self._since, self._accepted = 0, 0.0

    @property
    def _settled(self) -> bool:
        """Whether drafts had the time to be refined since the last plain pass, and some of them were accepted."""
        return self._since >= self.SETTLE and self._accepted >= self.FEW

    def observe(self, width: int, emitted: Sequence[int], seconds: float) -> None:
        """Record the tokens committed by one forward of `width` tokens, by sequence of the batch, and its time."""
        if width in self.candidates:
            self._time(width, seconds)
        if width > 1:
            self._learn(width, emitted)
        else:
            self.begin()
            self._gained += self.FORGIVE
        self._judge()

    def _time(self, width: int, seconds: float) -> None:
        if width not in self._seconds:
            self._seconds[width] = deque(maxlen=self.RECENT)  # the first pass of a shape warms up
            return
        self._seconds[width].append(max(seconds, 1e-9))  # a coarse clock may read 0
        timed = {w: min(times) for w, times in sorted(self._seconds.items()) if len(times) >= self.TIMED}
        self.cost = VerifyCost(tuple(timed), tuple(timed.values())) if timed else None

    def _learn(self, width: int, lengths: Sequence[int]) -> None:
        self._passes[width] += 1
        self._gained += fmean(lengths)
        if width in self.candidates:
            self._now = width
        if self._settled:
            self._runs.extend((width, n) for n in lengths)
        self._since += 1
        self._accepted += fmean(lengths) - 1

    def _judge(self) -> None:
        """Give wide passes up, or try them again."""
        loss = sum(n * self._ratio(width) for width, n in self._passes.items()) - self._gained
        if loss <= -self.PATIENCE:
            self._passes.clear()
            self._gained = self.PATIENCE
        self._plain = loss > (self.PATIENCE / 2 if self._plain else self.PATIENCE)

    def _ratio(self, width: int) -> float:
        """Cost of a pass in plain ones."""
        if self.cost is None or self.cost.buckets[0] > 1:
            return 1.0
        least = self.LEAST if len(self._seconds[1]) < self.RECENT else 1.0
        return max(least, self.cost.seconds(width) / self.cost.seconds(1))

    def width(self) -> int:
        """Return the width of the next forward."""
        if self._plain or not self.wide or len(self._seconds.get(1, ())) < self.TIMED:
            return 1
        if not self._settled:
            return self.first
        expected = self._expected()
        if not expected:
            return self._begun()
        top = max(expected)
        wider = next((w for w in self.wide if w > top), None)
        if wider is not None and self._is_worth_a_trial(wider, top, expected[top]):
            return wider
        rates = {w: tokens / self._ratio(w) for w, tokens in expected.items()}
        best = max(rates, key=lambda w: (rates[w], -w))
        settled = self._now in rates and rates[best] < self.INERTIA * rates[self._now]
        return self._now if settled else best

    def _begun(self) -> int:
        """A width for the first settled runs: as wide as is cheap."""
        return max((w for w in self.wide if self._ratio(w) <= self.CHEAP), default=self.wide[0])

    def _expected(self) -> dict[int, float]:
        """Expected tokens of a pass, by width, from runs at least as wide."""
        expected: dict[int, float] = {}
        for w in self.wide:
            runs = [1 + (min(n, w) - 1) * self.MATURE ** log2(used / w) for used, n in self._runs if used >= w]
            if len(runs) >= self.TRIAL:
                expected[w] = fmean(runs)
        return expected

    def _is_worth_a_trial(self, wider: int, top: int, tokens: float) -> bool:
        """Whether a width that was not tried is cheap, or would pay if every run that filled `top` filled it too."""
        full = fmean(n >= top for used, n in self._runs if used >= top)
        reach = tokens + full * (wider - top)
        return self._ratio(wider) <= self.CHEAP or reach / self._ratio(wider) > self.INERTIA * tokens / self._ratio(top)
