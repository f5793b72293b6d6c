"""How near clips of half the computation come to the one that their sampler converges to, on many prompts.

    python -m mmaccel.demos.video.converged_clips --output docs/benchmarks/long/converged_clips

A few clips in a hundred turn into others by the slightest difference. Among the 16 of `mmaccel bench video` one or two
more of these, on either side, decide the mean and the worst.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmaccel import zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.video.bench import findings
from mmaccel.video.bench.benchmark import judge
from mmaccel.video.bench.cases import BUDGETS, MODEL, converging, fewer_steps, ours, scenes
from mmaccel.video.bench.filming import Filming
from mmaccel.video.bench.page import table
from mmaccel.video.bench.sampling import Sampling

INTRO = (
    "`python -m mmaccel.demos.video.converged_clips`: `tiny-wan`, {sampling}, on {count} prompts, to which nothing was"
    " fitted; the first and the last half of them begin with those of [video.md](../video.md). *converged* is the PSNR"
    " to the clip of four times the steps; a clip that is less than {apart:.0f} dB from it is another one. All is in"
    " [converged_clips.json](converged_clips.json)."
)
APART = 30.0  # dB: of clips that are nearer, eyes see no difference


def measure(prompts: int, steps: int) -> Iterator[dict[str, Any]]:
    """The result."""
    judged, sampling, budget = scenes(prompts), Sampling(steps), max(BUDGETS)
    filming = Filming([scene.prompt for scene in judged], pipe=zoo.load(MODEL), sampling=sampling)
    cases = [ours(budget), converging(budget), fewer_steps(steps, budget)]
    entries = [case.entry(filming.target, case.low) for case in cases]
    rows = list(judge(filming, budget, entries, judged, table="samplers", **sampling.columns))
    yield {**results.result(rows), "sampling": str(sampling)}


def page(result: dict[str, Any]) -> str:
    """Its Markdown page."""
    rows = result["rows"]
    intro = INTRO.format(sampling=result["sampling"], count=len(rows[0]["seeds"]), apart=APART)
    plain = [each["plain_converged"] for each in rows[0]["samples"]]
    found = {"the plain run": plain}
    found |= {row["method"]: [each["psnr_converged"] for each in row["samples"]] for row in rows}
    counts = ", ".join(f"{sum(psnr < APART for psnr in each)} of {name}" for name, each in found.items())
    text = f"{findings.of_budget(rows)}\n- Clips that are less than {APART:.0f} dB from the converged one: {counts}."
    sections = {f"{rows[0]['budget']:.0%} of the steps": f"{text}\n\n{table(rows)}"}
    return pages.page(result, "Clips and what they converge to", intro, sections)


if __name__ == "__main__":
    pages.run(
        __doc__,
        page,
        measure,
        prompts={"type": int, "default": 32, "help": "half of them with things that move (default 32)"},
        steps={"type": int, "default": 40, "help": "of Euler's sampler (default 40)"},
    )
