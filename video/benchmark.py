"""`mmaccel bench video`: what each method keeps of a clip at a half and a quarter of the time.

Every contestant is tuned to the wall time that is asked for, on prompts of its own, and judged on others against the
clips of the plain pipeline. The runs of a prompt follow each other, so that a busy machine is busy for all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from mmaccel import bench, zoo
from mmaccel.method import Method
from mmaccel.session import Session, accelerate

from . import clips
from .contestants import Contestant, contestants

MODEL, STEPS = "tiny-wan", 40
BUDGETS = (0.5, 0.25)
TUNING_SEED, TUNING_PROMPTS, TUNING_ROUNDS = 900, 2, 7
CLOSE = 0.015  # share of the plain time within which a contestant is tuned


class Take(NamedTuple):
    """One run: its latents, the seconds of its denoising, and what the session reported."""

    latents: torch.Tensor
    seconds: float
    report: dict[str, Any]


class Studio:
    """The pipeline and how it is called."""

    def __init__(self, model: str = MODEL, steps: int = STEPS) -> None:
        self.pipe = zoo.load(model)
        self.pipe.set_progress_bar_config(disable=True)
        self.model, self.steps = model, steps
        self.memory: dict[str, Any] = {}  # what sessions measure once for a shape

    def take(self, setup: Any, prompt: str, seed: int) -> Take:
        """Run a method, a number of steps, or a context manager around the pipeline; None is the plain run."""
        call: dict[str, Any] = {"num_inference_steps": self.steps, "output_type": "latent", "return_dict": False}
        call["generator"] = torch.Generator().manual_seed(seed)
        if isinstance(setup, int):
            call["num_inference_steps"], setup = setup, None
        with self._target(setup) as target:
            if isinstance(target, Session):
                target.memory.update(self.memory)
            began = time.perf_counter()
            latents = target(prompt, **call)[0]
            seconds = time.perf_counter() - began
            report: dict[str, Any] = {}
            if isinstance(target, Session):
                report = target.report.to_dict()
                self.memory = {name: value for name, value in target.memory.items() if name != "trace"}
        return Take(latents, seconds, report)

    def _target(self, setup: Any) -> AbstractContextManager[Any]:
        if setup is None:
            return nullcontext(self.pipe)
        return accelerate(self.pipe, setup) if isinstance(setup, Method) else setup(self.pipe)

    def frames(self, latents: torch.Tensor) -> clips.Clip:
        """The decoded clip."""
        vae = self.pipe.vae
        mean, spread = (torch.tensor(x).view(1, -1, 1, 1, 1) for x in (vae.config.latents_mean, vae.config.latents_std))
        with torch.no_grad():
            video = vae.decode(latents * spread + mean, return_dict=False)[0]
        frames: clips.Clip = self.pipe.video_processor.postprocess_video(video, output_type="pil")[0]
        return frames


def rows(full: bool = False) -> Iterator[dict[str, Any]]:
    """One row for each contestant and budget; `full` judges on 16 prompts instead of 4."""
    studio = Studio()
    pairs = list(enumerate(zoo.prompts(MODEL, 16 if full else 4, seed=1)))
    for budget in BUDGETS:
        tuned = [(c, tune(studio, c, budget)) for c in tqdm(contestants(studio, budget), desc=f"tune to {budget:.0%}")]
        yield from judge(studio, budget, tuned, pairs)


def tune(studio: Studio, contestant: Contestant, budget: float) -> Any:
    """The setting at which a contestant takes `budget` of the plain time, by bisection."""
    if contestant.low == contestant.high:
        return contestant.make(contestant.low)
    prompts = zoo.prompts(studio.model, TUNING_PROMPTS, seed=TUNING_SEED)
    low, high = contestant.low, contestant.high  # the higher, the faster
    best, setting = float("inf"), low
    for _ in range(TUNING_ROUNDS):
        middle = (low * high) ** 0.5
        share = measured_share(studio, contestant.make(middle), prompts)
        if abs(share - budget) < best:
            best, setting = abs(share - budget), middle
        if best < CLOSE:
            break
        low, high = (middle, high) if share > budget else (low, middle)
    return contestant.make(setting)


def measured_share(studio: Studio, setup: Any, prompts: list[str]) -> float:
    """Median of a setup's time over the plain time beside it."""
    shares = []
    for seed, prompt in enumerate(prompts):
        plain = studio.take(None, prompt, seed).seconds
        shares.append(studio.take(setup, prompt, seed).seconds / plain)
    return bench.median(shares)


def judge(
    studio: Studio, budget: float, tuned: list[tuple[Contestant, Any]], pairs: list[tuple[int, str]]
) -> Iterator[dict[str, Any]]:
    """Run all contestants on all prompts, in an order drawn for each."""
    found: dict[str, list[dict[str, Any]]] = {contestant.label: [] for contestant, _ in tuned}
    for seed, prompt in tqdm(pairs, desc=f"judge at {budget:.0%}"):
        plain = studio.take(None, prompt, seed)
        reference = studio.frames(plain.latents)
        for contestant, setup in random.Random(seed).sample(tuned, len(tuned)):
            take = studio.take(setup, prompt, seed)
            frames = studio.frames(take.latents)
            quality = {"psnr": clips.psnr(reference, frames), "ssim": clips.ssim(reference, frames)}
            times = {"seconds": take.seconds, "plain_seconds": plain.seconds}
            found[contestant.label].append({"prompt": prompt, "seed": seed, **quality, **times, "report": take.report})
    for contestant, setup in tuned:
        yield _row(studio, budget, contestant, setup, found[contestant.label])


def _row(
    studio: Studio, budget: float, contestant: Contestant, setup: Any, takes: list[dict[str, Any]]
) -> dict[str, Any]:
    reports = [take.pop("report") for take in takes]
    work = [report["work_ratio"] for report in reports if report.get("work_ratio") is not None]
    psnr, ssim = [take["psnr"] for take in takes], [take["ssim"] for take in takes]
    still = [take["psnr"] for take in takes if zoo.is_still(studio.model, take["prompt"])]
    lively = [take["psnr"] for take in takes if not zoo.is_still(studio.model, take["prompt"])]
    return bench.row(
        modality="video",
        model=f"{studio.model}, {studio.steps} steps",
        method=contestant.label,
        settings=setup.settings() if isinstance(setup, Method) else {"setting": contestant.describe(setup)},
        exact=False,
        seeds=[take["seed"] for take in takes],
        budget=budget,
        kind=contestant.kind,
        wall_seconds=bench.median([take["seconds"] for take in takes]),
        baseline_seconds=bench.median([take["plain_seconds"] for take in takes]),
        speedup=bench.median([take["plain_seconds"] / take["seconds"] for take in takes]),
        wall_share=bench.median([take["seconds"] / take["plain_seconds"] for take in takes]),
        work_ratio=sum(work) / len(work) if work else None,
        quality_metric="PSNR in dB to the clip of the plain pipeline, mean over prompts",
        quality=sum(psnr) / len(psnr),
        psnr_worst=min(psnr),
        ssim=sum(ssim) / len(ssim),
        ssim_worst=min(ssim),
        psnr_still=sum(still) / len(still) if still else None,
        psnr_lively=sum(lively) / len(lively) if lively else None,
        peak_extra_bytes=max((report.get("peak_extra_bytes", 0) for report in reports), default=0),
        takes=takes,
    )
