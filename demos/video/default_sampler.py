"""What is kept of clips that are sampled as Wan comes in diffusers: UniPC, 50 steps.

    python -m mmaccel.demos.video.default_sampler --output docs/benchmarks/long/default_sampler

The grid of `mmaccel bench video` has few prompts for each sampler, and a worst prompt of few is chance. Here are all
that its main tables are judged on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmaccel import zoo
from mmaccel.bench import pages
from mmaccel.bench.benchmark import by
from mmaccel.comparison import results
from mmaccel.video.bench import findings
from mmaccel.video.bench.benchmark import judge, not_installed, untuned
from mmaccel.video.bench.cases import BUDGETS, MODEL, converging, fewer_steps, ours, scenes
from mmaccel.video.bench.filming import Filming
from mmaccel.video.bench.page import table
from mmaccel.video.bench.sampling import Sampling

SAMPLING = Sampling(50, "UniPC")
INTRO = (
    "`python -m mmaccel.demos.video.default_sampler`: `tiny-wan` with the sampler and the steps that `WanPipeline` has"
    " by default, {sampling}, on the {count} prompts of [video.md](../video.md), to which nothing was fitted. Nothing"
    " is tuned to the time: SeaCache, at half of the steps only, and Spectrum come with their own settings, and *work*"
    " is the share of the transformer's blocks that was computed. *converged* is the PSNR to the clip of four times the"
    " steps. All is in [default_sampler.json](default_sampler.json)."
)


def measure(prompts: int) -> Iterator[dict[str, Any]]:
    """The result after each budget."""
    judged = scenes(prompts)
    filming = Filming([scene.prompt for scene in judged], pipe=zoo.load(MODEL), sampling=SAMPLING)
    columns = {"table": "samplers", **SAMPLING.columns}
    rows: list[dict[str, Any]] = []
    for budget in BUDGETS:
        cases = [ours(budget), converging(budget), fewer_steps(SAMPLING.steps, budget), *untuned(filming, budget)]
        entries = [case.entry(filming.target, case.low) for case in cases if not case.is_missing]
        rows.extend(judge(filming, budget, entries, judged, **columns))
        rows.extend(not_installed(filming, budget, case, **columns) for case in cases if case.is_missing)
        yield results.result(rows)


def page(result: dict[str, Any]) -> str:
    """Its Markdown page."""
    intro = INTRO.format(sampling=SAMPLING, count=len(result["rows"][0]["seeds"]))
    groups = by("budget", "{:.0%} of the steps", result["rows"])
    sections = {heading: f"{findings.of_budget(group)}\n\n{table(group)}" for heading, group in groups.items()}
    return pages.page(result, "Clips by Wan's default sampler", intro, sections)


if __name__ == "__main__":
    prompts = {"type": int, "default": 16, "help": "half of them with things that move (default 16)"}
    pages.run(__doc__, page, measure, prompts=prompts)
