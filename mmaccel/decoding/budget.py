"""How many tokens to verify at once: measured forward times against the run lengths seen so far."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from mmaccel.bench import synchronize

BUCKETS = (1, 4, 8, 16, 32, 64)


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
        Token counts, strictly ascending, at least 1.
    times
        Seconds at each bucket, positive; repaired to be non-decreasing.

    Raises
    ------
    ValueError
        If the two do not match, or a value is out of range.

    Examples
    --------
    >>> VerifyCost((1, 4), (0.010, 0.016)).seconds(2)
    0.012
    """

    buckets: tuple[int, ...]
    times: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.buckets or len(self.buckets) != len(self.times):
            raise ValueError(f"need one time per bucket, got buckets={self.buckets}, times={self.times}")
        if self.buckets[0] < 1 or any(a >= b for a, b in zip(self.buckets, self.buckets[1:], strict=False)):
            raise ValueError(f"buckets must ascend strictly from at least 1, got {self.buckets}")
        if any(not 0.0 < t < float("inf") for t in self.times):
            raise ValueError(f"times must be positive and finite, got {self.times}")
        object.__setattr__(self, "buckets", tuple(int(n) for n in self.buckets))
        object.__setattr__(self, "times", _monotone(self.times))

    def seconds(self, n: int) -> float:
        """Return r(n): linear between buckets, on the last slope above, constant below the first one."""
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        sizes, times = self.buckets, self.times
        if len(sizes) == 1 or n <= sizes[0]:
            return times[0]
        right = next((i for i in range(1, len(sizes)) if n <= sizes[i]), len(sizes) - 1)
        slope = (times[right] - times[right - 1]) / (sizes[right] - sizes[right - 1])
        return times[right - 1] + slope * (n - sizes[right - 1])

    @classmethod
    def measure(
        cls,
        forward: Callable[[int], object],
        buckets: Sequence[int] = BUCKETS,
        repeats: int = 3,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> VerifyCost:
        """Time `forward(n)` at each bucket: one warm-up call, then the median of `repeats` calls.

        CUDA is synchronised around each call. `clock` returns seconds.
        """
        if repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {repeats}")
        times = []
        for n in buckets:
            forward(n)
            runs = []
            for _ in range(repeats):
                synchronize()
                start = clock()
                forward(n)
                synchronize()
                runs.append(clock() - start)
            times.append(max(median(runs), 1e-9))  # a coarse clock may read 0
        return cls(tuple(buckets), tuple(times))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"buckets": list(self.buckets), "times": list(self.times)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> VerifyCost:
        """Rebuild what `to_dict` returned."""
        return cls(tuple(data["buckets"]), tuple(data["times"]))


class Budget:
    """Choose how many tokens the next forward verifies, 1 being plain decoding.

    The choice maximises expected emitted tokens per second over the recent run lengths. It sees **only the
    lengths of committed runs**, never drafts that were not tested yet: those survive into later rounds in
    Jacobi-style loops, and a width chosen by looking at them would be correlated with the tokens it is about
    to admit and bias the output law.

    Deterministic: `width()` is a function of the observations alone.

    Parameters
    ----------
    cost
        Measured cost of a forward.
    candidates
        Widths to choose from (last committed token + drafts); 1 is always among them.
    switch_off
        Least speed-up over plain decoding worth having.
    history
        Number of recent wide runs that count.
    retry
        Plain runs after which wide passes are tried afresh.
    trial
        Runs that a width needs before its own figures are believed.

    Raises
    ------
    ValueError
        If a setting is out of range.

    Examples
    --------
    >>> budget = Budget(VerifyCost((1, 4), (1.0, 10.0)), candidates=(4,))
    >>> budget.width()  # four tokens can never repay ten times the cost
    1
    """

    # A width is "often filled" if at least this share of its runs committed every token.
    _FULL = 0.25

    def __init__(
        self,
        cost: VerifyCost,
        candidates: Sequence[int] = BUCKETS,
        switch_off: float = 1.05,
        history: int = 64,
        *,
        retry: int = 64,
        trial: int = 8,
    ) -> None:
        if not candidates or min(candidates) < 1:
            raise ValueError(f"candidates must be widths of at least 1, got {tuple(candidates)}")
        if not switch_off > 0:
            raise ValueError(f"switch_off must be positive, got {switch_off}")
        if retry < 1 or not 1 <= trial <= history:
            raise ValueError(f"need retry >= 1 and 1 <= trial <= history, got {retry}, {trial}, {history}")
        self.cost = cost
        self.candidates = tuple(sorted({1, *(int(w) for w in candidates)}))
        self.switch_off = switch_off
        self.retry = retry
        self.trial = trial
        self._runs: deque[tuple[int, int]] = deque(maxlen=history)
        self._plain = 0

    def observe(self, width: int, emitted: int | Sequence[int]) -> None:
        """Record the tokens committed by one forward of `width` tokens, per sequence of the batch.

        Raises ValueError unless 1 <= emitted <= width.
        """
        lengths = [emitted] if isinstance(emitted, int) else [int(n) for n in emitted]
        if any(not 1 <= n <= width for n in lengths):
            raise ValueError(f"emitted must be between 1 and width={width}, got {emitted}")
        if width > 1:
            self._plain = 0
            self._runs.extend((width, n) for n in lengths)
            return
        self._plain += 1
        if self._plain >= self.retry:
            self._plain = 0
            self._runs.clear()  # the content may have changed: old runs must not veto a new trial

    def width(self) -> int:
        """Return the width of the next forward."""
        expected = self._expected()
        plain = 1.0 / self.cost.seconds(1)
        rates = {w: tokens / self.cost.seconds(w) for w, tokens in expected.items()}
        best = max(rates, key=lambda w: (rates[w], -w), default=1)
        return best if best > 1 and rates[best] >= self.switch_off * plain else 1

    def _expected(self) -> dict[int, float]:
        """Return expected emitted tokens by width: measured, and optimistic for the next larger one."""
        wide = [w for w in self.candidates if w > 1]
        measured: dict[int, float] = {}
        for w in wide:
            runs = [min(n, w) for used, n in self._runs if used >= w]
            if len(runs) >= self.trial:
                measured[w] = fmean(runs)
        if not measured:
            return self._first(wide)
        top = max(measured)
        larger = [w for w in wide if w > top]
        full = fmean(n >= top for used, n in self._runs if used >= top)
        if larger and full >= self._FULL:
            # As if every run that filled the present width went on to the end of the next one.
            measured[larger[0]] = measured[top] + full * (larger[0] - top)
        elif larger and self._climbing(measured, top):
            # Drafts of a wider window are redrawn more often before they are tested, and so accepted more
            # often; that shows only when it is tried.
            measured[larger[0]] = 1.01 * measured[top] * self.cost.seconds(larger[0]) / self.cost.seconds(top)
        return measured

    def _climbing(self, measured: dict[int, float], top: int) -> bool:
        """Whether the widest width that was tried beats all narrower ones."""
        rate = {w: tokens / self.cost.seconds(w) for w, tokens in measured.items()}
        plain = self.switch_off / self.cost.seconds(1)
        return rate[top] >= plain and all(rate[top] >= rate[w] for w in rate)

    def _first(self, wide: Sequence[int]) -> dict[int, float]:
        """Return the smallest width that would pay if all its drafts were accepted."""
        for w in wide:
            if w * self.cost.seconds(1) >= self.switch_off * self.cost.seconds(w):
                return {w: float(w)}
        return {}
