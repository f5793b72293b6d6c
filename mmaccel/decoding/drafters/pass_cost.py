"""What a pass costs by its width, measured while decoding, and the draft that is worth most at that cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from math import log2
from statistics import fmean, median

from ..verify_cost import VerifyCost

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
STEEP = 0.3  # of a plain pass, for each doubling, until it is measured: as SmolLM2-135M on two CPU cores has it
RECENT, FEWEST = 9, 2  # passes of a width that count, and without which it is not believed
MARGIN = 1.2  # what a node must save of what it costs, as neither is known well: best on 14 texts by SmolLM2-135M
# Passes after which a plain one is timed again, where drafts save less than so many of them: what it cost may have
# changed.
STALE, CLEAR = 40, 1.0
# Plain passes that drafts may lose before they are given up, where much has to be read again, and how much of that is
# forgiven in each pass without them.
PATIENCE, FORGIVEN = 4.0, 0.03


class PassCost:
    """Seconds of recent passes by width; a width of the loop that learns from each pass.

    Parameters
    ----------
    most
        Tokens that a pass may verify, the last committed one included.
    always
        Whether all nodes are verified, whatever they cost.

    Attributes
    ----------
    curve
        Cost by width.

    Examples
    --------
    >>> cost = PassCost(9)
    >>> cost.nodes([0.9, 0.8, 0.7, 0.1, 0.05]), cost.nodes([0.1])
    (3, 0)
    """

    def __init__(self, most: int, always: bool = False) -> None:
        self.most, self.always = most, always
        self._seconds: dict[int, deque[float]] = {}
        self._since = 0  # the last plain pass
        self._left_out = 0.0  # seconds since the last pass that are no part of the next one
        self._medians: dict[int, float] = {}  # of the widths that are believed
        self._lost = 0.0  # plain passes
        self._is_prompt = False  # what the next pass reads
        self._fit()

    def width(self) -> int:
        return self.most

    def begin(self) -> None:
        """A text begins: the next pass reads its prompt, and says nothing of drafts."""
        self._is_prompt = True

    def leave_out(self, seconds: float) -> None:
        """So much of the time until the next pass has ended is no part of it."""
        self._left_out += seconds

    def observe(self, width: int, emitted: list[int], seconds: float) -> None:
        """Learn the seconds of a pass, unless it is that of a prompt."""
        left_out, self._left_out = self._left_out, 0.0
        if self._is_prompt:
            self._is_prompt = False
            return
        self._since = 0 if width == 1 else self._since + 1
        seconds = max(seconds - left_out, 1e-9)
        lost = -FORGIVEN if width == 1 else seconds / self.curve.seconds(1) - fmean(emitted)
        self._lost = max(-PATIENCE, self._lost + lost)
        times = self._seconds.setdefault(width, deque(maxlen=RECENT))
        times.append(seconds)
        if len(times) >= FEWEST and self._medians.get(width) != (middle := median(times)):
            self._medians[width] = middle
            self._fit()

    def _fit(self) -> None:
        """The curve: as measured, and below and above what was measured as steep as on other machines."""
        known = dict(self._medians) or {1: 1.0}
        least, most = min(known), max(known)
        known.setdefault(1, known[least] / _expected(least))
        beyond = {w: known[most] * _expected(w) / _expected(most) for w in WIDTHS if w > most}
        self.curve = VerifyCost(*zip(*sorted({**known, **beyond}.items()), strict=True))
        plain = self.curve.seconds(1)
        self._price = {w: MARGIN * (self.curve.seconds(w) / plain - 1) for w in WIDTHS}

    def nodes(self, shares: Sequence[float], again: bool = False) -> int:
        """How many nodes of a draft to verify that are accepted with these probabilities, the likeliest first.

        As many as save the most time, if a token saves that of a plain pass, and if what was accepted has to be read
        `again` costs another pass over it.
        """
        if self.always or not shares:
            return len(shares)
        if again and (self._lost > PATIENCE or len(self._seconds.get(1, ())) < FEWEST):
            return 0
        curve, best, most = self.curve, 0, 0.0
        sums = list(accumulate(shares, initial=0.0))
        for width in WIDTHS[1:]:
            if width > len(sums):
                break
            saved = sums[width - 1] - self._price[width]
            if again:
                saved -= curve.seconds(2 + round(sums[width - 1])) / curve.seconds(1) - 1
            if saved > most:
                best, most = width - 1, saved
        return 0 if self._since >= STALE and most < CLEAR else best

    def may_grow(self, count: int, most: int, accepted: float, share: float) -> bool:
        """Whether a draft of more than `count` nodes, and at most `most`, can be worth its cost.

        So many of the first `count` are `accepted`, and no node behind them is more probable than `share`.
        """
        return self.always or any(
            accepted + (width - 1 - count) * share > self._price[width] for width in WIDTHS if count < width - 1 <= most
        )

    def place(self, width: int) -> float:
        """What a token more must save that stands behind so many others in a pass, of a plain pass.

        Of those that may follow as many are counted as are cheapest together: where the second token makes a pass
        slow, and the third to the eighth do not, they share its price.
        """
        if self.always:
            return 0.0
        curve = self.curve
        costs = [(curve.seconds(w) - curve.seconds(width)) / (w - width) for w in WIDTHS if width < w <= self.most]
        return MARGIN * min(costs, default=0.0) / curve.seconds(1)


def _expected(width: int) -> float:
    return 1 + STEEP * log2(width)
