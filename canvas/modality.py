"""The descriptor of masked and block-diffusion decoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mmaccel.modality import Modality

if TYPE_CHECKING:
    from mmaccel.comparison.trial import BaseTrial

    from .command import CanvasCommand

EXAMPLE = """import mmaccel
from mmaccel import canvas, zoo

pipe, processor = zoo.load("tiny-canvas")
asked = zoo.questions("tiny-canvas", 1)[0]
inputs = processor(videos=[asked.frames], text=asked.question)
with mmaccel.accelerate(pipe, {method}) as fast:
    print(fast(**inputs, threshold=2).texts[0])
    print(fast.report)"""


class Canvas(Modality):
    name = "canvas"
    title = "Masked and block-diffusion decoders"
    rank = 5
    model = "tiny-canvas"
    deferred = ("BlockDiffusionPipeline", "Commits")
    note = (
        "A rule adds to what the call's own `threshold=` and schedule commit; `threshold=2` switches the former off,"
        " so that the rule alone decides beside one token a step."
    )
    example = EXAMPLE
    tab = "mmaccel.demos.app.tabs.canvas_tab"
    tab_title = "Canvas"

    def models(self) -> tuple[str, ...]:
        return (self.model, "tiny-amused")

    def tab_models(self) -> tuple[str, ...]:
        return (self.model,)  # the other one draws, and cannot be asked about a picture

    def command(self) -> CanvasCommand:
        from .command import CanvasCommand

        return CanvasCommand()

    def trial(self) -> Callable[..., BaseTrial]:
        from .picture_comparing import trial_for

        return trial_for

    def benchmarks(self) -> Mapping[str, str]:
        return {"canvas": f"{self.package}.bench.benchmark", "pictures": f"{self.package}.bench.pictures"}
