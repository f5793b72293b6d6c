"""What the rows of `mmaccel bench speech` say, in words: who wins, and by how much."""

from __future__ import annotations

from typing import Any

from mmaccel.bench.findings import plain_of, typed
from mmaccel.bench.selection import role_of
from mmaccel.bench.winners import Figure, ahead, speed, who_wins
from mmaccel.comparison import results

FIGURES = (
    Figure("word errors, mean", lambda row: row["quality"], " points", scale=100, higher_is_better=False),
    Figure("word errors, worst recording", lambda row: row.get("quality_worst"), " points", 1, 100, 0.1, False),
    Figure(
        "seconds until a word stays, median", lambda row: _stays(row, 50), " s", 2, tie=0.05, higher_is_better=False
    ),
    Figure("seconds until a word stays, p90", lambda row: _stays(row, 90), " s", 2, tie=0.05, higher_is_better=False),
    Figure("processor time", lambda row: 1 / row["real_time_factor"], tie=0.03, is_ratio=True),
)


def _stays(row: dict[str, Any], percentile: int) -> float | None:
    """From the end of a word, with computing."""
    return (row.get("promised_lag") or {}).get(f"ready_p{percentile}")


def said(group: list[dict[str, Any]]) -> str:
    """Streams beside the package and fixed chunks; parts beside doing without them."""
    streams = [row for row in group if row["table"] == "streams"]
    ours = next((row for row in streams if role_of(row) == "method"), None)
    if ours is None:
        told = ahead(speed("speed"), [(row, plain_of([row])) for row in group], lambda row: str(row["method"]))
        return f"- All parts against doing without: {told}." if told else ""
    others = [[row for row in streams if role_of(row) == role] for role in ("other", "simple")]
    lines = (who_wins(figure, ours, others, lambda row: typed(results.called(row))) for figure in FIGURES)
    return "\n".join(filter(None, lines))
