"""How often `video.Auto` keeps the quality that it was asked for, on prompts that it did not measure.

    python -m mmaccel.demos.video.kept_floors --output docs/benchmarks/long/kept_floors

A session of `tiny-wan` measures its first prompt, picks the fastest setting that keeps a floor there, and draws other
prompts with it. Several sessions, each with another first prompt, by each sampler.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from statistics import mean
from typing import Any

import torch
from tqdm import tqdm

import mmaccel
from mmaccel import video, zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.video.bench.sampling import Sampling
from mmaccel.video.quality import tensor_psnr

Request = tuple[int, str]  # the seed of the noise, and the prompt
Drawn = tuple[torch.Tensor, float]

MODEL = "tiny-wan"
SAMPLERS = ("Euler", "UniPC")
HEADINGS = ("sampler", "floor", "kept", "mean", "worst", "computed all further steps", "speed-up", "steps computed")
INTRO = (
    "`python -m mmaccel.demos.video.kept_floors`: `{model}`, {steps} steps, guidance 3, shift 3, on {threads} thread."
    " Each of {sessions} sessions with `video.Auto(min_psnr=floor)` measures a first prompt, and draws {others} others,"
    " which no setting was fitted to. *Kept* is how many of these are at least that near to the plain clip of the same"
    " noise, *mean* and *worst* are theirs, in dB; a speed-up is the median of ratios to the plain run of the same"
    " prompt. A session in which no setting kept the floor runs plainly, and counts. All is in"
    " [kept_floors.json](kept_floors.json)."
)


def measure(floors: list[float], sessions: int, others: int, seed: int) -> Iterator[dict[str, Any]]:
    """The result after each session."""
    loaded = zoo.load(MODEL)
    asked = list(enumerate(zoo.prompts(MODEL, sessions + others, seed), seed))
    rows: list[dict[str, Any]] = []
    for sampler in SAMPLERS:
        pipe = Sampling(sampler=sampler).on(loaded)
        pipe.set_progress_bar_config(disable=True)
        fresh = tqdm(asked[sessions:], desc=f"{sampler}, plain")
        plain = [drawn(pipe, prompt, number) for number, prompt in fresh]
        for floor in floors:
            for first in range(sessions):
                told = {"sampler": sampler, "floor": floor, "session": first}
                fresh = tqdm(asked[sessions:], desc=f"{sampler}, {floor:g} dB, session {first + 1}")
                rows.extend({**told, **row} for row in kept(pipe, floor, asked[first], fresh, plain))
                facts = {"steps": Sampling().steps, "sessions": sessions, "others": others}
                yield {**results.result(rows), **facts}


def kept(
    pipe: Any, floor: float, first: Request, others: Iterable[Request], plain: list[Drawn]
) -> Iterator[dict[str, Any]]:
    """A row for each of the other prompts of a session."""
    with mmaccel.accelerate(pipe, video.Auto(min_psnr=floor)) as fast:
        drawn(fast, first[1], first[0])
        picked = ", ".join(map(str, fast.plan.methods))
        for (number, prompt), (reference, before) in zip(others, plain, strict=True):
            frames, seconds = drawn(fast, prompt, number)
            report = fast.report
            yield {
                "prompt": prompt,
                "picked": picked,
                "psnr": min(100.0, tensor_psnr(reference, frames)),
                "seconds": seconds,
                "plain_seconds": before,
                "computed": report.forwards / report.plain_forwards if report.plain_forwards else 1.0,
                "stopped": any("tolerance" in warning for warning in report.warnings),
            }


def drawn(target: Any, prompt: str, seed: int) -> Drawn:
    """Frames of a clip, 0 to 1, and the seconds of this thread that it took."""
    began = time.thread_time()
    call = {"num_inference_steps": Sampling().steps, "guidance_scale": Sampling().guidance, "output_type": "pt"}
    frames = target(prompt, generator=torch.Generator().manual_seed(seed), **call).frames
    return frames, time.thread_time() - began


def page(result: dict[str, Any]) -> str:
    """Its Markdown page."""
    facts = {name: result[name] for name in ("steps", "sessions", "others")}
    intro = INTRO.format(model=MODEL, threads=result["header"]["threads"], **facts)
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for row in result["rows"]:
        groups.setdefault((row["sampler"], row["floor"]), []).append(row)
    table = pages.markdown(HEADINGS, [_line(*key, rows) for key, rows in groups.items()])
    return pages.page(result, "Floors of quality", intro, {"Other prompts": table})


def _line(sampler: str, floor: float, rows: list[dict[str, Any]]) -> list[str]:
    quality = [row["psnr"] for row in rows]
    return [
        sampler,
        f"{floor:g} dB",
        f"{sum(one >= floor for one in quality)} of {len(quality)}",
        f"{mean(quality):.1f}",
        f"{min(quality):.1f}",
        str(sum(row["stopped"] for row in rows)),
        f"{results.median(row['plain_seconds'] / row['seconds'] for row in rows):.2f}x",
        f"{mean(row['computed'] for row in rows):.0%}",
    ]


if __name__ == "__main__":
    pages.run(
        __doc__,
        page,
        measure,
        floors={"type": float, "nargs": "+", "default": [30.0, 40.0], "help": "PSNR in dB"},
        sessions={"type": int, "default": 3, "help": "each with another first prompt (default 3)"},
        others={"type": int, "default": 8, "help": "prompts of each behind the first (default 8)"},
        seed={"type": int, "default": 7700, "help": "of prompts and noise"},
    )
