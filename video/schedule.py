"""Which steps of a run are computed for all tokens, for some, and for none."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mmaccel.errors import SettingError

# How much denser full steps lie at both ends of a run than in its middle: 0 is even, 1 as Chebyshev's nodes, at which
# interpolation errs least. Measured on a small Wan model with 40 steps, where the best of all choices for known
# velocities look the same; with 1, the second step follows the first too soon.
DENSER = 0.75
# Partial steps of fewer tokens than this are not worth their cache.
LEAST_FRACTION = 0.02


@dataclass(frozen=True)
class Schedule:
    """Shares of the tokens that each step computes: 1 for a full step, 0 for a step that is only forecast.

    Attributes
    ----------
    fractions
        One per step.
    """

    fractions: tuple[float, ...]

    @property
    def is_partial(self) -> bool:
        """Whether any step computes some of the tokens, so that keys and values must be kept."""
        return any(0 < fraction < 1 for fraction in self.fractions)

    def cost(self, overhead: float) -> float:
        """Cost in full steps, where a partial step of a fraction f costs ``overhead + f``."""
        return sum(f if f in (0, 1) else min(1.0, f + overhead) for f in self.fractions)


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
            f"{steps} steps have no room for {warmup} of warm-up and {cooldown} of cool-down:"
            f" ask for num_inference_steps={warmup + cooldown} or more, or for a smaller warmup= or cooldown="
        )
    return range(warmup, steps - cooldown)


def refresh(
    steps: int,
    budget: float,
    warmup: int | None = None,
    cooldown: int | None = None,
    interval: int | None = None,
    overhead: float | None = None,
    fraction: float | None = None,
) -> Schedule:
    """Full steps, denser at both ends of the run, and what is left of the budget for the hottest tokens.

    Parameters
    ----------
    steps, budget
        Length of the run, and the share of its cost that may be spent.
    warmup, cooldown
        Full steps at the beginning and at the end; None for 1 each, and 2 at the beginning before partial steps.
    interval
        A full step every so many steps between; None to solve.
    overhead
        Measured cost of a partial step beyond its share of tokens, in full steps; None where partial steps are
        not to be made.
    fraction
        Share of tokens in the partial steps; None to solve.

    Raises
    ------
    SettingError
        If warm-up and cool-down do not fit.

    Examples
    --------
    >>> "".join("#" if f == 1 else "." for f in refresh(40, 0.25).fractions)
    '#.#...#....#....#......#....#....#...#.#'
    """
    between = inner(steps, warmup, cooldown, 1 if overhead is None else 2)
    spend = max(0.0, budget * steps - (steps - len(between)))
    regular = None if interval is None else set(between[interval - 1 :: interval])
    full = spread(between, _affordable(len(between), spend, overhead, fraction)) if regular is None else regular
    rest = len(between) - len(full)
    share = 0.0
    if overhead is not None and rest:
        share = (spend - len(full)) / rest - overhead if fraction is None else fraction
    share = share if share >= LEAST_FRACTION else 0.0
    return Schedule(tuple(1.0 if k in full or k not in between else min(share, 1.0) for k in range(steps)))


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


def _affordable(between: int, spend: float, overhead: float | None, fraction: float | None) -> int:
    """How many full steps the budget pays for, beside the partial ones."""
    if overhead is None:
        return round(spend)
    count, least = int(spend + 1e-6), overhead + (LEAST_FRACTION if fraction is None else fraction)
    # a whole interval for the full steps, so that what is left goes to the hottest tokens
    while count > 0 and count + least * (between - count) > spend + 1e-6:
        count -= 1
    return count


def chosen(steps: int, computed: tuple[int, ...]) -> Schedule:
    """The steps that were asked for, and no others.

    Raises
    ------
    SettingError
        If the run has fewer steps.
    """
    if computed[-1] >= steps:
        raise SettingError(
            f"step {computed[-1]} is to be computed, and the run has {steps} steps: they were solved for more;"
            f" ask for num_inference_steps of their calibration, or calibrate with {steps}"
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
    ['1.00', '0.37', '0.59', '0.37', '0.79', '0.37', '0.59', '0.37', '1.00', '0.37']
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
