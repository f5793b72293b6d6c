"""Word errors of texts: over all words, on the mean of the recordings, and of the worst."""

from __future__ import annotations

from typing import Any

from mmaccel.bench.pages import markdown

from ..audio.endpoint import RATE
from ..audio.recordings import Recording, word_errors


def judged(recordings: list[Recording], texts: list[str]) -> dict[str, Any]:
    """Columns of a row for what was heard of each recording."""
    pairs = zip(recordings, texts, strict=True)
    errors = {recording.name: word_errors([recording.text], [text]) for recording, text in pairs}
    return {
        "quality_metric": "word error rate",
        "quality": word_errors([recording.text for recording in recordings], texts),
        "quality_mean": sum(errors.values()) / len(errors),
        "quality_worst": max(errors.values()),
        "errors": errors,
        "texts": texts,
    }


def described(recordings: list[Recording]) -> dict[str, Any]:
    """Columns of a row for the recordings: their names with seconds and words."""
    found = [
        {"name": one.name, "seconds": len(one.samples) / RATE, "words": len(one.text.split())} for one in recordings
    ]
    return {"recordings": found, "said": sum(one["words"] for one in found)}


def name_of(r: dict[str, Any]) -> str:
    """Method with the settings that tell its rows apart."""
    if r["method"] == "fixed chunks":
        return f"fixed chunks of {r['settings']['seconds']:g} s"
    return str(r["method"])


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each way to listen, with the word error rate of each recording."""
    recordings = next(r["recordings"] for r in rows if r["method"] == "offline")
    headings = [f"{one['name']}, {one['seconds']:.0f} s, {one['words']} words" for one in recordings]
    lines = [
        [r["model"], name_of(r), f"{r['quality_mean']:.1%}", *(f"{r['errors'][one['name']]:.1%}" for one in recordings)]
        for r in rows
    ]
    return markdown(("model", "way", "mean", *headings), lines)
