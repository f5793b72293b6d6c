"""InternVL, SmolVLM, LLaVA and their like: pictures in tiles; the frames of a video are pictures in a row."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import adaptive_avg_pool2d

from mmaccel.adapter import register_adapter

from ..input.spans import Grid
from ..input.visual import Visual
from .tower import Probe, frame_scores
from .visual_adapter import VisualAdapter


class TilesAdapter(VisualAdapter):
    """The tiles of each prompt count as the frames of one video: all have one size, in the order of the prompt."""

    skip = 0

    def visuals(
        self, kind: str, output: Any, kwargs: dict[str, Any], probe: Probe | None, seen: int = 0
    ) -> list[Visual]:
        tiles = self.tiles(output)
        side = self.side
        places = kwargs["input_ids"] == self.token_id(kind)
        turns = torch.stack([places[:, :seen].sum(1), places[:, seen:].sum(1)], 1) // tiles.shape[1]
        if int(turns[:, 1].sum()) == len(tiles):  # only those that are new were given
            turns[:, 0] = 0
        counts = [count for count in turns.flatten().tolist() if count]
        if sum(counts) != len(tiles):  # said with the placeholders
            counts = [len(tiles)]
        patches = self._patches(probe)
        scores, keys = frame_scores(
            probe, self.skip, (patches, patches), lambda planes: adaptive_avg_pool2d(planes, (side, side))
        )
        found, start = [], 0
        for count in counts:
            frames = slice(start, start := start + count)
            visual = Visual.of_frames(tiles[frames].flatten(0, 1), (count, side, side))
            if probe is not None:
                visual.scores, visual.key = scores[frames], keys[frames]
            found.append(visual)
        return found

    def grids(self, kind: str, kwargs: dict[str, Any]) -> list[Grid]:
        tiles = int((kwargs["input_ids"] == self.token_id(kind)).sum()) // self.side**2
        return [(1, self.side, self.side)] * tiles

    @property
    def side(self) -> int:
        """Rows of tokens of a tile."""
        return round(self.target.config.image_seq_length**0.5)

    def tiles(self, output: Any) -> torch.Tensor:
        """Features of the tiles, `[T, N, D]`; some models give those of each picture apart."""
        found = output.pooler_output
        flat = torch.cat(list(found)) if isinstance(found, list | tuple) else found
        return flat.reshape(-1, self.side**2, flat.shape[-1])

    def _patches(self, probe: Probe | None) -> int:
        return 0 if probe is None else round((probe.received[0].shape[-1] - self.skip) ** 0.5)


@register_adapter
class InternVLAdapter(TilesAdapter):
    """`InternVLForConditionalGeneration`."""

    family = "internvl"
    classes = ("InternVLForConditionalGeneration",)
    skip = 1  # the class token


@register_adapter
class SmolVLMAdapter(TilesAdapter):
    """`SmolVLMForConditionalGeneration` and `Idefics3ForConditionalGeneration`."""

    family = "smolvlm"
    classes = ("SmolVLMForConditionalGeneration", "Idefics3ForConditionalGeneration")

    @property
    def tower(self) -> Any:
        return self.model.vision_model

    @property
    def side(self) -> int:
        vision = self.target.config.vision_config
        return int(vision.image_size // vision.patch_size // self.target.config.scale_factor)


@register_adapter
class LlavaAdapter(TilesAdapter):
    """`LlavaForConditionalGeneration`, and others of which every picture or tile takes the same number of tokens."""

    family = "llava"
    classes = (
        "LlavaForConditionalGeneration",
        "AyaVisionForConditionalGeneration",
        "Cohere2VisionForConditionalGeneration",
        "DeepseekVLForConditionalGeneration",
    )

    @property
    def skip(self) -> int:  # type: ignore[override]
        """Tokens of the tower before the patches: a class token."""
        embeddings = getattr(getattr(self.tower, "vision_model", self.tower), "embeddings", None)
        return int(hasattr(embeddings, "class_embedding"))

    @property
    def tower(self) -> Any:
        return getattr(self.model, "vision_tower", None) or self.model.vision_model

    @property
    def side(self) -> int:
        config = self.target.config
        vision = config.vision_config
        return int(vision.image_size // vision.patch_size // getattr(config, "downsample_factor", 1))
