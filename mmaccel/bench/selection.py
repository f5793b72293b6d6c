"""Which rows of a benchmark the index shows: those that no other makes pointless, and what anyone can do instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from ..tuning.curve import NEAR

if TYPE_CHECKING:
    from .benchmark import Group, Row, Section

CLOSE_ENOUGH = 1.15  # times the time that a row was tuned to
Found: TypeAlias = "list[tuple[Row, str]]"  # rows with what they are: "method", "simple", "other"


def select(section: Section, group: Group) -> Found:
    """The rows of a table that are shown; our own are sorted, fastest last."""
    ours = [r for r in group if role_of(r) == "method"]
    if any(score(section, r, group) is not None for r in ours) and not section.is_mixed:
        ours = front(section, ours, group)
    others = [r for r in group if role_of(r) == "other"]
    others = sorted(_in_time(others), key=lambda r: score(section, r, group) or 0.0)[-1:]
    found = [*((r, "method") for r in sorted(ours, key=_place)), *((r, "other") for r in others)]
    return [*found, *((r, "simple") for r in group if role_of(r) == "simple")]


def role_of(row: Row) -> str:
    """What a row is: ``"method"``, ``"simple"``, ``"other"`` (somebody else's) or ``"plain"``."""
    if row["method"] in ("plain", "offline"):
        return "plain"
    if (kind := row.get("kind")) is not None:
        return {"simple": "simple", "rival": "other"}.get(kind, "method")
    if row["method"] in ("fewer frames", "fewer steps", "fixed chunks"):
        return "simple"
    return "other" if row["method"].startswith("moonshine-voice") else "method"


def front(section: Section, rows: Group, group: Group) -> Group:
    """The rows that no other row matches in both speed-up and quality."""
    told = [
        (row, found) for row in _in_time(rows) if _saves(row) and (found := _values(section, row, group)) is not None
    ]
    best = [row for row, mine in told if not any(_beats(them, mine) for other, them in told if _may_beat(other, row))]
    # as it comes, whatever its variants do
    ours = [row for row in rows if row.get("kind") == "ours" and row not in best]
    return [*ours, *best]


def _values(section: Section, row: Row, group: Group) -> tuple[float, float] | None:
    """Speed-up and quality, both higher is better; None where one of them was not measured."""
    quality = score(section, row, group)
    return None if quality is None or row["speedup"] is None else (row["speedup"], quality)


def _may_beat(one: Row, other: Row) -> bool:
    """Whether one row can make another pointless: what keeps the plain output is worth more than a lucky sample."""
    return one["exact"] or not other["exact"]


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether a row with this speed-up and quality makes another pointless."""
    faster, better = one[0] - other[0], one[1] - other[1]
    return (better > 0 and one[0] >= NEAR * other[0]) or (better == 0 and faster > 0)


def _saves(row: Row) -> bool:
    """Whether a row is of use; a neutral setting that happened to be faster is not."""
    return bool(row["speedup"] is not None and row["speedup"] > 1 and (row["work_ratio"] or 0) < 1)


def _in_time(rows: Group) -> Group:
    """The rows that did not take much longer than the time they were tuned to."""
    return [r for r in rows if r.get("wall_share") is None or r["wall_share"] <= CLOSE_ENOUGH * r["budget"]]


def score(section: Section, row: Row, group: Group) -> float | None:
    """Quality, higher is better; an exact row has that of the plain run, whatever its sample says."""
    plain = plain_quality(group)
    quality = plain if row["exact"] and plain is not None else row["quality"]
    return None if quality is None else quality if section.higher_is_better else -quality


def plain_quality(rows: Iterable[Row]) -> float | None:
    """Quality of the plain run that rows were measured beside; None where it was not judged."""
    return next((row["baseline_quality"] for row in rows if row["baseline_quality"] is not None), None)


def _place(row: Row) -> tuple[bool, float]:
    return not row["exact"], row["speedup"] or 0.0
