"""Draw clips in blocks with a small model that drafts: how often the large one draws anew, at what time and quality.

    python -m mmaccel.demos.video.block_routing --output docs/benchmarks/long/block_routing

On the shipped `tiny-far`, prompts of other seeds than it was trained on. The score that `BlockRouter` asks is how well
a frame shows the worst of the things of its prompt. All ways take turns on each prompt, from the same noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import mean
from typing import Any

import torch
from tqdm import tqdm

import mmaccel
from mmaccel import video, zoo
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.demos.video.recognized_things import Asked

MODEL = "tiny-far"
TAUS = (0.88, 0.84, 0.8, 0.7)
STEPS = (10, 4)  # of the large model; more than ten change nothing that is seen
FEWER = (5, 3, 2)
PLAIN = "plain"
HEADINGS = ("way", "seconds", "speed-up", "drafts kept", "things recognized", "worst clip", "moved as told", "to plain")
INTRO = (
    "`python -m mmaccel.demos.video.block_routing`: {clips} clips of 71 frames and one thing in nine blocks by the"
    " shipped `tiny-far`, guidance {guidance:g}; `BlockRouter` drafts each block but the first with the small model in"
    " 4 steps, and keeps it if its worst frame scores `tau`. A thing is recognized in a frame if its picture fits there"
    " better than that of any other; it moved as told if it went half of its way at least and nowhere else. Seconds are"
    " medians, speed-ups medians of ratios on the same prompt, dB to the large model's own clip from the same noise."
    " All is in [block_routing.json](block_routing.json)."
)


def ways(pipe: Any, steps: int) -> dict[str, Callable[..., tuple[torch.Tensor, dict[str, Any]]]]:
    """What draws a clip from a prompt and a call: frames `[T, 3, H, W]`, and what is told of it."""
    found: dict[str, Any] = {PLAIN: partial(_plain, pipe)}
    for tau in TAUS:
        found[f"BlockRouter(tau={tau})"] = partial(_routed, pipe, video.BlockRouter(tau=tau))
    fewer = [count for count in FEWER if count < steps]
    found |= {f"{count} steps": partial(_plain, pipe, num_inference_steps=count) for count in fewer}
    return found | {f"the small model, {steps} steps": partial(_drafted, pipe)}


def _plain(pipe: Any, prompt: str, call: dict[str, Any], **more: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    return pipe(prompt, **{**call, **more}).frames[0], {}


def _routed(
    pipe: Any, method: video.BlockRouter, prompt: str, call: dict[str, Any]
) -> tuple[torch.Tensor, dict[str, Any]]:
    with mmaccel.accelerate(pipe, method) as fast:
        frames = fast(prompt, draft=pipe.draft, score=Asked(prompt).score, **call).frames[0]
        return frames, {name: fast.report.details[name] for name in ("kept", "drafts", "scores")}


def _drafted(pipe: Any, prompt: str, call: dict[str, Any], **more: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    large = pipe.transformer
    pipe.transformer = pipe.draft
    try:
        return _plain(pipe, prompt, call, **more)
    finally:
        pipe.transformer = large


def measure(clips: int, guidance: float, seed: int) -> Iterator[dict[str, Any]]:
    """The result after each prompt."""
    pipe = zoo.load(MODEL)
    pipe.set_progress_bar_config(disable=True)
    rows: list[dict[str, Any]] = []
    for number, prompt in enumerate(tqdm(zoo.prompts(MODEL, clips, seed, things=1), unit="clip")):
        for steps in STEPS:
            rows += _drawn(pipe, prompt, steps, guidance, seed + number)
        yield {**results.result(rows), "guidance": guidance}


def _drawn(pipe: Any, prompt: str, steps: int, guidance: float, seed: int) -> Iterator[dict[str, Any]]:
    """A row for each way to draw a prompt."""
    plain = None
    for name, way in ways(pipe, steps).items():
        noise = torch.Generator().manual_seed(seed)
        call = {"num_inference_steps": steps, "guidance_scale": guidance, "output_type": "pt", "generator": noise}
        began = time.perf_counter()
        frames, told = way(prompt, call)
        told |= {"way": name, "steps": steps, "prompt": prompt, "seconds": time.perf_counter() - began}
        plain = frames if plain is None else plain
        yield told | _judged(prompt, frames, plain)


def _judged(prompt: str, frames: torch.Tensor, plain: torch.Tensor) -> dict[str, Any]:
    asked, error = Asked(prompt), float((frames - plain).square().mean())
    psnr = None if error == 0 else -10 * float(torch.tensor(error).log10())
    return {"recognized": asked.recognized(frames), "moved": asked.moved(frames), "psnr": psnr}


def page(result: dict[str, Any]) -> str:
    """Its Markdown page."""
    rows = result["rows"]
    clips = len({row["prompt"] for row in rows})
    tables = {f"{steps} steps": _table([row for row in rows if row["steps"] == steps]) for steps in STEPS}
    intro = INTRO.format(clips=clips, guidance=result["guidance"])
    return pages.page(result, "Videos in blocks, drafted by a small model", intro, tables)


def _table(rows: list[dict[str, Any]]) -> str:
    return pages.markdown(HEADINGS, [_line(rows, name) for name in dict.fromkeys(row["way"] for row in rows)])


def _line(rows: list[dict[str, Any]], name: str) -> list[str]:
    plain, own = ([row for row in rows if row["way"] == way] for way in (PLAIN, name))
    drafts, shown = sum(row.get("drafts", 0) for row in own), [row["recognized"] for row in own]
    near = [row["psnr"] for row in own if row["psnr"] is not None]
    speedup = results.median(p["seconds"] / o["seconds"] for p, o in zip(plain, own, strict=True))
    return [
        name,
        f"{results.median(row['seconds'] for row in own):.1f}",
        f"{speedup:.2f}x",
        f"{sum(row['kept'] for row in own)} of {drafts}" if drafts else "",
        f"{mean(shown):.1%}",
        f"{min(shown):.0%}",
        f"{mean(row['moved'] for row in own):.0%}",
        "equal" if not near else f"{mean(near):.1f} dB",
    ]


if __name__ == "__main__":
    pages.run(
        __doc__,
        page,
        measure,
        clips={"type": int, "default": 8, "help": "prompts (default 8)"},
        guidance={"type": float, "default": 3.0, "help": "default 3"},
        seed={"type": int, "default": 100},
    )
