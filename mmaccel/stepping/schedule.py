"""Which steps of a run are computed for all tokens, for some, and for none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from mmaccel.errors import SettingError

# How much denser full steps lie at both ends of a run than in its middle: 0 is even, 1 as Chebyshev's nodes, at which
# interpolation errs least. Measured on a small Wan model with 40 steps, where the best choices for known velocities
# lie the same way; with 1, the second full step follows the first too soon.
DENSER = 0.75
# Where partial steps are asked for, every n-th skipped step is one. If all were, few full steps would be
# left, and the tokens that are never hot would hardly be computed: 13 dB worse and more, as measured.
PARTIAL_EVERY = 4
# Share of the computed steps that lies at the beginning, where it is decided what a clip becomes. Measured with Euler
# steps and UniPC on a small Wan model: with fewer, some prompts tip over into another clip; with more, the steps left
# are too few to forecast from.
WARMUP = 0.4
# Computed steps below which that share leaves too few for the rest, and below which a sampler of several past steps
# does as well with fewer steps: measured with 5 of 20, and 10 of 40.
FEWEST = 8
# Share of the steps from which on there are enough for the rest, however few: measured with 5 of 10 and 7 of 20. Below
# it distances that grow up to so much of the run are better than a warm-up, even gaps and a last step: measured with 10
# of 40 and 5 of 20, by Euler and UniPC, on clips and pictures; at half of 40 they are worse.
ENOUGH = 1 / 3
REACH = 0.9

# Share of a run over which the slope of a velocity holds. Measured with Euler steps on a small Wan model: at half of 40
# steps, whose gaps are a tenth of the run, the whole slope was better than half of it, most of all for the worst
# prompts; at a quarter of them, whose gaps are a fifth, half of it was better, and with longer gaps less of it still.
# Samplers of several past steps bend velocities themselves, and go by no more than half.
STRAIGHT = 0.1
MULTISTEP_TRUST = 0.5

# Steps of a run below which nothing is forecast, unless asked for: models for so few steps change too much in each.
FEW_STEPS = 10


@dataclass(frozen=True)
class Schedule:
    """Shares of the tokens that each step computes: 1 for a full step, 0 for a step that is only forecast.

    Attributes
    ----------
    fractions
        One per step.
    grows
        Whether the distances between full steps grow, over which no parabola is followed; default False.
    """

    fractions: tuple[float, ...]
    grows: bool = False

    def resolved(self, step: int, budget: float, solve: Callable[[int, float], Schedule]) -> Schedule:
        """The same before `step`, and from there what `solve(steps, budget)` makes of the rest of the budget."""
        done, left = self.fractions[:step], len(self.fractions) - step
        rest = max(0.0, budget * len(self.fractions) - sum(done)) / left
        return Schedule(done + solve(left, rest).fractions)

    def computing(self, steps: set[int]) -> Schedule:
        """The same at the same cost, with these steps computed, and as many of the others that were not.

        Examples
        --------
        >>> Schedule((1, 0, 1, 0, 1, 0, 1)).computing({0, 1}).fractions
        (1.0, 1.0, 1, 0, 0.0, 0, 1)
        """
        fractions = [*self.fractions]
        others = [k for k, fraction in enumerate(fractions[:-1]) if fraction == 1 and k not in steps]
        for k in _evenly(others, sum(fractions[k] < 1 for k in steps)):
            fractions[k] = 0.0
        for k in steps:
            fractions[k] = 1.0
        return Schedule(tuple(fractions))

    @property
    def longest_gap(self) -> int:
        """The most steps in a row that are not full, after the first that is."""
        marks = "".join("#" if f == 1 else "." for f in self.fractions).lstrip(".")
        return max(len(gap) for gap in marks.split("#"))

    @property
    def trust(self) -> float:
        """Share of a velocity's slope by which steps that are not computed may go: less over longer gaps.

        Examples
        --------
        >>> [default_schedule(40, budget).trust for budget in (0.5, 0.4, 0.25)]
        [1.0, 0.8, 0.5]
        """
        return min(1.0, STRAIGHT * len(self.fractions) / (self.longest_gap + 1))


def default_schedule(steps: int, budget: float, bends: bool = False) -> Schedule:
    """The full steps of a run for which nothing else is asked.

    A sampler that `bends` goes by several past clean samples, of which it has few that are true.
    """
    if bends and budget * steps < FEWEST:
        return equal_gaps(steps, budget)
    return growing(steps, budget) if budget < ENOUGH else refresh(steps, budget, default_warmup(steps, budget))


def default_warmup(steps: int, budget: float) -> int | None:
    """Full steps with which a run should begin; None for the least, where few steps are computed, far apart."""
    return round(WARMUP * budget * steps) if budget * steps >= FEWEST or budget >= ENOUGH else None


def inner(steps: int, warmup: int | None, cooldown: int | None, least: int) -> range:
    """The steps between the full ones at the beginning, by default `least`, and at the end, by default 1.

    Raises
    ------
    SettingError
        If these do not fit in the run.
    """
    warmup = min(steps, least) if warmup is None else warmup
    cooldown = min(max(0, steps - warmup), 1) if cooldown is None else cooldown
    if warmup + cooldown > steps:
        raise SettingError(
            f"{steps} steps are too few for a warm-up of {warmup} and a cool-down of {cooldown}: run at least"
            f" {warmup + cooldown} steps, or lower warmup= or cooldown="
        )
    return range(warmup, steps - cooldown)


def refresh(
    steps: int,
    budget: float,
    warmup: int | None = None,
    cooldown: int | None = None,
    interval: int | None = None,
    fraction: float = 0.0,
) -> Schedule:
    """Full steps, denser at both ends of the run, and if asked for a few between them that compute some tokens.

    Parameters
    ----------
    steps, budget
        Length of the run, and the share of its cost that may be spent.
    warmup, cooldown
        Full steps at the beginning and at the end; None for 1 each.
    interval
        A full step every so many steps between; None to spread what the budget pays for.
    fraction
        Share of tokens in the partial steps, 0 for none. Every fourth of the skipped steps is one, or with an
        `interval` as many as the budget has left for.

    Raises
    ------
    SettingError
        If warm-up and cool-down do not fit.

    Examples
    --------
    >>> "".join("#" if f == 1 else "+" if f else "." for f in refresh(40, 0.5, fraction=0.25).fractions)
    '###.#.#+#..#.#.+#..#...#+.#.#..#+#.#.###'
    """
    between = inner(steps, warmup, cooldown, 1)
    spend = max(0.0, budget * steps - (steps - len(between)))
    if interval is None:
        share = fraction / PARTIAL_EVERY
        full = spread(between, max(0, round((spend - share * len(between)) / (1 - share))))
        most = (len(between) - len(full)) // PARTIAL_EVERY
    else:
        full = set(between[interval - 1 :: interval])
        most = len(between)
    count = min(most, round((spend - len(full)) / fraction)) if fraction else 0
    partial = _evenly([k for k in between if k not in full], count)
    done = ((fraction if k in partial else float(k in full or k not in between)) for k in range(steps))
    return Schedule(tuple(done))


def growing(steps: int, budget: float) -> Schedule:
    """Full steps at distances that grow from the first one on, where it is decided what a clip becomes.

    Of `n` steps the one of index `i` lies at ``0.9 * steps * (i / (n - 1)) ** 2``, or behind the one before.

    Examples
    --------
    >>> "".join("#" if f else "." for f in growing(40, 0.25).fractions)
    '###.#..#...#....#.....#.....#.......#...'
    """
    count = min(steps, max(2, round(budget * steps)))
    found = [round(REACH * steps * (i / max(1, count - 1)) ** 2) for i in range(count)]
    for i in range(1, count):
        found[i] = min(max(found[i], found[i - 1] + 1), steps - count + i)
    return Schedule(tuple(float(step in found) for step in range(steps)), grows=True)


def equal_gaps(steps: int, budget: float) -> Schedule:
    """Full steps at equal distances from the first on, as a run of so few steps has them.

    Examples
    --------
    >>> "".join("#" if f else "." for f in equal_gaps(20, 0.25).fractions)
    '#...#...#...#...#...'
    """
    count = min(steps, max(1, round(budget * steps)))
    full = {step * steps // count for step in range(count)}
    return Schedule(tuple(float(step in full) for step in range(steps)))


def _evenly(steps: list[int], count: int) -> set[int]:
    """Some of these steps, `count` of them, evenly spread."""
    count = max(0, min(count, len(steps)))
    return {steps[int((i + 0.5) * len(steps) / count)] for i in range(count)}


def spread(between: range, count: int) -> set[int]:
    """`count` of the steps between those at the ends, denser towards these.

    Examples
    --------
    >>> sorted(spread(range(1, 19), 5))
    [2, 5, 9, 14, 17]
    """
    count = min(count, len(between))
    begin, length = between.start - 1, len(between) + 1
    even = [i / (count + 1) for i in range(1, count + 1)]
    places = [(1 - DENSER) * x + DENSER * (1 - math.cos(math.pi * x)) / 2 for x in even]
    found = [begin + round(length * place) for place in places]
    for i in range(count):  # one step each, from both sides
        found[i] = max(found[i], found[i - 1] + 1 if i else between.start)
    for i in reversed(range(count)):
        found[i] = min(found[i], found[i + 1] - 1 if i + 1 < count else between.stop - 1)
    return set(found)


def chosen(steps: int, computed: tuple[int, ...], first: int | None = None) -> Schedule:
    """Full steps at the given indices, and nowhere else.

    Parameters
    ----------
    steps
        Length of the run.
    computed
        Indices, two or more.
    first
        The step that the run begins with, if it is known.

    Raises
    ------
    SettingError
        If the run has fewer steps, or more than lie between any two of these before the first or behind the last.
    """
    advice = f"take as many as when these were solved, or calibrate with {steps}"
    if computed[-1] >= steps:
        raise SettingError(f"step {computed[-1]} is to be computed, and the run has only {steps} steps: {advice}")
    longest = max(after - before for before, after in itertools.pairwise(computed))
    if steps - 1 - computed[-1] > longest:
        raise SettingError(f"step {computed[-1]} is the last to be computed, and the run has {steps} steps: {advice}")
    if first is not None and computed[0] - first > longest:
        raise SettingError(
            f"step {computed[0]} is the first to be computed, and the run begins with step {first}: take the strength"
            " with which these were solved, or calibrate again"
        )
    return Schedule(tuple(float(k in computed) for k in range(steps)))


DIVISORS = (1, 2, 4, 8)


def groups(
    steps: int, budget: float, warmup: int | None = None, cooldown: int | None = None, interval: int | None = None
) -> Schedule:
    """The paper's shape: groups of tokens that are computed every step, every second, fourth and eighth.

    The groups' sizes fall or rise geometrically, so that the budget is met; all tokens are computed every `interval`
    steps, default 8.

    Examples
    --------
    >>> [f"{f:.2f}" for f in groups(20, 0.6).fractions[2:12]]
    ['1.00', '0.28', '0.54', '0.28', '0.78', '0.28', '0.54', '0.28', '1.00', '0.28']
    """
    between = inner(steps, warmup, cooldown, 2)
    first, last = between.start, steps - between.stop
    spend = budget * steps - first - last

    def shares(ratio: float) -> list[float]:
        sizes = [ratio**i for i in range(len(DIVISORS))]
        total = sum(sizes)
        return [
            1.0
            if (k - first) % (interval or max(DIVISORS)) == 0
            else sum(size for size, d in zip(sizes, DIVISORS, strict=True) if (k - first) % d == 0) / total
            for k in between
        ]

    low, high = 1e-3, 1e3  # of the ratio between a group and the next hotter one
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if sum(shares(middle)) > spend else (low, middle)
    fractions = [1.0] * first + [min(1.0, share) for share in shares(high)] + [1.0] * last
    return Schedule(tuple(fractions))
