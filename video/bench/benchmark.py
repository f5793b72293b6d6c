"""`mmaccel bench video`: what each method keeps of a clip at a half and a quarter of the time.

Every contestant is tuned to the wall time that is asked for, on prompts of its own, and judged on others against the
clips of the plain pipeline. The runs of a prompt follow each other, so that a busy machine is busy for all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from mmaccel import zoo
from mmaccel.bench import result as bench
from mmaccel.method import Method
from mmaccel.session import Session, accelerate

from .. import clips
from .contestants import Contestant, contestants

MODEL, STEPS = "tiny-wan", 40
BUDGETS = (0.5, 0.25)
TUNING_SEED, TUNING_PROMPTS, TUNING_ROUNDS = 900, 2, 7
CLOSE_ENOUGH = 1.15  # times the budget
CLOSE = 0.02  # share of the plain time within which a contestant is tuned


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
    scenes = scenes_of(MODEL, 16 if full else 4)
    for budget in BUDGETS:
        tuned = [(c, tune(studio, c, budget)) for c in tqdm(contestants(studio, budget), desc=f"tune to {budget:.0%}")]
        yield from judge(studio, budget, tuned, scenes)


class Scene(NamedTuple):
    """A prompt with its seed, and how much moves in it."""

    seed: int
    prompt: str
    motion: str


def scenes_of(model: str, count: int) -> list[Scene]:
    """Half of the prompts with one thing that stays, half with two things that move."""
    still = zoo.prompts(model, count // 2, seed=1, things=1, moving=0)
    lively = zoo.prompts(model, count - count // 2, seed=2, things=2, moving=2)
    labelled = [*((prompt, "still") for prompt in still), *((prompt, "lively") for prompt in lively)]
    return [Scene(seed, prompt, motion) for seed, (prompt, motion) in enumerate(labelled)]


def tune(studio: Studio, contestant: Contestant, budget: float) -> Any:
    """The setting at which a contestant takes `budget` of the plain time, by bisection."""
    if contestant.low == contestant.high:
        return contestant.make(contestant.low)
    prompts = zoo.prompts(studio.model, TUNING_PROMPTS, seed=TUNING_SEED)
    plain = seconds_of(studio, None, prompts)
    low, high = contestant.low, contestant.high  # the higher, the faster
    best, setting = float("inf"), low
    for _ in range(TUNING_ROUNDS):
        middle = (low * high) ** 0.5
        share = seconds_of(studio, contestant.make(middle), prompts) / plain
        if abs(share - budget) < best:
            best, setting = abs(share - budget), middle
        if best < CLOSE:
            break
        low, high = (middle, high) if share > budget else (low, middle)
    return contestant.make(setting)


def seconds_of(studio: Studio, setup: Any, prompts: list[str]) -> float:
    """Median time of a setup."""
    return bench.median([studio.take(setup, prompt, seed).seconds for seed, prompt in enumerate(prompts)])


def judge(
    studio: Studio, budget: float, tuned: list[tuple[Contestant, Any]], scenes: list[Scene]
) -> Iterator[dict[str, Any]]:
    """Run all contestants on all prompts, in an order drawn for each."""
    found: dict[str, list[dict[str, Any]]] = {contestant.label: [] for contestant, _ in tuned}
    for scene in tqdm(scenes, desc=f"judge at {budget:.0%}"):
        plain = studio.take(None, scene.prompt, scene.seed)
        reference = studio.frames(plain.latents)
        for contestant, setup in random.Random(scene.seed).sample(tuned, len(tuned)):
            take = studio.take(setup, scene.prompt, scene.seed)
            frames = studio.frames(take.latents)
            quality = {"psnr": clips.psnr(reference, frames), "ssim": clips.ssim(reference, frames)}
            times = {"seconds": take.seconds, "plain_seconds": plain.seconds}
            found[contestant.label].append({**scene._asdict(), **quality, **times, "report": take.report})
    for contestant, setup in tuned:
        yield _row(studio, budget, contestant, setup, found[contestant.label])


def _row(
    studio: Studio, budget: float, contestant: Contestant, setup: Any, takes: list[dict[str, Any]]
) -> dict[str, Any]:
    reports = [take.pop("report") for take in takes]
    work = [report["work_ratio"] for report in reports if report.get("work_ratio") is not None]
    psnr, ssim = [take["psnr"] for take in takes], [take["ssim"] for take in takes]
    still, lively = ([take["psnr"] for take in takes if take["motion"] == kind] for kind in ("still", "lively"))
    return bench.row(
        modality="video",
        model=f"{studio.model}, {studio.steps} steps",
        method=contestant.label,
        settings=_settings(setup),
        exact=False,
        seeds=[take["seed"] for take in takes],
        budget=budget,
        kind=contestant.kind,
        label=contestant.describe(setup),
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


def _settings(setup: Any) -> dict[str, Any]:
    if isinstance(setup, int):
        return {"steps": setup}
    return setup.settings() if isinstance(setup, Method) else {}


INTRO = """
Measured by `mmaccel bench video --full` on the shipped `tiny-wan` (a real diffusers `WanPipeline`, 40 steps, guidance
3, float32). Every contestant is tuned to a half and a quarter of the plain pipeline's denoising time on two prompts,
and judged on others: PSNR and SSIM are to the clip that the plain pipeline makes of the same prompt and seed, the
worst is that of the worst prompt. *time* is the measured share of the plain time beside it. *still* and *lively* are
the mean PSNR of prompts in which little and much moves. *fresh keys* shows what stale keys and values cost in
quality, and pays for it with a whole pass in every step. The raw rows, with every prompt, are in [{json}]({json}).

![PSNR of every contestant]({plot})

Blue is ours, light blue ours with something left out or put in, orange the simple alternative, grey others; beside each
name is its share of the time.
"""
LIMITS = """
- **What the steps are worth, and the tokens.** Nearly all of the gain is the forecast, its correction, and where the
  full steps lie. Choosing tokens (*hottest*, *random*) costs quality here: a partial pass of a twentieth of the tokens
  took a fifth of a full one on 2 cores, so that fewer full steps are left, and chosen at random the tokens do as
  well. Even with all keys and values fresh, which nobody can afford, it stays behind. These rows have partial steps
  wherever a step is skipped, which starves the tokens that are never hot; with `fraction=` alone every fourth is one.
  That was never better than none either, so that partial steps are off by default.
- **Worst prompts.** With two moving things this model decides in the first steps what goes where, and a small
  difference there gives another clip, as good and far away. At a quarter of the time a forecast over long gaps can tip
  that: without it (`forecast=0`, as the preset "fast" has it) mean and worst are better, and the worst is above
  EasyCache's too. At half the time the forecast helps, and the whole one more. Which prompts tip is chance: on 8 other
  prompts (`zoo.prompts` seeds 11 and 12) half the slope was level with none at a quarter (mean 48.0 and worst 32.1 dB;
  47.6 and 29.1) and ahead at half the time (61.6 and 40.2; 60.1 and 38.3), and the whole slope was 7 dB behind at a
  quarter. Letting the share follow how well the last forecast did, for all tokens or each, or fade over the gap, was
  no better than the fixed half (47.2 and 43.8 dB at best at a quarter).
- **Calibrated steps** are worse than the general ones at half the time and better at a quarter; in an earlier training
  of the model it was the other way round. The calibration looks at interpolation alone, not at what forecasts do to
  the samples in between.
- **Time** is that of the denoising loop. What is not in the budget is the arithmetic of forecasts on the latents.
"""
KINDS = {
    "ours": "our method as it comes",
    "part": "the same with something left out or put in",
    "simple": "the simple alternative",
    "rival": "others",
}


def write_page(result: dict[str, Any], path: Path) -> None:
    """The Markdown page with its plot beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = path.with_suffix(".png")
    plot(result, picture)
    sections = {}
    columns = ("contestant", "setting", "time", "work", "PSNR", "worst", "SSIM", "worst", "still", "lively")
    for budget in dict.fromkeys(r["budget"] for r in result["rows"]):
        group = [r for r in result["rows"] if r["budget"] == budget]
        order = sorted(group, key=lambda r: (list(KINDS).index(r["kind"]), -r["quality"]))
        table = bench.markdown(columns, [_line(r) for r in order])
        sections[f"{budget:.0%} of the time"] = f"{_found(group)}\n\n{table}"
    intro = INTRO.format(json=path.with_suffix(".json").name, plot=picture.name)
    sections["What limits each"] = LIMITS.strip()
    path.write_text(bench.page(result, "Video diffusion transformers", intro, sections), encoding="utf-8")


def _found(group: list[dict[str, Any]]) -> str:
    """What a group of rows says, in words; of those that kept to the time."""
    kept = [r for r in group if r["wall_share"] <= CLOSE_ENOUGH * r["budget"]] or group
    best = {kind: max((r for r in kept if r["kind"] == kind), key=_quality, default=None) for kind in KINDS}
    ours = best["ours"] or next(r for r in group if r["kind"] == "ours")
    others = " and ".join(
        f"{ours['quality'] - r['quality']:+.1f} dB (worst {ours['psnr_worst'] - r['psnr_worst']:+.1f}) to {r['method']}"
        for r in (best["simple"], best["rival"])
        if r
    )
    wall, budget, part = ours["wall_share"], ours["budget"], best["part"] or ours
    return (
        f"`{ours['method']}` took {wall:.0%} of the time, {wall / budget - 1:+.0%} of the budget, and is {others}, the"
        f" best of the others. The best of its variants: {part['method']}, {part['quality'] - ours['quality']:+.1f} dB."
    )


def _quality(r: dict[str, Any]) -> float:
    return float(r["quality"])


def _line(r: dict[str, Any]) -> list[str]:
    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    figures = (r["quality"], r["psnr_worst"]), (r["ssim"], r["ssim_worst"]), (r["psnr_still"], r["psnr_lively"])
    forms = (".1f", ".3f", ".1f")
    psnr, ssim, kinds = ([number(x, form) for x in pair] for pair, form in zip(figures, forms, strict=True))
    return [r["method"], r["label"], f"{r['wall_share']:.0%}", number(r["work_ratio"], ".0%"), *psnr, *ssim, *kinds]


COLOURS = {"ours": "#26547c", "part": "#8fb8de", "simple": "#e07a5f", "rival": "#888888"}


def plot(result: dict[str, Any], path: Path) -> None:
    """PSNR of every contestant, mean and worst, one panel for each budget."""
    from matplotlib.figure import Figure

    budgets = list(dict.fromkeys(r["budget"] for r in result["rows"]))
    figure = Figure(figsize=(6 * len(budgets), 5.5), layout="constrained")
    for budget, axes in zip(budgets, figure.subplots(1, len(budgets), squeeze=False)[0], strict=True):
        rows = sorted((r for r in result["rows"] if r["budget"] == budget), key=_quality)
        for y, r in enumerate(rows):
            colour = COLOURS[r["kind"]]
            axes.plot([r["psnr_worst"], r["quality"]], [y, y], color=colour, linewidth=1.5, marker="|", zorder=2)
            axes.scatter(r["quality"], y, color=colour, s=90 if r["kind"] == "ours" else 45, zorder=3)
        axes.set_yticks(range(len(rows)), [f"{r['method']}, {r['wall_share']:.0%}" for r in rows], fontsize=9)
        axes.set_title(f"{budget:.0%} of the time", fontsize=11)
        axes.set_xlabel("PSNR to the plain clip, dB: mean, and down to the worst")
        axes.grid(axis="x", alpha=0.25)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.savefig(path, dpi=110)
