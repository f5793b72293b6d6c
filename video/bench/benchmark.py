"""`mmaccel bench video`: what each method keeps of a clip at a half and a quarter of the time.

Every entry is tuned to the wall time that is asked for, on prompts of its own, and judged on others against the clips
of the plain pipeline. The runs of a prompt follow each other, so that a busy machine is busy for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from tqdm import tqdm

from mmaccel import zoo
from mmaccel.bench.benchmark import Benchmark, Section, by
from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.results import called
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload
from mmaccel.files.clips import Clip

from .. import quality
from . import page
from .cases import BUDGETS, MODEL, STEPS, MotionPrompt, VideoCase, cases, scenes

TUNING_SEED, TUNING_PROMPTS, TUNING_ROUNDS = 900, 2, 7
CLOSE = 0.02  # share of the plain time within which an entry is tuned
Row = dict[str, Any]


class Filming(Workload):
    """Latents of each prompt; a seed is the number of a prompt, and of its noise."""

    unit: ClassVar[str] = "steps"

    def __init__(self, prompts: Sequence[str], steps: int = STEPS, pipe: Any = None) -> None:
        self.target: Any = zoo.load(MODEL) if pipe is None else pipe
        self.target.set_progress_bar_config(disable=True)
        self.prompts, self.steps = prompts, steps

    def run(self, target: Any, seed: int, fewer: int | None = None) -> torch.Tensor:
        call = {"num_inference_steps": fewer or self.steps, "output_type": "latent", "return_dict": False}
        latents: torch.Tensor = target(self.prompts[seed], **call, generator=torch.Generator().manual_seed(seed))[0]
        return latents

    def judge(self, plain: torch.Tensor, other: torch.Tensor) -> dict[str, Any]:
        reference, frames = self.frames(plain), self.frames(other)
        return {"psnr": quality.psnr(reference, frames), "ssim": quality.ssim(reference, frames)}

    @torch.no_grad()
    def frames(self, latents: torch.Tensor) -> Clip:
        """The decoded clip."""
        vae = self.target.vae
        mean, spread = (torch.tensor(x).view(1, -1, 1, 1, 1) for x in (vae.config.latents_mean, vae.config.latents_std))
        video = vae.decode(latents * spread + mean, return_dict=False)[0]
        frames: Clip = self.target.video_processor.postprocess_video(video, output_type="pil")[0]
        return frames


def rows(full: bool = False) -> Iterator[Row]:
    """One row for each entry and budget; `full` judges on 16 prompts instead of 4."""
    judged = scenes(16 if full else 4)
    filming = Filming([scene.prompt for scene in judged])
    tuning = Filming(zoo.prompts(MODEL, TUNING_PROMPTS, seed=TUNING_SEED), pipe=filming.target)
    for budget in BUDGETS:
        made = cases(filming.target, STEPS, budget)
        tuned = [tune(tuning, case, budget) for case in tqdm(made, desc=f"tune to {budget:.0%}")]
        yield from judge(filming, budget, tuned, judged)


def tune(tuning: Filming, case: VideoCase, budget: float) -> Entry:
    """The entry of a case that takes `budget` of the plain time, by bisection."""
    if case.low == case.high:
        return case.entry(tuning.target, case.low)
    plain = seconds_of(tuning, Entry(PLAIN, PLAIN))
    low, high = case.low, case.high  # the higher, the faster
    best, setting = float("inf"), low
    for _ in range(TUNING_ROUNDS):
        middle = (low * high) ** 0.5
        share = seconds_of(tuning, case.entry(tuning.target, middle)) / plain
        if abs(share - budget) < best:
            best, setting = abs(share - budget), middle
        if best < CLOSE:
            break
        low, high = (middle, high) if share > budget else (low, middle)
    return case.entry(tuning.target, setting)


def seconds_of(tuning: Filming, entry: Entry) -> float:
    """Median time of an entry."""
    Runner(tuning, [entry], range(len(tuning.prompts))).run(warm_up=False)
    return results.median(entry.seconds)


def judge(filming: Filming, budget: float, entries: list[Entry], judged: list[MotionPrompt]) -> Iterator[Row]:
    """Run all entries on all prompts beside the plain pipeline."""
    plain = Entry(PLAIN, PLAIN)
    seeds = [scene.seed for scene in judged]
    Runner(filming, [plain, *entries], seeds, title=f"judge at {budget:.0%}").run()
    for entry in entries:
        yield _row(filming, budget, entry, plain, judged)


def _row(filming: Filming, budget: float, entry: Entry, plain: Entry, judged: list[MotionPrompt]) -> Row:
    samples = [
        {**scene._asdict(), **figures, "seconds": seconds, "plain_seconds": base}
        for scene, figures, seconds, base in zip(
            judged, entry.metrics.values(), entry.seconds, plain.seconds, strict=True
        )
    ]
    psnr, ssim = [sample["psnr"] for sample in samples], [sample["ssim"] for sample in samples]
    still, lively = ([sample["psnr"] for sample in samples if sample["motion"] == kind] for kind in ("still", "lively"))
    return results.row(
        modality="video",
        model=f"{MODEL}, {filming.steps} steps",
        **{**entry.identity(filming.unit), "method": entry.label, "exact": False},
        seeds=[scene.seed for scene in judged],
        budget=budget,
        kind=entry.kind,
        **entry.columns,
        **entry.timing(plain),
        wall_share=results.median(1 / ratio for ratio in entry.ratios(plain)),
        **entry.work(),
        quality_metric="PSNR in dB to the clip of the plain pipeline, mean over prompts",
        quality=sum(psnr) / len(psnr),
        psnr_worst=min(psnr),
        ssim=sum(ssim) / len(ssim),
        ssim_worst=min(ssim),
        psnr_still=sum(still) / len(still) if still else None,
        psnr_lively=sum(lively) / len(lively) if lively else None,
        samples=samples,
    )


SECTION = Section(
    lambda rows: by("budget", "{:.0%} of the time", rows),
    "fewer steps.",
    plot="mean PSNR to the plain clip against time, at a half and a quarter of it",
    quality="PSNR to the plain clip, dB",
    form=".1f",
    # of ours, with something left out or put in
    name=lambda row: f"HeterogeneousSteps, {called(row)}" if row["kind"] == "part" else called(row),
)
BENCHMARK = Benchmark("video", page.TITLE, rows, SECTION, page.INTRO, page.tables, page.LIMITS, plot=page.plot)
