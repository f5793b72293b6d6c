"""The page of `mmaccel bench video`: what each entry keeps of a clip, for each share of the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmaccel.bench.benchmark import by
from mmaccel.bench.pages import markdown
from mmaccel.comparison.results import cell

from . import findings

TITLE = "Video diffusion transformers"
HEADING = "{:.0%} of the time"
INTRO = """
Measured by `mmaccel bench video --full` on the shipped `tiny-wan` (a real diffusers `WanPipeline`, 40 steps, guidance
3, float32). Every entry with a threshold is tuned to a half and a quarter of the plain pipeline's denoising time on
other prompts than those that judge it: PSNR and SSIM are to the clip that the plain pipeline makes of the same prompt
and seed, the worst is that of the worst prompt. *converged* is the PSNR to the clip that the same sampler makes from
the same noise with at least four times the steps, from which the plain clip is some way off itself. *time* is the
measured share of the plain time beside it. *still* and *lively* are the mean PSNR of prompts in which little and much
moves. *fresh keys* shows what stale keys and values cost in quality, and pays for it with a whole pass in every step.
cache-dit with *our steps* computes the same steps as ours and the first block in all the others, which is a sixth of
this model and little of a large one. The raw rows, with every prompt, are in [{json}]({json}).

![PSNR of every entry]({png})

Blue is ours, light blue ours with something left out or put in, orange the simple alternative, grey others; beside each
name is its share of the time.
"""
GRID = """
The same noise and prompts, a few of them, with other settings of the sampler, one changed at a time from 20 steps with
guidance 3 and shift 3, and some corners. Nothing is tuned to the time: ours and cache-dit compute the same steps, and
SeaCache and Spectrum come with their own settings. What computed more than its budget has its work beside it, and is
compared with nothing. A plain clip of few steps is far from the converged one, and being near to it is
worth little there. The worst of so few prompts is chance: on all of them the sampler and steps that Wan has by default
are judged on [a page of their own](long/default_sampler.md).
""".strip()
LIMITS = """
- **What the steps are worth, and the tokens.** Nearly all of the gain is the forecast, its correction, and where the
  full steps lie. Choosing tokens (*hottest*, *random*) costs quality here: a partial pass of few tokens takes a large
  share of the time of a full one on a processor, so that fewer full steps are left, and tokens chosen at random do as
  well. Even with all keys and values fresh, which nobody can afford, it stays behind. These rows have partial steps
  wherever a step is skipped, which starves the tokens that are never hot; with `fraction=` alone every fourth is one.
  That was never better than none either, so that partial steps are off by default.
- **Worst prompts.** With two moving things this model decides in the first steps what goes where, and a small
  difference there gives another clip, as good and far away. At a quarter of the time a whole forecast over long gaps
  tips that more often, so that half of it is trusted there; at half the time the whole helps. Which prompts tip is
  chance. Letting the share follow how well the last forecast did, for all tokens or each, was no better than one that
  follows from the longest gap. Going by half of the slope's change too was better on the sixteen
  prompts that it was tuned on, and worse on the sixteen of this page.
- **Calibrated steps** are better or worse than the general ones by the training of the model. The calibration looks at
  interpolation alone, not at what forecasts do to the samples in between.
- **Time** is that of the denoising loop. What is not in the budget is the arithmetic of forecasts on the latents.
"""
KINDS = {
    "ours": "our method as it comes",
    "part": "the same with something left out or put in",
    "simple": "the simple alternative",
    "rival": "others",
}
COLUMNS = (
    "entry",
    "setting",
    "time",
    "work",
    "PSNR",
    "worst",
    "converged",
    "worst",
    "SSIM",
    "worst",
    "still",
    "lively",
)
PLAIN_CONVERGED = ("plain_converged", "plain_converged_worst")
SAMPLERS = "Other samplers, steps, guidance and shifts"


def of_default(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the default sampler, in which all entries are."""
    return [row for row in rows if row.get("table") != "samplers"]


def of_samplers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the grid of samplers."""
    return [row for row in rows if row.get("table") == "samplers"]


def tables(rows: list[dict[str, Any]]) -> dict[str, str]:
    """For each budget what was found, and a table of all entries; then the samplers."""
    budgets = by("budget", HEADING, of_default(rows)).items()
    found = {heading: f"{findings.of_budget(group)}\n\n{table(group)}".lstrip() for heading, group in budgets}
    grid = of_samplers(rows)
    if grid:
        found[SAMPLERS] = f"{GRID}\n\n{findings.of_samplers(grid)}\n\n{sampler_tables(grid)}"
    return found


def table(group: list[dict[str, Any]]) -> str:
    order = sorted(group, key=lambda r: (list(KINDS).index(r["kind"]), -_quality(r)))
    return markdown(COLUMNS, [*_plain(group), *(_line(r) for r in order)])


def _plain(group: list[dict[str, Any]]) -> list[list[str]]:
    """The plain clips, where their distance to the converged ones is known."""
    known = next((r for r in group if r.get("plain_converged") is not None), None)
    if known is None:
        return []
    to_converged = [f"{known[name]:.1f}" for name in PLAIN_CONVERGED]
    return [["plain", "", "100%", "100%", "", "", *to_converged, *[""] * 4]]


def sampler_tables(grid: list[dict[str, Any]]) -> str:
    """A line for each sampler and a column for each entry, to the plain and to the converged clips."""
    plain = _sampler_table(grid, ("quality", "psnr_worst"), {})
    converged = _sampler_table(grid, ("psnr_converged", "psnr_converged_worst"), {"plain": PLAIN_CONVERGED})
    return (
        f"PSNR to the plain clip, dB, mean (worst):\n\n{plain}\n\n"
        f"PSNR to the converged clip, dB, mean (worst):\n\n{converged}"
    )


def _sampler_table(grid: list[dict[str, Any]], keys: tuple[str, str], more: dict[str, tuple[str, str]]) -> str:
    entries = list(dict.fromkeys((r["budget"], r["method"]) for r in grid))
    lines = []
    for group in by("model", "{}", grid).values():
        found = {(r["budget"], r["method"]): r for r in group}
        cells = [_pair(group[0], names) for names in more.values()]
        lines.append([findings.sampler(group[0]), *cells, *(_pair(found.get(entry), keys) for entry in entries)])
    return markdown(["sampler", *more, *(f"{method}, {budget:.0%}" for budget, method in entries)], lines)


def _pair(row: dict[str, Any] | None, keys: tuple[str, str]) -> str:
    mean, worst = keys
    if row is None:
        return ""
    if row.get(mean) is None:
        return str(row["label"])
    spent = "" if findings.is_in_time(row) or mean == PLAIN_CONVERGED[0] else f", {row['work_ratio']:.0%} of the work"
    return f"{row[mean]:.1f} ({row[worst]:.1f}){spent}"


def _quality(r: dict[str, Any]) -> float:
    return float("-inf") if r["quality"] is None else float(r["quality"])


def _line(r: dict[str, Any]) -> list[str]:
    names = ("quality", "psnr_worst", "psnr_converged", "psnr_converged_worst", "ssim", "ssim_worst")
    figures = [cell(r.get(name), ".3f" if name.startswith("ssim") else ".1f") for name in names]
    kinds = [cell(r.get(name), ".1f") for name in ("psnr_still", "psnr_lively")]
    return [
        r["method"],
        r["label"],
        cell(r.get("wall_share"), ".0%"),
        cell(r["work_ratio"], ".0%"),
        *figures,
        *kinds,
    ]


COLOURS = {"ours": "#26547c", "part": "#8fb8de", "simple": "#e07a5f", "rival": "#888888"}


def plot(found: list[dict[str, Any]], path: Path) -> None:
    """PSNR of every entry, mean and worst, one panel for each budget."""
    from matplotlib.figure import Figure

    drawn = [r for r in of_default(found) if r["quality"] is not None]
    budgets = list(dict.fromkeys(r["budget"] for r in drawn))
    figure = Figure(figsize=(6 * len(budgets), 5.5), layout="constrained")
    for budget, axes in zip(budgets, figure.subplots(1, len(budgets), squeeze=False)[0], strict=True):
        rows = sorted((r for r in drawn if r["budget"] == budget), key=_quality)
        for y, r in enumerate(rows):
            colour = COLOURS[r["kind"]]
            axes.plot([r["psnr_worst"], r["quality"]], [y, y], color=colour, linewidth=1.5, marker="|", zorder=2)
            axes.scatter(r["quality"], y, color=colour, s=90 if r["kind"] == "ours" else 45, zorder=3)
        axes.set_yticks(range(len(rows)), [f"{r['method']}, {r['wall_share']:.0%}" for r in rows], fontsize=9)
        axes.set_title(f"{budget:.0%} of the time", fontsize=11)
        axes.set_xlabel("PSNR to the plain clip, dB: mean and worst")
        axes.grid(axis="x", alpha=0.25)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.savefig(path, dpi=110)
