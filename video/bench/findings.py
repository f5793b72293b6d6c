"""What the rows of `mmaccel bench video` say, in words: who wins, and by how much."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mmaccel.bench.selection import CLOSE_ENOUGH

from .cases import CONVERGING
from .sampling import Sampling

Row = dict[str, Any]
SAME_STEPS = "our steps"  # in the name of a rival
TIE = 0.1  # dB
# What is compared, by column.
FIGURES = {
    "quality": "the plain clip, mean",
    "psnr_worst": "the plain clip, worst prompt",
    "psnr_converged": "the converged clip, mean",
    "psnr_converged_worst": "the converged clip, worst prompt",
}


def of_budget(group: list[Row]) -> str:
    """Ours against the best of the others on each figure, of those that kept to the time."""
    kept = in_time(group)
    ours = next((row for row in group if row["kind"] == "ours"), None)
    others = [row for row in kept if row["kind"] in ("simple", "rival")]
    if ours is None or not others:
        return ""
    lines = [_line(ours, others, key) for key in FIGURES if ours.get(key) is not None]
    lines += [_to_converged(row) for row in kept if row["method"] == CONVERGING]
    return "\n".join(line for line in lines if line)


def _to_converged(row: Row) -> str:
    """What our method gains on the plain run itself, where the converged clip is its target."""
    mean, worst = (
        row["psnr_converged"] - row["plain_converged"],
        row["psnr_converged_worst"] - row["plain_converged_worst"],
    )
    return (
        f'- To the converged clip, against the plain run of all steps: with `target="converged"` ours is {mean:+.1f} dB'
        f" on the mean and {worst:+.1f} dB on the worst prompt."
    )


def in_time(group: list[Row]) -> list[Row]:
    """The rows that were measured and took about the time that was asked for."""
    measured = [row for row in group if row["quality"] is not None]
    return [row for row in measured if is_in_time(row)] or measured


def is_in_time(row: Row) -> bool:
    """Whether a row kept to its budget of time, or of work where nothing was tuned.

    Another cache with our full steps counts too: that it computes the first block in all steps is a sixth of this model
    and little of a large one.
    """
    share = row["work_ratio"] if row.get("table") == "samplers" else row["wall_share"]
    return SAME_STEPS in row["method"] or share <= CLOSE_ENOUGH * row["budget"]


def _line(ours: Row, others: list[Row], key: str) -> str:
    """Ours against the best rival and the simple alternative on one figure."""
    found = []
    for kind in ("rival", "simple"):
        known = [row for row in others if row["kind"] == kind and row.get(key) is not None]
        if known:
            best = max(known, key=lambda row: float(row[key]))
            found.append((ours[key] - best[key], best["method"]))
    if not found:
        return ""
    least, method = min(found)
    wins = f"{method} wins" if least < -TIE else f"`{ours['method']}` wins" if least > TIE else "nobody wins"
    return f"- To {FIGURES[key]}: {wins}; ours is {' and '.join(f'{gain:+.1f} dB to {name}' for gain, name in found)}."


def of_samplers(rows: list[Row]) -> str:
    """Ours against fewer steps and the rivals over the samplers, for each budget."""
    return "\n".join(_samplers(rows))


def _samplers(rows: list[Row]) -> Iterator[str]:
    for budget in dict.fromkeys(row["budget"] for row in rows):
        for method in dict.fromkeys(row["method"] for row in rows if row["kind"] in ("simple", "rival")):
            pairs = list(_pairs([row for row in rows if row["budget"] == budget], method))
            if pairs:
                told = "; ".join(_over(pairs, key) for key in FIGURES if pairs[0][0].get(key) is not None)
                yield f"- {budget:.0%}, ours against {method}: {told}."


def _pairs(rows: list[Row], method: str) -> Iterable[tuple[Row, Row]]:
    """The rows of ours and of another with the same sampler, where both kept to the budget."""
    for ours in rows:
        for row in rows:
            same = row["model"] == ours["model"] and row["quality"] is not None
            if ours["kind"] == "ours" and row["method"] == method and same and is_in_time(ours) and is_in_time(row):
                yield ours, row


def _over(pairs: list[tuple[Row, Row]], key: str) -> str:
    """How often ours wins a figure, and where it is furthest behind."""
    found = [(ours[key] - other[key], ours) for ours, other in pairs]
    wins, (least, worst) = sum(gain > TIE for gain, _ in found), min(found, key=lambda each: each[0])
    behind = f", {least:+.1f} dB with {sampler(worst)}" if least < -TIE else ""
    return (
        f"to {FIGURES[key]} ahead in {wins} of {len(found)} ({sum(g for g, _ in found) / len(found):+.1f} dB{behind})"
    )


def sampler(row: Row) -> str:
    """How the clips of a row are sampled, in words."""
    return str(Sampling(row["steps"], row["sampler"], row["guidance"], row["shift"]))
