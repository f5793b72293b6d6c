"""What the rows of `mmaccel bench video` say, in words: who wins, and by how much."""

from __future__ import annotations

from collections.abc import Iterable
from operator import methodcaller

from mmaccel.bench.benchmark import Row
from mmaccel.bench.selection import CLOSE_ENOUGH
from mmaccel.bench.winners import Figure, ahead, who_wins

from .cases import CONVERGING
from .sampling import Sampling

SAME_STEPS = "our steps"  # in the name of a rival


def figures(made: str) -> tuple[Figure, ...]:
    """How near what was made, such as a clip, is to the plain and to the converged one."""
    columns = {
        f"to the plain {made}, mean": "quality",
        f"to the plain {made}, worst prompt": "psnr_worst",
        f"to the converged {made}, mean": "psnr_converged",
        f"to the converged {made}, worst prompt": "psnr_converged_worst",
    }
    return tuple(Figure(name, methodcaller("get", column), unit=" dB") for name, column in columns.items())


FIGURES = figures("clip")


def of_budget(group: list[Row]) -> str:
    """Ours against the best of the others on each figure, of those that kept to the time."""
    kept = in_time(group)
    ours = next((row for row in kept if row["kind"] == "ours"), None)
    others = [[row for row in kept if row["kind"] == kind] for kind in ("rival", "simple")]
    if ours is None or not any(others):
        return ""
    lines = [who_wins(figure, ours, others, _name) for figure in FIGURES]
    lines += [_to_converged(row) for row in kept if row["method"] == CONVERGING]
    return "\n".join(line for line in lines if line)


def _to_converged(row: Row) -> str:
    """What our method gains on the plain run itself, where the converged clip is its target."""
    mean, worst = (row[f"psnr_{name}"] - row[f"plain_{name}"] for name in ("converged", "converged_worst"))
    nearer = [
        each["psnr_converged"] > each["plain_converged"] for each in row.get("samples", []) if "plain_converged" in each
    ]
    on = f" It is nearer on {sum(nearer)} of {len(nearer)} prompts." if nearer else ""
    return (
        f'- To the converged clip, against the plain run of all steps: with `target="converged"` ours is {mean:+.1f} dB'
        f" on the mean and {worst:+.1f} dB on the worst prompt.{on}"
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


def _name(row: Row) -> str:
    return f"`{row['method']}`" if row["kind"] == "ours" else str(row["method"])


def of_samplers(rows: list[Row]) -> str:
    """Ours against fewer steps and the rivals over the samplers, for each budget."""
    lines = []
    for budget in dict.fromkeys(row["budget"] for row in rows):
        for method in dict.fromkeys(row["method"] for row in rows if row["kind"] in ("simple", "rival")):
            pairs = list(_pairs([row for row in rows if row["budget"] == budget], method))
            told = "; ".join(filter(None, (ahead(figure, pairs, sampler) for figure in FIGURES)))
            lines += [f"- {budget:.0%}, ours against {method}: {told}."] if told else []
    return "\n".join(lines)


def _pairs(rows: list[Row], method: str) -> Iterable[tuple[Row, Row]]:
    """The rows of ours and of another with the same sampler, where both kept to the budget."""
    for ours in rows:
        for row in rows:
            same = row["model"] == ours["model"] and row["quality"] is not None
            if ours["kind"] == "ours" and row["method"] == method and same and is_in_time(ours) and is_in_time(row):
                yield ours, row


def sampler(row: Row) -> str:
    """How the clips of a row are sampled, in words."""
    return str(Sampling(row["steps"], row["sampler"], row["guidance"], row["shift"]))
