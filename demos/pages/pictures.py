"""The pictures of the documentation's method pages, from real runs on the shipped models::

    python -m mmaccel.demos.pages.pictures                      # all of them
    python -m mmaccel.demos.pages.pictures vlm.HoliTom image.ZipAR

Each is a small PNG in `docs/pictures`, with its caption in a text file of the same name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import mmaccel
from mmaccel import image, video, vlm, zoo
from mmaccel.demos.pages import attention as docs_attention
from mmaccel.demos.pages import canvas as docs_canvas
from mmaccel.demos.pages import speech as docs_speech
from mmaccel.demos.pages.figures import beside, drawn, figure
from mmaccel.demos.pages.module_trace import ModuleTrace, transformer_parts, unet_parts
from mmaccel.demos.pages.recorded_calls import Recorded, recorded
from mmaccel.image import generation
from mmaccel.image.decoding.grid_decoder import GridDecoder
from mmaccel.method import Method
from mmaccel.registry import methods, saved_method
from mmaccel.video.caches.step_cache import StepCache
from mmaccel.vlm.pruning.compressor import Compressor

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
WIDTH = 1040  # pixels, at most
KEEP, SHOWN = 0.15, 16  # share of the visual tokens, and first frames of the clip that are drawn
PROMPT, DRAWN = "rocket moves up, blue background", "big rocket on blue"
STEPS = 40

IMAGES = (image.SpeculativeJacobi(window=16, init="repeat_left"), image.GroupedSpeculative(), image.ZipAR())
VIDEOS = (video.HeterogeneousSteps(budget=0.5),)  # keeps a trace of its own
UNET = video.EncoderReuse
Made = tuple[Image.Image, str]


def main(wanted: list[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in _jobs():
        if not wanted or name in wanted:
            picture, caption = draw()
            picture.thumbnail((WIDTH, WIDTH))
            picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=220).save(FOLDER / f"{name}.png", optimize=True)
            (FOLDER / f"{name}.txt").write_text(caption + "\n", encoding="utf-8")
            print(f"{name}: {(FOLDER / f'{name}.png').stat().st_size / 1024:.0f} KiB, {caption}")


def _jobs() -> Iterator[tuple[str, Callable[[], Made]]]:
    for method in IMAGES:
        yield method.name, lambda method=method: painted(method)
    for method in VIDEOS:
        yield method.name, lambda method=method: filmed(method)
    for cls in _below(StepCache):
        yield cls.name, lambda cls=cls: reused(cls())
    yield "video.Auto", searched
    for cls in _below(Compressor):
        yield cls.name, lambda cls=cls: asked(cls(keep=KEEP))
    yield from docs_attention.JOBS.items()
    yield from docs_speech.JOBS.items()
    yield from docs_canvas.JOBS.items()


def _below(base: type[Method]) -> list[type[Any]]:
    """The registered methods of a kind."""
    return [cls for cls in methods().values() if issubclass(cls, base)]


def painted(method: Any) -> Made:
    """A picture beside the pass in which each of its tokens was settled."""
    painter = generation.load("tiny-janus")
    with recorded(GridDecoder, "forward") as calls, mmaccel.accelerate(painter.target, method) as fast:
        picture = painter.paint(fast, ["big red heart on yellow"], generation.ImageSettings(seed=1))
        report = fast.report
    settled = _settled(calls, int(report.plain_forwards))
    caption = f"{method} on tiny-janus: {report.plain_forwards} tokens in {report.forwards:g} passes."
    made = beside(picture.pictures[0], settled, "pass in which each token was settled")
    return made, caption + " Tokens of one colour came out of the same pass."


def _settled(calls: list[Recorded], count: int) -> torch.Tensor:
    """The last pass of the decoder that was given each of `count` tokens, as a square; the one after had settled it."""
    found = torch.full((count,), len(calls))
    for number, ((_, _, index, *_), _) in enumerate(calls):
        found[index[(index >= 0) & (index < count)]] = number
    side = round(count**0.5)
    return found.view(side, side)


def filmed(method: Any) -> Made:
    """What was computed in which step, and of which tokens."""
    pipe = zoo.load("tiny-wan")
    pipe.set_progress_bar_config(disable=True)
    with mmaccel.accelerate(pipe, method) as fast:
        fast(PROMPT, num_inference_steps=STEPS, generator=torch.Generator().manual_seed(0))
        trace = video.trace_of(fast)
        trace.save(FOLDER / "trace.png")
    with Image.open(FOLDER / "trace.png") as file:
        picture = file.convert("RGB")
    (FOLDER / "trace.png").unlink()
    shares = trace.shares()
    caption = f'{method} on tiny-wan, "{PROMPT}": {round(sum(shares), 1):g} of {len(shares)} steps computed.'
    return picture, caption + " The steps between are forecast; the grey line is the noise level."


def reused(method: Any) -> Made:
    """Which parts of the model were computed in which step."""
    unet = isinstance(method, UNET)
    (labels, plain), (_, computed) = _computed(None, unet), _computed(method, unet)
    share = computed / plain
    made, axes = figure(1, 9, 0.5 + 0.15 * len(share))
    drawing = axes.imshow(share, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.set_yticks(range(len(share)), labels, fontsize=6)
    axes.set_xlabel("step")
    axes.set_ylabel("block")
    made.colorbar(drawing, ax=axes, label="share computed")
    model = f'tiny-unet, "{DRAWN}"' if unet else f'tiny-wan, "{PROMPT}"'
    return drawn(made), (
        f"{method} on {model}: {share.mean():.0%} of the work of its blocks is computed."
        " What is white is taken over from earlier."
    )


def _computed(method: Any, unet: bool) -> tuple[list[str], torch.Tensor]:
    """Parts of the model, and the rows of input `[parts, steps]` that each computed; of the plain run for None."""
    pipe = zoo.load("tiny-unet" if unet else "tiny-wan")
    parts = unet_parts(pipe.unet) if unet else transformer_parts(pipe.transformer)
    call = {
        "prompt": DRAWN if unet else PROMPT,
        "num_inference_steps": STEPS,
        "generator": torch.Generator().manual_seed(0),
    }
    pipe.set_progress_bar_config(disable=True)
    fast = nullcontext(pipe) if method is None else mmaccel.accelerate(pipe, method)
    with fast as target:
        if isinstance(method, video.MagCache):  # its first run measures what later ones go by
            target(**{**call, "output_type": "latent"})
        with ModuleTrace(parts) as trace:
            target(**{**call, "output_type": "latent", "callback_on_step_end": trace.step})
    return list(parts), trace.table()


def searched() -> Made:
    """What `Auto` measured before it picked."""
    pipe = zoo.load("tiny-wan")
    pipe.set_progress_bar_config(disable=True)
    with mmaccel.accelerate(pipe, video.Auto()) as fast:
        fast(PROMPT, num_inference_steps=STEPS, generator=torch.Generator().manual_seed(0))
        plan = fast.plan
    made, axes = figure(1, 7, 3.6)
    for name in sorted({point["name"] for point in plan.measured}):
        line = sorted((p["speedup"], p["psnr"]) for p in plan.measured if p["name"] == name)
        axes.plot(*zip(*line, strict=True), marker="o", label=name)
    picked = next(p for p in plan.measured if saved_method(p) == plan.methods[0])
    axes.scatter(picked["speedup"], picked["psnr"], s=180, facecolors="none", edgecolors="black", label="picked")
    axes.set(xlabel="speed-up, measured", ylabel="PSNR to the plain clip, dB")
    axes.grid(alpha=0.3)
    axes.legend()
    return drawn(made), (
        f'video.Auto() on tiny-wan, "{PROMPT}": the settings that it measured on the first call, and the one that it'
        f" picked, {plan.methods[0]}."
    )


def asked(method: Any) -> Made:
    """Which patches of a clip the language model got."""
    model, processor = zoo.load("tiny-onevision")
    question = zoo.questions("tiny-onevision", 1)[0]
    inputs = processor(videos=[question.frames], text=question.question, return_tensors="pt")
    with mmaccel.accelerate(model, method) as fast:
        fast.generate(**inputs, max_new_tokens=8)
        kept = vlm.kept(fast)[0]
    return vlm.Kept(kept.sizes[:SHOWN]).picture(question.frames[:SHOWN]), (
        f"{method} on tiny-onevision: in the last layer {kept.share:.1%} of the patches of {len(kept.sizes)} frames are"
        f" left, of which these are the first {SHOWN}. What is gone is under white; orange stands for several patches."
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    main(sys.argv[1:])
