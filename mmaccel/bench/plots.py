"""The plots of docs/benchmarks/index.md: quality against time, one picture for each benchmark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..comparison.quality_plot import Axes, Mark, Series, draw
from ..comparison.results import called
from .selection import front, plain_quality, role_of, select

if TYPE_CHECKING:  # which draws by this
    from .benchmark import Benchmark, Group, Row, Section

MOST_LABELS = 14  # with more of them, lines that the index leaves out have none, and are grey


def plot(benchmark: Benchmark, result: dict[str, Any], path: Path) -> Any:
    """Draw one benchmark; returns the figure."""
    section = benchmark.section
    groups = [group for group in section.groups(result["rows"]).values() if group]
    if section.picture is not None:
        return draw(*section.picture(groups[0]), path)
    shown = groups[:1] if section.one_group else groups
    rows = [row for group in shown for row in group if _is_drawn(section, row, group)]
    plain = plain_quality(rows)
    rows = [row for row in rows if row["quality"] is not None or plain is not None]
    names = dict.fromkeys(_series(section, row) for row in rows)
    lines = [_line(benchmark, rows, name, plain) for name in names]
    if len(lines) > MOST_LABELS:
        told = {_series(section, row) for group in shown for row, _ in select(section, group)}
        lines = [
            line if name in told else replace(line, label="", kind="other")
            for name, line in zip(names, lines, strict=True)
        ]
    around = Axes(
        title=f"{benchmark.title} on {rows[0]['model']}",
        quality=section.quality,
        higher_is_better=section.higher_is_better,
        plain=plain,
        is_share="%" in section.form,
    )
    return draw(lines, around, path)


def _is_drawn(section: Section, row: Row, group: Group) -> bool:
    """Of the parts of a method that a benchmark leaves out, only those that are worth having."""
    if role_of(row) == "plain" or row["speedup"] is None:
        return False
    if row.get("kind") == "part":
        ours = [r for r in group if role_of(r) == "method"]
        return row in front(section, ours, group)
    if row["quality"] is None:  # exact, and its sample was not judged: the fastest is enough
        exact = [r for r in group if r["exact"] and r["quality"] is None]
        return row in exact and row is max(exact, key=lambda r: float(r["speedup"]))
    return section.draws_exact or not row["exact"]


def _series(section: Section, row: Row) -> str:
    """The rows of one line: the settings of a method."""
    return called(row) if row["quality"] is None else section.series(row)


def _line(benchmark: Benchmark, rows: Group, name: str, plain: float | None) -> Series:
    found = [row for row in rows if _series(benchmark.section, row) == name]
    role = role_of(found[0])
    marks = tuple(_mark(row, plain) for row in found)
    exact = " (exact)" if all(row["exact"] for row in found) else ""
    kind = role if role in ("simple", "other") else "method"
    return Series(name.removeprefix(f"{benchmark.name}.") + exact, marks, kind)


def _mark(row: Row, plain: float | None) -> Mark:
    quality = row["quality"] if row["quality"] is not None else plain
    assert quality is not None
    return Mark(1 / row["speedup"], quality)
