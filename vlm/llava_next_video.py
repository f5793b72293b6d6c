"""LLaVA-NeXT-Video: videos of pooled frames, pictures in lines."""

from __future__ import annotations

from typing import Any

from torch.nn.functional import adaptive_avg_pool2d

from mmaccel.adapter import register_adapter

from .llava_onevision import LlavaOnevisionAdapter
from .tower import Probe
from .visual import Visual
from .visual_adapter import frame_scores, parts


@register_adapter
class LlavaNextVideoAdapter(LlavaOnevisionAdapter):
    """`LlavaNextVideoForConditionalGeneration`."""

    family = "llava_next_video"
    classes = ("LlavaNextVideoForConditionalGeneration",)

    def visuals(self, kind: str, output: Any, kwargs: dict[str, Any], probe: Probe | None) -> list[Visual]:
        if kind == "image":
            return super().visuals(kind, output, kwargs, probe)
        videos, frames = kwargs["pixel_values_videos"].shape[:2]
        side = round((output.pooler_output.shape[1] // frames) ** 0.5)
        skip = 1 if self._strategy(kwargs) == "default" else 0
        scores, keys = frame_scores(
            probe, skip, (self.side, self.side), lambda planes: adaptive_avg_pool2d(planes, (side, side))
        )
        found = []
        for features, score, key in zip(output.pooler_output, parts(scores, videos), parts(keys, videos), strict=True):
            visual = Visual.of_frames(features, (frames, side, side))
            visual.scores, visual.key = score, key
            found.append(visual)
        return found
