"""Tables of the speech benchmark's page about streams."""

from __future__ import annotations

from typing import Any

from mmaccel.bench.pages import markdown

from .judged import name_of

STREAMS = """
*WER* is by jiwer with transformers' `EnglishTextNormalizer`, over all words, and *to offline* its difference to
the same model's offline transcript, in points; that of moonshine-voice is by its own engine, and in no row here.
*worst* is the error rate of the worst recording. *RTF* is CPU seconds
for each second of audio. Lags are in seconds of audio that had to come,
and in brackets with the computing on top, as a listener notices them. *first text* counts from the first word; *final*
from the end of speech to its final text, and *eager* to that text told early, with how many of the tellings were
*right*; *promised* from the end of a word until it is shown as one that stays, and *in order* until all the words
before it are there for good too, so that a word that a final corrects makes those behind it late; *shown* until it is
shown at all, in order. When a word ends is what Moonshine tiny's offline transcript says. *back* is the share of
promised words that their final does not have, and *calls* are passes of the decoder. Cells are empty where a figure
does not apply, and in rows that are older than it.
"""
OWN = """
What `stream.stats` says of each recording. *word lag* counts a promised word from its promise if its final has it.
"""


def streams(group: list[dict[str, Any]]) -> str:
    """A line for each way to listen."""
    headings = (
        "model",
        "way",
        "audio",
        "WER",
        "to offline",
        "worst",
        "RTF",
        "first text",
        "final p50",
        "final p90",
        "eager p50",
        "eager p90",
        "right",
        "promised p50",
        "promised p90",
        "in order p50",
        "in order p90",
        "shown p50",
        "shown p90",
        "back",
        "calls",
    )
    return markdown(headings, [_stream(r) for r in group])


def _stream(r: dict[str, Any]) -> list[str]:
    cells = [r["model"], name_of(r), f"{r['audio_seconds']:.0f} s"]
    cells += [f"{r['quality']:.1%}", "" if r["method"] == "offline" else f"{points(r):+.1f}"]
    cells += [f"{r['quality_worst']:.1%}", f"{r['real_time_factor']:.3f}"]
    first = r.get("first_text") or {}
    cells.append(both(first.get("heard"), first.get("ready")))
    for lag in ("finalisation", "eager", "promised_alone_lag", "promised_lag", "shown_lag"):
        found = r.get(lag) or {}
        cells += [both(found.get(f"heard_p{p}"), found.get(f"ready_p{p}")) for p in (50, 90)]
        cells += [_right(found)] if lag == "eager" else []
    back, calls = r.get("retracted_share"), r.get("decoder_calls")
    return [*cells, "" if back is None else f"{back:.1%}", "" if calls is None else str(calls)]


def _right(eager: dict[str, Any]) -> str:
    """How many of the texts that were told early were final."""
    return f"{eager['early']} of {eager['tellings']}" if eager.get("tellings") else ""


def points(r: dict[str, Any]) -> float:
    """How much worse than offline a word error rate is, in percentage points."""
    return float(100 * (r["quality"] - r["baseline_quality"]))


def both(heard: float | None, ready: float | None) -> str:
    """A lag on both clocks.

    Examples
    --------
    >>> both(0.8444, 0.95)
    '0.84 (0.95)'
    """
    return "" if heard is None or ready is None else f"{heard:.2f} ({ready:.2f})"


def own(group: list[dict[str, Any]]) -> str:
    """A line for each recording of ours."""
    lines = []
    for r in group:
        for stats in r.get("stats", ()):
            cells = [r["model"], name_of(r), f"{stats['audio_seconds']:.0f} s", f"{stats['real_time_factor']:.3f}"]
            for lag in ("first_partial", "word_lag", "finalisation"):
                cells += [both(stats[lag][f"heard_p{p}"], stats[lag][f"ready_p{p}"]) for p in (50, 90)]
            share = f"{stats['accepted'] / max(stats['tokens'], 1):.0%}"
            lines.append([*cells, f"{stats['retracted']} of {stats['committed']}", share])
    headings = ("model", "way", "audio", "RTF", "first partial p50", "p90", "word lag p50", "p90", "final p50", "p90")
    return markdown((*headings, "back", "tokens from drafts"), lines)
