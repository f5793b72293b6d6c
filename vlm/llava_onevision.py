"""LLaVA-OneVision: videos of pooled frames with one newline token at the end, pictures in lines."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.nn.functional import interpolate

from mmaccel.adapter import register_adapter

from .tower import Probe
from .visual import Visual
from .visual_adapter import VisualAdapter, frame_scores, parts


@register_adapter
class LlavaOnevisionAdapter(VisualAdapter):
    """`LlavaOnevisionForConditionalGeneration`."""

    family = "llava_onevision"
    classes = ("LlavaOnevisionForConditionalGeneration",)

    @property
    def side(self) -> int:
        """Rows of patches in the tower."""
        vision = self.target.config.vision_config
        return int(vision.image_size // vision.patch_size)

    def visuals(self, kind: str, output: Any, kwargs: dict[str, Any], probe: Probe | None) -> list[Visual]:
        if kind == "image":
            return [visual for features in output.pooler_output for visual in self.picture(features)]
        videos, frames = kwargs["pixel_values_videos"].shape[:2]
        side = math.ceil(self.side / 2)
        pool = functools.partial(interpolate, size=(side, side), mode="bilinear")
        skip = 1 if self._strategy(kwargs) == "default" else 0
        scores, keys = frame_scores(probe, skip, (self.side, self.side), pool)
        found = []
        for features, score, key in zip(output.pooler_output, parts(scores, videos), parts(keys, videos), strict=True):
            visual = Visual.of_frames(features, (frames, side, side), ends=1)
            visual.scores, visual.key = score, key
            found.append(visual)
        return found

    def _strategy(self, kwargs: dict[str, Any]) -> str:
        return kwargs.get("vision_feature_select_strategy") or self.target.config.vision_feature_select_strategy

    def picture(self, features: torch.Tensor) -> list[Visual]:
        """The whole picture and the enlarged one, `[L, D]`, whose lines end in newline tokens."""
        ends = (features == self.model.image_newline.to(features)).all(-1)
        base = min(self.side**2, int((~ends).sum()))
        found = [Visual.of_frames(features[:base], (1, self.side, self.side))]
        rest, lines = features[base:], int(ends[base:].sum())
        if len(rest) == 1:  # one small picture and its newline
            found = [Visual.of_frames(features, (1, self.side, self.side), ends=1)]
        elif len(rest):
            found.append(Visual(rest, (1, lines, len(rest) // lines - 1), ~ends[base:]))
        return found
