"""Curves of speed-up and quality: the points that a plan keeps, and how one of them is picked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import SettingError
from ..method import Method, is_number
from ..registry import is_saved

NEAR = 0.97  # of the target speed-up: timings are noisy
Point = dict[str, Any]


def point(
    method: Method, speedup: float, metric: str, title: str, quality: float | None, worst: float | None = None
) -> Point:
    """One measured setting, ready for a plan's JSON.

    Parameters
    ----------
    speedup
        Plain time divided by its time.
    metric, title
        Key of the quality metric, and its title with the unit.
    quality, worst
        Mean over seeds, and value of the worst seed; None if not measured.
    """
    found = {"name": method.name, "settings": method.settings(), "exact": bool(method.exact), "speedup": speedup}
    return {**found, "metric": metric, "title": title, metric: quality, "worst": quality if worst is None else worst}


def is_point(found: Any) -> bool:
    """Whether it is what :func:`point` makes, as far as a plan prints it."""
    if not is_saved(found):
        return False
    metric, title = found.get("metric", "psnr"), found.get("title", "")
    if not (isinstance(metric, str) and metric in found and isinstance(title, str)):
        return False
    quality = found[metric]
    figure = quality is None or isinstance(quality, float) or is_number(quality, -math.inf)
    return figure and is_number(found.get("speedup"), 0)


def quality_of(found: Point) -> float | None:
    """The mean quality of a point."""
    return found[found.get("metric", "psnr")]


def describe(found: Point) -> str:
    """Speed-up and quality of a point in words.

    Examples
    --------
    >>> describe({"speedup": 2.0, "metric": "psnr", "title": "PSNR dB", "psnr": 31.25})
    '2.00x, PSNR dB 31.25'
    """
    quality, title = quality_of(found), found.get("title", "PSNR dB")
    return f"{found['speedup']:.2f}x" + ("" if quality is None else f", {title} {quality:.4g}")


@dataclass(frozen=True)
class Goal:
    """The goal that a point has to reach.

    Parameters
    ----------
    target_speedup
        Speed-up above 1; within 3 % of it counts, since timings are noisy.
    floor
        Quality that the worst seed has to keep; an upper bound if lower is better.
    higher_is_better
        Of the metric.

    Raises
    ------
    SettingError
        If a number is outside its range.
    """

    target_speedup: float | None = None
    floor: float | None = None
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        speedup, floor = self.target_speedup, self.floor
        if speedup is not None and not (is_number(speedup, 1) and speedup > 1):
            raise SettingError(f"target_speedup={speedup!r}: it must be a number above 1, such as 1.8")
        if floor is not None and not is_number(floor, -math.inf):
            raise SettingError(f"floor={floor!r}: it must be a finite number in the metric that compare shows first")

    def is_fast(self, found: Point) -> bool:
        return self.target_speedup is None or found["speedup"] >= NEAR * self.target_speedup

    def is_good(self, found: Point) -> bool:
        """Whether it keeps the floor; exact settings do by definition."""
        if self.floor is None or found["exact"]:
            return True
        worst = found["worst"]
        return worst is not None and self.sign * worst >= self.sign * self.floor

    @property
    def sign(self) -> int:
        return 1 if self.higher_is_better else -1

    def order(self, found: Point) -> tuple[float, float]:
        """Sorts points from worse to better: by speed where a floor is kept, else by quality."""
        value = quality_of(found)
        known = -math.inf if value is None else self.sign * value
        quality = math.inf if found["exact"] else known
        speedup = float(found["speedup"])
        return (speedup, quality) if self.floor is not None or self.target_speedup is None else (quality, speedup)

    def pick(self, points: Sequence[Point]) -> int | None:
        """Index of the best point that reaches the whole goal; None if none does."""
        good = [number for number, found in enumerate(points) if self.is_fast(found) and self.is_good(found)]
        return max(good, key=lambda number: self.order(points[number]), default=None)
