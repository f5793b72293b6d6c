"""The descriptor of diffusion pipelines for clips and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mmaccel.modality import Modality

if TYPE_CHECKING:
    from mmaccel.comparison.trial import BaseTrial

    from .command import VideoCommand

EXAMPLE = """import mmaccel
from mmaccel import video, zoo

pipe = zoo.load("tiny-wan")
with mmaccel.accelerate(pipe, {method}) as fast:
    frames = fast("rocket moves up, blue background", num_inference_steps=20).frames[0]
    print(fast.report)"""


class Video(Modality):
    name = "video"
    title = "Video"
    rank = 2
    model = "tiny-wan"
    deferred = ("EasyCacheHook",)
    example = EXAMPLE
    tab = "mmaccel.demos.app.tabs.video_tab"
    tab_title = "Video"
    serving = "mmaccel.video.serving"
    families_section = "mmaccel.demos.families.diffusion_section"

    def models(self) -> tuple[str, ...]:
        return (self.model, "tiny-far", "tiny-unet")

    def recognizes(self, model: str) -> bool:
        from mmaccel import zoo

        return super().recognizes(zoo.like(model) or model) or (Path(model) / "model_index.json").is_file()

    def command(self) -> VideoCommand:
        from .command import VideoCommand

        return VideoCommand()

    def trial(self) -> type[BaseTrial]:
        from .comparing import VideoTrial

        return VideoTrial

    def benchmarks(self) -> Mapping[str, str]:
        return {"video": f"{self.package}.bench.benchmark", "unet": f"{self.package}.bench.unet"}
