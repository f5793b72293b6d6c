"""The curve of a tuning as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..comparison import results
from ..comparison.comparison import Comparison
from ..comparison.quality_plot import Axes, Mark, Series, draw
from .curve import Goal, Point

CHANCE = "\nexact: each draws from the plain distribution, so that quality differs by chance alone"


def plot(made: Comparison, goal: Goal, picked: Point | None, by_chance: bool, path: Path) -> Any:
    """Quality of every setting and of the simple alternative against their time; the worst seed as a whisker.

    Parameters
    ----------
    picked
        The point of the plan.
    by_chance
        Whether quality differs by chance alone.
    """
    metric = made.metrics[0]
    rows = [row for row in made.rows if row["quality"] is not None and not row["idle"]]
    methods = [row for row in rows if row["kind"] == "method"]
    simple = [
        _mark(row, ", ".join(str(v) for v in row["settings"].values())) for row in rows if row["kind"] == "simple"
    ]
    names = list(dict.fromkeys(row["method"] for row in methods))
    named = len(names) > 1 or bool(simple)
    lines = [_series([row for row in methods if row["method"] == name], named, picked) for name in names]
    if simple:
        unit = next(row["method"] for row in rows if row["kind"] == "simple")
        lines.append(Series(unit, tuple(simple), "simple"))
    plain = made.rows[0]["quality"] if not metric.higher_is_better else None
    title = f"{', '.join(names) or 'nothing engaged'} on {made.result['header']['model']}"
    around = Axes(
        title=f"{title}{CHANCE if by_chance else ''}",
        quality=f"{metric.title}{'' if metric.higher_is_better else ' (lower is better)'}",
        higher_is_better=metric.higher_is_better,
        plain=plain,
        target=None if goal.target_speedup is None else 1 / goal.target_speedup,
        floor=goal.floor,
        is_share="%" in metric.form,
    )
    return draw(lines, around, path)


def _series(rows: list[dict[str, Any]], named: bool, picked: Point | None) -> Series:
    """The settings of one method."""
    varied = _varied([row["settings"] for row in rows])
    marks = tuple(_mark(row, _label(row, varied, picked)) for row in rows)
    return Series(rows[0]["method"] if named and varied else "", marks)


def _mark(row: dict[str, Any], label: str) -> Mark:
    return Mark(1 / row["speedup"], row["quality"], label, row["quality_worst"])


def _varied(settings: list[dict[str, Any]]) -> list[str]:
    """The settings that differ among the points."""
    return (
        [name for name in settings[0] if any(each[name] != settings[0][name] for each in settings)] if settings else []
    )


def _label(row: dict[str, Any], varied: list[str], picked: Point | None) -> str:
    text = ", ".join(f"{name} {row['settings'][name]}" for name in varied) or results.called(row)
    is_picked = picked is not None and (row["method"], row["settings"]) == (picked["name"], picked["settings"])
    return f"{text} (picked)" if is_picked else text
