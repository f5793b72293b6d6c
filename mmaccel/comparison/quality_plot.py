"""Quality against time as one picture: lines of settings, the simple alternative dashed, the plain run as a point."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import MissingExtraError

COLOURS = ("#26547c", "#2a9d8f", "#8e5ea2", "#b5651d", "#6a994e", "#c1476b", "#5b7db1", "#7a6a53", "#3d8f9e", "#9a8c2c")
SIMPLE, OTHER, INK = "#e07a5f", "#888888", "#222222"
SIZE, DOTS = (9.5, 5.5), 110
WIDE = 12  # times, from the shortest to the longest, from which the axis of times is logarithmic


@dataclass(frozen=True)
class Mark:
    """A measured setting.

    Attributes
    ----------
    time
        Its share of the plain run's time.
    quality
        In the metric of the axis.
    label
        Text beside it; empty where the line's own label is enough.
    worst
        Quality of the worst seed, None if there is only one figure.
    """

    time: float
    quality: float
    label: str = ""
    worst: float | None = None


@dataclass(frozen=True)
class Series:
    """Settings of one method.

    Attributes
    ----------
    kind
        ``"method"``, ``"simple"`` or ``"other"`` (a method of another package).
    """

    label: str
    marks: tuple[Mark, ...]
    kind: str = "method"


@dataclass(frozen=True)
class Axes:
    """What is drawn around the lines.

    Attributes
    ----------
    quality
        Name of the metric, with the unit; upwards is better in every picture.
    plain
        Quality of the plain run; None where it is the reference for the others.
    plain_time, plain_label
        Time and name of the plain run.
    target, floor
        The goals for time and quality.
    is_share
        Whether quality is written in percent.
    """

    title: str
    quality: str
    higher_is_better: bool = True
    plain: float | None = None
    target: float | None = None
    floor: float | None = None
    plain_time: float = 1.0
    plain_label: str = "plain"
    time: str = "time, as a share of the plain run's"
    is_share: bool = False


def require_matplotlib() -> None:
    """Raise a `MissingExtraError` where pictures cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError('plots are drawn by matplotlib: pip install "mmaccel[metrics]"')


def draw(lines: Sequence[Series], around: Axes, path: Path) -> Any:
    """Draw all lines with labels beside them, and save the picture; returns the figure."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE)
    FigureCanvasAgg(figure)  # which can tell how large a text is
    figure.subplots_adjust(left=0.09, right=0.98, top=0.92, bottom=0.11)
    axes = figure.subplots()
    labels = list(_lines(axes, lines))
    labels += _surroundings(axes, lines, around)  # which sets the scales
    axes.set_title(around.title, fontsize=11)
    axes.set_xlabel(around.time)
    axes.set_ylabel(around.quality)
    if around.is_share:
        axes.yaxis.set_major_formatter("{x:.0%}")
    if around.plain_time == 1:
        axes.xaxis.set_major_formatter("{x:.0%}")
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    place(axes, labels)
    figure.savefig(path, dpi=DOTS, format="png")
    return figure


def _lines(axes: Any, lines: Sequence[Series]) -> Iterator[Label]:
    colours = itertools.cycle(COLOURS)
    for line in lines:
        colour = {"simple": SIMPLE, "other": OTHER}.get(line.kind) or next(colours)
        marks = sorted(line.marks, key=lambda mark: (mark.quality, mark.time))  # as the settings do, but for noise
        x, y = [mark.time for mark in marks], [mark.quality for mark in marks]
        dashes = "--" if line.kind == "simple" else "-"
        width, alpha = (0.8, 0.6) if line.kind == "other" else (1.4, 0.95)
        axes.plot(x, y, dashes, color=colour, linewidth=width, marker="o", markersize=5, alpha=alpha, zorder=3)
        for mark in marks:
            if mark.worst is not None and mark.worst != mark.quality:
                axes.plot([mark.time] * 2, [mark.quality, mark.worst], color=colour, linewidth=1, marker="_", alpha=0.6)
            if mark.label:
                yield Label(mark.label, [(mark.time, mark.quality)], colour)
        if line.label and marks:
            yield Label(line.label, list(zip(x, y, strict=True)), colour, size=9)


def _surroundings(axes: Any, lines: Sequence[Series], around: Axes) -> Iterator[Label]:
    """Draw the plain run and the goals, and leave room for the labels."""
    found = [mark for line in lines for mark in line.marks]
    qualities = [q for m in found for q in (m.quality, m.worst, around.plain, around.floor) if q is not None] or [0.0]
    low, high = min(qualities), max(qualities)
    room = 0.12 * (high - low) or 0.1
    low, high = low - room, high + room
    axes.set_ylim(*((low, high) if around.higher_is_better else (high, low)))
    _span(axes, [around.plain_time, *(mark.time for mark in found)])
    top = high if around.higher_is_better else low
    if around.plain is None:
        axes.plot([around.plain_time], [top], marker="^", color=INK, markersize=9, clip_on=False, zorder=5)
        yield Label(f"{around.plain_label}: the reference for the others", [(around.plain_time, top)], INK)
    else:
        axes.axhline(around.plain, color=INK, linewidth=0.8, alpha=0.35)
        axes.plot([around.plain_time], [around.plain], marker="D", color=INK, markersize=7, zorder=5)
        yield Label(around.plain_label, [(around.plain_time, around.plain)], INK)
    if around.target is not None:
        axes.axvline(around.target, color=INK, linewidth=0.9, linestyle=":")
        yield Label("asked for", [(around.target, low if around.higher_is_better else high)], INK)
    if around.floor is not None:
        axes.axhline(around.floor, color=INK, linewidth=0.9, linestyle=":")
        yield Label("asked for", [(axes.get_xlim()[1] * 0.9, around.floor)], INK)


def _span(axes: Any, times: Sequence[float]) -> None:
    """The axis of times: from nothing, or where they lie far apart in equal ratios."""
    shortest, longest = min(times), max(times)
    if not 0 < WIDE * shortest < longest:
        axes.set_xlim(0, 1.08 * longest)
        return
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_xlim(shortest / 1.6, 1.6 * longest)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())


@dataclass(frozen=True)
class Label:
    """A text that belongs to one of several points."""

    text: str
    points: list[tuple[float, float]]
    colour: str
    size: float = 8.5


Box = tuple[float, float, float, float]  # left, bottom, right, top in pixels


def place(axes: Any, labels: Sequence[Label]) -> list[Box]:
    """Write every label near one of its points, where it hides no other label and as few marks and lines as can be."""
    from matplotlib.text import Text

    renderer = axes.figure.canvas.get_renderer()
    dots = [tuple(p) for line in axes.lines for p in axes.transData.transform(_points(axes, line)) if len(p)]
    frame = axes.get_window_extent(renderer)
    taken: list[Box] = []
    for label in labels:
        drawn = Text(0, 0, label.text, fontsize=label.size, figure=axes.figure)
        extent = drawn.get_window_extent(renderer)
        places = list(_places([tuple(axes.transData.transform(p)) for p in label.points], extent.width, extent.height))
        (x, y), box = min(places, key=lambda place: _cost(place[0], place[1], taken, dots, frame))
        taken.append(box)
        at = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
        away = abs(at[0] - x) - extent.width / 2 > 14 or abs(at[1] - y) - extent.height / 2 > 14
        line = {"arrowstyle": "-", "color": label.colour, "linewidth": 0.6, "alpha": 0.6, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(
            label.text,
            axes.transData.inverted().transform((x, y)),
            xytext=axes.transData.inverted().transform(at),
            ha="center",
            va="center",
            fontsize=label.size,
            color=label.colour,
            arrowprops=line if away else None,
            annotation_clip=False,
            zorder=6,
        )
    return taken


def _points(axes: Any, line: Any) -> list[tuple[float, float]]:
    """Points along a drawn line, close enough that a label between two of them is noticed."""
    x, y = list(line.get_xdata()), list(line.get_ydata())
    if line.get_transform() != axes.transData:  # a line across the axes
        x, y = (x, list(axes.get_ylim())) if x[0] == x[-1] else (list(axes.get_xlim()), y)
    corners = list(zip(x, y, strict=True))
    found = list(corners)
    for (x1, y1), (x2, y2) in itertools.pairwise(corners):
        found += [(x1 + (x2 - x1) * i / 24, y1 + (y2 - y1) * i / 24) for i in range(1, 24)]
    return found


def _places(
    points: list[tuple[float, float]], width: float, height: float
) -> Iterator[tuple[tuple[float, float], Box]]:
    """Boxes around each point, the near ones first."""
    for distance in (7, 16, 30, 48, 70, 95, 125):
        for x, y in points:
            for i, j in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)):
                cx, cy = x + i * (distance + width / 2), y + j * (distance + height / 2)
                yield (x, y), (cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2)


def _cost(point: tuple[float, float], box: Box, taken: list[Box], dots: list[Any], frame: Any) -> float:
    """How bad a place is: over a label, outside, over marks, and far from its point, in this order."""
    left, bottom, right, top = box
    over = sum(left < b[2] + 3 and b[0] - 3 < right and bottom < b[3] + 2 and b[1] - 2 < top for b in taken)
    outside = left < frame.x0 + 2 or right > frame.x1 + 8 or bottom < frame.y0 + 2 or top > frame.y1 - 2
    hidden = sum(left - 4 < x < right + 4 and bottom - 4 < y < top + 4 for x, y in dots)
    away = max(abs((left + right) / 2 - point[0]) - (right - left) / 2, abs((bottom + top) / 2 - point[1]))
    return 1e6 * over + 1e5 * outside + 60 * hidden + away
