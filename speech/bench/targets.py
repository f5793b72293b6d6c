"""What streaming speech was asked to show, and what the benchmark's rows say to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmaccel.bench import pages


def targets(rows: list[dict[str, Any]]) -> str:
    """What was asked for, what was measured, and whether the one is the other."""
    lines = []
    for wanted, of, figure, form, holds in TARGETS:
        for r in rows:
            if of(r) and r["refused"] is None:
                value = figure(r)
                lines.append([wanted, _of(r), form.format(value), "yes" if holds(value) else "**no**"])
    return pages.markdown(("target", "of", "measured", "met"), lines)


def _is_stream(r: dict[str, Any]) -> bool:
    return r["table"] == "streams" and r["method"] in ("LocalAgreement", "AlignAtt")


def points(r: dict[str, Any]) -> float:
    return 100 * (r["quality"] - r["baseline_quality"])


Target = tuple[str, Callable[[Any], bool], Callable[[Any], float], str, Callable[[float], bool]]


def _times(wanted: str, table: str, least: float, figure: Callable[[Any], float] = lambda r: r["speedup"]) -> Target:
    """At least so many times less, of every row of a table."""
    return wanted, lambda r: r["table"] == table, figure, "{:.2f}x", lambda x: x >= least


# what, of which rows, the figure, how it is written, and when it is met
TARGETS: tuple[Target, ...] = (
    ("WER within 1 point of offline", _is_stream, points, "{:+.1f} points", lambda x: x <= 1),
    (
        "real-time factor below 0.5",
        lambda r: _is_stream(r) and r["model"] == "moonshine-tiny",
        lambda r: float(r["real_time_factor"]),
        "{:.2f}",
        lambda x: x < 0.5,
    ),
    _times("3 times fewer decoder calls", "drafts", 3, lambda r: 1 / r["work_ratio"]),
    _times("2 times less CPU than re-decoding", "drafts", 2),
    _times("cached encoder 3 times cheaper", "encoder", 3),
    _times("Mimi 1.5 times faster for each frame", "codec", 1.5),
)


def name_of(r: dict[str, Any]) -> str:
    """Method with the settings that tell its rows apart."""
    if r["method"] == "fixed chunks":
        return f"fixed chunks of {r['settings']['seconds']:g} s"
    return f"{r['method']}, block {r['settings']['block']}" if r["table"] == "codec" else str(r["method"])


def _of(r: dict[str, Any]) -> str:
    """What a target is about."""
    audio = f" on {r['audio_seconds']:.0f} s" if "audio_seconds" in r else ""
    return f"{r['model'].split(',')[0]}, {name_of(r)}{audio}"


def both(heard: float | None, ready: float | None) -> str:
    """A lag on both clocks.

    Examples
    --------
    >>> both(0.8444, 0.95)
    '0.84 (0.95)'
    """
    return "" if heard is None or ready is None else f"{heard:.2f} ({ready:.2f})"
