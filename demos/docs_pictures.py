"""The pictures of the documentation's method pages, from real runs on the shipped models::

    python -m mmaccel.demos.docs_pictures                      # all of them
    python -m mmaccel.demos.docs_pictures vlm.HoliTom image.ZipAR

Each is a small PNG in `docs/pictures`, with its caption in a text file of the same name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import mmaccel
from mmaccel import image, speech, video, vlm, zoo
from mmaccel.image import generation
from mmaccel.image.grid_decoder import GridDecoder
from mmaccel.speech import benchmark

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
WIDTH = 1040  # pixels, at most
KEEP, SHOWN = 0.15, 16  # share of the visual tokens, and first frames of the clip that are drawn
HEARD, LINES = 9.0, 14  # seconds of the recording, and lines of what was shown
PROMPT = "rocket moves up, blue background"
STEPS = 40

IMAGES = (image.SpeculativeJacobi(window=16, init="repeat_left"), image.GroupedSpeculative(), image.ZipAR())
VIDEOS = (video.HeterogeneousSteps(budget=0.5),)  # the other methods keep no trace
COMPRESSORS = (
    vlm.DyCoke,
    vlm.EarlyTom,
    vlm.FastV,
    vlm.FastVID,
    vlm.FrameFusion,
    vlm.HoliTom,
    vlm.IDPruner,
    vlm.StreamingCompression,
    vlm.VidCom2,
    vlm.VisionZip,
)

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
        yield method.name, lambda method=method: drawn(method)
    for method in VIDEOS:
        yield method.name, lambda method=method: filmed(method)
    for cls in COMPRESSORS:
        yield cls.name, lambda cls=cls: asked(cls(keep=KEEP))
    yield "speech.StreamingRecognizer", heard


def drawn(method: Any) -> Made:
    """A picture beside the pass in which each of its tokens was settled."""
    painter = generation.load("tiny-janus")
    with _Passes() as passes, mmaccel.accelerate(painter.target, method) as fast:
        painted = painter.paint(fast, ["big red heart on yellow"], generation.Settings(seed=1))
        report = fast.report
    settled = passes.last(int(report.plain_forwards))
    caption = f"{method} on tiny-janus: {report.plain_forwards} tokens in {report.forwards:g} passes."
    figure, (left, right) = _figure(2, 7.6, 3.4)
    left.imshow(painted.pictures[0])
    left.set_title("picture", fontsize=10)
    drawing = right.imshow(settled, cmap="viridis")
    right.set_title("pass in which each token was settled", fontsize=10)
    figure.colorbar(drawing, ax=right, shrink=0.85)
    for axes in (left, right):
        axes.set(xticks=[], yticks=[])
    return _drawn(figure), caption + " Tokens of one colour came out of the same pass."


class _Passes:
    """Notes which tokens each forward pass of the image decoders was given."""

    def __enter__(self) -> _Passes:
        self.given: list[torch.Tensor] = []
        self.original = original = GridDecoder.forward

        def forward(decoder: Any, tokens: torch.Tensor, index: torch.Tensor, *rest: Any, **more: Any) -> Any:
            self.given.append(index.flatten().clone())
            return original(decoder, tokens, index, *rest, **more)

        GridDecoder.forward = forward  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: Any) -> None:
        GridDecoder.forward = self.original  # type: ignore[method-assign]

    def last(self, count: int) -> torch.Tensor:
        """The last pass that was given each of `count` tokens, as a square; the one after had settled it."""
        found = torch.full((count,), len(self.given))
        for number, index in enumerate(self.given):
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
        picture = file.convert("RGB").crop((0, 0, file.width, round(0.66 * file.height)))  # the heat map has one colour
    (FOLDER / "trace.png").unlink()
    shares = trace.shares()
    caption = f'{method} on tiny-wan, "{PROMPT}": {sum(shares):.1f} of {len(shares)} steps computed.'
    return picture, caption + " The steps between are forecast; the grey line is the noise level."


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


def heard() -> Made:
    """What a stream shows while a sentence is spoken."""
    samples = benchmark.load_recordings(["two_cities.wav"])[0].samples[: round(16_000 * HEARD)]
    asr = speech.StreamingRecognizer(*speech.load("moonshine-tiny"), policy=speech.LocalAgreement(2))
    shown: list[tuple[float, str, str]] = []
    with asr.stream(sample_rate=16_000) as stream:
        for number, chunk in enumerate(samples.split(1600), 1):
            for event in stream.push(chunk):
                if isinstance(event, speech.Partial | speech.Final):
                    final = isinstance(event, speech.Final)
                    shown.append((number / 10, event.text if final else event.stable, "" if final else event.unstable))
        stream.finish()
    return _transcript_chart(shown[:LINES]), (
        "StreamingRecognizer with LocalAgreement(2) on Moonshine tiny: what is shown after so many seconds of speech."
        " Dark words stay, orange ones may still change."
    )


def _transcript_chart(shown: list[tuple[float, str, str]]) -> Image.Image:
    figure, axes = _figure(1, 9, 0.27 * len(shown))
    figure.set_layout_engine("none")  # it would move what is measured below
    axes.set(xlim=(0, 1), ylim=(len(shown) - 0.5, -0.5), position=(0, 0, 1, 1))
    axes.axis("off")
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    for row, (seconds, stable, unstable) in enumerate(shown):
        axes.text(0.06, row, f"{seconds:.1f} s", fontsize=9, color="#777777", ha="right")
        first = axes.text(0.08, row, stable, fontsize=8.6, color="#1f2d3d")
        end = axes.transData.inverted().transform(first.get_window_extent(renderer).max)[0] if stable else 0.08
        axes.text(end + 0.006, row, unstable, fontsize=8.6, color="#d1642a")
    return _drawn(figure)


def _figure(columns: int, width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns)


def _drawn(figure: Any) -> Image.Image:
    figure.canvas.draw()
    return Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")


if __name__ == "__main__":
    torch.manual_seed(0)
    main(sys.argv[1:])
