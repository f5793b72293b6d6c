"""LLaVA-NeXT-Video: videos of pooled frames, pictures in lines."""

from __future__ import annotations

import torch
from torch.nn.functional import adaptive_avg_pool2d

from mmaccel.adapter import register_adapter

from .llava_onevision import LlavaOnevisionAdapter


@register_adapter
class LlavaNextVideoAdapter(LlavaOnevisionAdapter):
    """`LlavaNextVideoForConditionalGeneration`, and `LlavaNextForConditionalGeneration`, which has pictures only."""

    family = "llava_next_video"
    classes = ("LlavaNextVideoForConditionalGeneration", "LlavaNextForConditionalGeneration")
    line_ends = 0

    @property
    def pooled_grid(self) -> tuple[int, int]:
        stride = self.target.config.spatial_pool_stride
        return self.side // stride, self.side // stride

    def pool_planes(self, planes: torch.Tensor) -> torch.Tensor:
        return adaptive_avg_pool2d(planes, self.pooled_grid)
