"""Measured seconds of a target's pass, by the number of tokens in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


def _monotone(values: Sequence[float]) -> tuple[float, ...]:
    """Least-squares non-decreasing fit (pool adjacent violators): a wider pass is never really faster."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (high, n), (low, m) = pools[-2:]
            pools[-2:] = [((high * n + low * m) / (n + m), n + m)]
    return tuple(value for value, count in pools for _ in range(count))


@dataclass(frozen=True)
class VerifyCost:
    """Measured seconds r(n) of an n-token forward.

    Attributes
    ----------
    buckets
        Token counts, strictly ascending.
    times
        Seconds at each bucket; repaired to be non-decreasing.

    Examples
    --------
    >>> VerifyCost((1, 4), (0.010, 0.016)).seconds(2)
    0.012
    """

    buckets: tuple[int, ...]
    times: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", _monotone(self.times))

    def seconds(self, n: int) -> float:
        """Return r(n): linear between buckets, on the last slope above, constant below the first one."""
        sizes, times = self.buckets, self.times
        if len(sizes) == 1 or n <= sizes[0]:
            return times[0]
        right = next((i for i in range(1, len(sizes)) if n <= sizes[i]), len(sizes) - 1)
        slope = (times[right] - times[right - 1]) / (sizes[right] - sizes[right - 1])
        return times[right - 1] + slope * (n - sizes[right - 1])

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"buckets": list(self.buckets), "times": list(self.times)}
