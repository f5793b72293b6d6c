"""LLaVA-OneVision: videos of pooled frames with one newline token at the end, pictures in lines."""

from __future__ import annotations

import inspect
import math
from typing import Any, ClassVar

import torch
from accelerate.utils import align_module_device
from torch.nn.functional import interpolate

from mmaccel.adapter import register_adapter

from ..input.spans import Grid
from ..input.visual import Visual
from .layout import lay_tiles
from .tower import Probe
from .visual_adapter import VisualAdapter

PACKING = ("vision_aspect_ratio", "vision_feature_select_strategy")  # what decides how pictures are packed


@register_adapter
class LlavaOnevisionAdapter(VisualAdapter):
    """`LlavaOnevisionForConditionalGeneration`."""

    family = "llava_onevision"
    classes: ClassVar[tuple[str, ...]] = ("LlavaOnevisionForConditionalGeneration",)
    line_ends = 1  # newline tokens after a video

    @property
    def side(self) -> int:
        """Rows of patches in the tower."""
        vision = self.target.config.vision_config
        return int(vision.image_size // vision.patch_size)

    @property
    def newline(self) -> torch.Tensor:
        """The token that ends a line, `[D]`."""
        with align_module_device(self.model):  # off-loaded, it is away between passes
            return self.model.image_newline.detach()

    def visuals(
        self, kind: str, output: Any, kwargs: dict[str, Any], probe: Probe | None, seen: int = 0
    ) -> list[Visual]:
        if kind == "image":
            told = self._picture_scores(output.pooler_output, probe, kwargs)
            pictures = zip(output.pooler_output, told, strict=True)
            return [visual for features, values in pictures for visual in self.picture(features, values)]
        rows, columns = self.pooled_grid
        found = []
        for features in output.pooler_output:
            frames = (len(features) - self.line_ends) // (rows * columns)
            found.append(Visual.of_frames(features, (frames, rows, columns), self.line_ends))
        if probe is not None:
            lay_tiles(probe, found, pool=self.pool_planes)
        return found

    def grids(self, kind: str, kwargs: dict[str, Any]) -> list[Grid] | None:
        if kind == "image":
            return None
        videos, frames = kwargs["pixel_values_videos"].shape[:2]
        return [(frames, *self.pooled_grid)] * videos

    @property
    def pooled_grid(self) -> tuple[int, int]:
        """Rows and columns of tokens of a frame."""
        return math.ceil(self.side / 2), math.ceil(self.side / 2)

    def pool_planes(self, planes: torch.Tensor) -> torch.Tensor:
        """Pool `[F, E, rows, columns]` as the model pools its features."""
        return interpolate(planes, size=self.pooled_grid, mode="bilinear")

    def _picture_scores(self, found: Any, probe: Probe | None, kwargs: dict[str, Any]) -> Any:
        """Scores and keys of each picture side by side, `[L, 1 + E]`, in the order of its features without newlines."""
        if probe is None:
            return [None] * len(found)
        values = torch.stack(probe.told())
        alone = self.side**2 + 1  # one tile and a newline: among several pictures none is cut up
        sizes = kwargs["image_sizes"]
        tiles = [1 if len(f) == alone else self._tiles(size) for f, size in zip(found, sizes, strict=True)]
        asked = {name: kwargs.get(name) or getattr(self.target.config, name, None) for name in PACKING}
        names = inspect.signature(self.model.pack_image_features).parameters
        chosen = {name: asked[name] for name in PACKING if name in names}
        first = 1 if asked["vision_feature_select_strategy"] == "default" else 0  # behind a class token
        parts = values[:, first:].split(tiles)
        # packed as the features are: laid side by side, unpadded and scaled down
        return self.model.pack_image_features(parts, image_sizes=sizes, image_newline=None, **chosen)[0]

    def _tiles(self, size: Any) -> int:
        """Number of tower tiles of a picture `(height, width)`, if it is tiled."""
        from transformers.models.llava_onevision.modeling_llava_onevision import image_size_to_num_patches

        config = self.target.config
        return int(image_size_to_num_patches(size, config.image_grid_pinpoints, config.vision_config.image_size))

    def clips(self, kind: str, kwargs: dict[str, Any], seen: int = 0) -> list[tuple[int, int]]:
        return [(frames, 1) for frames, _, _ in self.grids(kind, kwargs) or ()]

    def picture(self, features: torch.Tensor, told: torch.Tensor | None = None) -> list[Visual]:
        """The whole picture and the enlarged one, `[L, D]`, whose lines end in newline tokens.

        `told` are scores and keys `[L', 1 + E]`, newlines left out.
        """
        ends = (features == self.newline.to(features)).all(-1)
        base = min(self.side**2, int((~ends).sum()))
        found = [Visual.of_frames(features[:base], (1, self.side, self.side))]
        rest, lines = features[base:], int(ends[base:].sum())
        if len(rest) == 1:  # one small picture and its newline
            found = [Visual.of_frames(features, (1, self.side, self.side), ends=1)]
        elif len(rest):
            found.append(Visual(rest, (1, lines, len(rest) // lines - 1), ~ends[base:]))
        if told is not None:
            values = told.split([int(visual.shows.sum()) for visual in found])
            for visual, part in zip(found, values, strict=True):
                visual.hear(part)
        return found
