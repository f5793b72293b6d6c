"""What autoregressive image models are to the rest of mmaccel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mmaccel.modality import Modality

if TYPE_CHECKING:
    from mmaccel.comparison.trial import BaseTrial

    from .command import ImageCommand
    from .generation import Painter

EXAMPLE = """import mmaccel
from mmaccel import image, zoo

model, processor = zoo.load("tiny-janus")
inputs = processor(text="big red heart on yellow", generation_mode="image", return_tensors="pt")
with mmaccel.accelerate(model, {method}) as fast:
    tokens = fast.generate(**inputs, generation_mode="image")
    print(fast.report)"""


class Image(Modality):
    name = "image"
    title = "Images"
    rank = 1
    model = "tiny-janus"
    note = (
        "Diffusion pipelines make pictures too. Their methods are those of video, with a second name here:"
        " image.HeterogeneousSteps is video.HeterogeneousSteps."
    )
    example = EXAMPLE
    tab = "mmaccel.demos.app.tabs.image_tab"
    tab_title = "Image"
    serving = "mmaccel.image.serving"

    def target(self, opened: Painter) -> Any:
        return opened.target

    def command(self) -> ImageCommand:
        from .command import ImageCommand

        return ImageCommand()

    def trial(self) -> type[BaseTrial]:
        from .comparing import ImageTrial

        return ImageTrial

    def benchmarks(self) -> Mapping[str, str]:
        return {"image": f"{self.package}.bench.benchmark"}
