"""The plots of docs/benchmarks/index.md: quality against time, one picture for each modality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..comparison.quality_plot import Axes, Line, Mark, draw
from . import result as bench
from .index import front, role_of
from .sections import Group, Row, Section

NAMES = {
    "image": "Frechet distance to real pictures (lower is better)",
    "video": "PSNR to the plain clip, dB",
    "vlm": "questions answered right",
    "speech": "word error rate (lower is better)",
    "language": "nats per token over the next words (lower is better)",
}


def plot(section: Section, result: dict[str, Any], path: Path) -> Any:
    """Draw one benchmark; returns the figure."""
    groups = [group for group in section.groups(result["rows"]).values() if group]
    if section.kind == "speech":
        return draw(_streams(groups[0]), _speech_axes(section, groups[0]), path)
    shown = groups[:1] if section.kind == "language" else groups
    rows = [row for group in shown for row in group if _is_drawn(section, row, group)]
    plain = next((row["baseline_quality"] for row in rows if row["baseline_quality"] is not None), None)
    rows = [row for row in rows if row["quality"] is not None or plain is not None]
    lines = [_line(section, rows, name, plain) for name in dict.fromkeys(_series(row) for row in rows)]
    model = rows[0]["model"]
    around = Axes(
        title=f"{section.title} on {model}",
        quality=NAMES[section.kind],
        higher_is_better=section.higher_is_better,
        plain=plain,
        is_share="%" in section.form,
    )
    return draw([line for line in lines if line.marks], around, path)


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
    return not (section.kind == "language" and row["exact"])


def _series(row: Row) -> str:
    """Rows that are one line: settings of a method."""
    if row["modality"] == "vlm" and "share" in row:
        from mmaccel.vlm.bench.page import label

        return label(row)
    name = str(row["method"])
    policy = row["settings"].get("policy") if row["modality"] == "language" else None
    if row["quality"] is None:
        return bench.called(row)
    return f"{name.split('.')[-1]}, {policy}" if policy else name.split(".")[-1]


def _line(section: Section, rows: Group, name: str, plain: float | None) -> Line:
    found = [row for row in rows if _series(row) == name]
    role = role_of(found[0])
    marks = tuple(_mark(row, plain) for row in found)
    exact = " (exact)" if all(row["exact"] for row in found) else ""
    kind = role if role in ("simple", "other") else "method"
    return Line(name.removeprefix(f"{section.kind}.") + exact, marks, kind)


def _mark(row: Row, plain: float | None) -> Mark:
    quality = row["quality"] if row["quality"] is not None else plain
    assert quality is not None
    return Mark(1 / row["speedup"], quality)


def _streams(group: Group) -> list[Line]:
    lines = []
    for name in dict.fromkeys(row["method"] for row in group if role_of(row) != "plain"):
        found = [row for row in group if row["method"] == name]
        lines.append(Line(name, tuple(_stream_mark(row) for row in found), role_of(found[0])))
    return lines


def _stream_mark(row: Row) -> Mark:
    settings = row["settings"]
    label = f"{settings['seconds']:g} s" if "seconds" in settings else ""
    return Mark(row["real_time_factor"], row["quality"], label)


def _speech_axes(section: Section, group: Group) -> Axes:
    offline = next(row for row in group if role_of(row) == "plain")
    return Axes(
        title=f"{section.title} on {offline['model']}",
        quality=NAMES["speech"],
        higher_is_better=False,
        plain=offline["quality"],
        plain_time=offline["real_time_factor"],
        plain_label="offline: the recording as a whole",
        time="processor seconds for each second of audio",
        is_share=True,
    )
