"""Which steps of a run are computed for all tokens, for some, and for none."""

from __future__ import annotations

from dataclasses import dataclass

from mmaccel.errors import SettingError

# Measured on a small Wan model, 40 steps: velocities change most in the first two and the last six steps, and at a
# smaller budget refreshing in between is worth more than the last steps.
WARMUP = 3 / 40
COOLDOWN_SLOPE, COOLDOWN_AT_0 = 16 / 40, -3 / 40
# Partial steps of fewer tokens than this are not worth their cache.
LEAST_FRACTION = 0.02


@dataclass(frozen=True)
class Schedule:
    """Shares of the tokens that each step computes: 1 for a full step, 0 for a step that is only forecast.

    Attributes
    ----------
    fractions
        One per step.
    warmup, cooldown
        Full steps at either end.
    """

    fractions: tuple[float, ...]
    warmup: int
    cooldown: int

    @property
    def is_partial(self) -> bool:
        """Whether any step computes some of the tokens, so that keys and values must be kept."""
        return any(0 < fraction < 1 for fraction in self.fractions)

    def cost(self, overhead: float) -> float:
        """Cost in full steps, where a partial step of a fraction f costs ``overhead + f``."""
        return sum(f if f in (0, 1) else min(1.0, f + overhead) for f in self.fractions)


def ends(steps: int, budget: float, warmup: int | None, cooldown: int | None) -> tuple[int, int]:
    """Full steps at the beginning and at the end.

    Raises
    ------
    SettingError
        If they do not fit in the run.
    """
    room = max(2, round(budget * steps))
    first = min(max(2, round(WARMUP * steps)), room - 1, steps) if warmup is None else warmup
    last = max(1, round((COOLDOWN_SLOPE * budget + COOLDOWN_AT_0) * steps)) if cooldown is None else cooldown
    if cooldown is None:
        last = min(max(1, min(last, room - first)), steps - first)
    if first + last > steps:
        raise SettingError(
            f"{steps} steps have no room for {first} of warm-up and {last} of cool-down:"
            f" ask for num_inference_steps={first + last} or more, or for a smaller warmup= or cooldown="
        )
    return first, last


def refresh(
    steps: int,
    budget: float,
    warmup: int | None = None,
    cooldown: int | None = None,
    interval: int | None = None,
    overhead: float | None = None,
    fraction: float | None = None,
) -> Schedule:
    """Full steps at both ends and at intervals between them, and what is left of the budget for the hottest tokens.

    Parameters
    ----------
    steps, budget
        Length of the run, and the share of its cost that may be spent.
    warmup, cooldown, interval
        Full steps at the beginning and at the end, and every how many steps between them; None to solve.
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
    >>> "".join("#" if f == 1 else "." for f in refresh(20, 0.5).fractions)
    '###.#.#.#..#.#.#.###'
    """
    first, last = ends(steps, budget, warmup, cooldown)
    between = range(first, steps - last)
    spend = max(0.0, budget * steps - first - last)
    regular = None if interval is None else set(between[interval - 1 :: interval])
    full = _spread(between, spend, overhead, fraction) if regular is None else regular
    rest = len(between) - len(full)
    share = 0.0
    if overhead is not None and rest:
        share = (spend - len(full)) / rest - overhead if fraction is None else fraction
    share = share if share >= LEAST_FRACTION else 0.0
    fractions = [1.0 if k in full or k not in between else min(share, 1.0) for k in range(steps)]
    return Schedule(tuple(fractions), first, last)


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
    return Schedule(tuple(float(k in computed) for k in range(steps)), 1, 0)


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
    first, last = ends(steps, budget, warmup, cooldown)
    between = range(first, steps - last)
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
    return Schedule(tuple(fractions), first, last)


def _spread(between: range, spend: float, overhead: float | None, fraction: float | None) -> set[int]:
    """Full steps evenly between the ends, as many as the budget pays for beside the partial ones."""
    count = int(spend + 1e-6)
    if overhead is not None:
        least = overhead + (LEAST_FRACTION if fraction is None else fraction)
        # a whole interval for the full steps, so that what is left goes to the hottest tokens
        while count > 0 and count + least * (len(between) - count) > spend + 1e-6:
            count -= 1
    if count <= 0:
        return set()
    gap = (len(between) + 1) / (count + 1)
    return {between.start + min(len(between) - 1, round(gap * (i + 1)) - 1) for i in range(count)}
