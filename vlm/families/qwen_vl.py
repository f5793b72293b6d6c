"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: grids of any size, positions of three dimensions."""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from mmaccel import private
from mmaccel.adapter import register_adapter

from ..input.prompt import Prompt
from ..input.spans import Grid
from ..input.visual import Visual
from .tower import Probe
from .visual_adapter import KINDS, VisualAdapter


class QwenAdapter(VisualAdapter):
    """Base of the three families."""

    @property
    def tower(self) -> Any:
        return self.model.visual

    def visuals(
        self, kind: str, output: Any, kwargs: dict[str, Any], probe: Probe | None, seen: int = 0
    ) -> list[Visual]:
        grids = self.grids(kind, kwargs)
        scores, keys = self._read(probe, kwargs[f"{kind}_grid_thw"], self.model.visual.spatial_merge_size**2)
        found, start = [], 0
        for features, grid in zip(output.pooler_output, grids, strict=True):
            visual, end = Visual.of_frames(features, grid), start + len(features)
            if probe is not None:
                visual.scores = scores[start:end].unflatten(0, (grid[0], -1))
                visual.key = keys[start:end].unflatten(0, (grid[0], -1))
            found.append(visual)
            start = end
        return found

    def grids(self, kind: str, kwargs: dict[str, Any]) -> list[Grid]:
        merge = self.model.visual.spatial_merge_size
        return [(t, rows // merge, columns // merge) for t, rows, columns in kwargs[f"{kind}_grid_thw"].tolist()]

    def _read(self, probe: Probe | None, grid_thw: torch.Tensor, unit: int) -> Any:
        """Scores `[L]` and keys `[L, E]` of the merged tokens of all visuals."""
        if probe is None:
            return None, None
        scores = torch.cat(probe.received).unflatten(0, (-1, unit)).mean(1)
        keys = torch.cat(probe.keys).float().unflatten(0, (-1, unit)).mean(1)
        order = self._order(grid_thw)
        return (scores, keys) if order is None else (scores[order], keys[order])

    def _order(self, grid_thw: torch.Tensor) -> torch.Tensor | None:
        """Place of each merged token in the tower's own order; None if the orders agree."""
        return None

    def positions(self, kwargs: dict[str, Any]) -> torch.Tensor | None:
        ids = kwargs["input_ids"]
        if kwargs.get("image_grid_thw") is None and kwargs.get("video_grid_thw") is None:
            return None
        types = kwargs.get("mm_token_type_ids")
        if types is None:
            types = sum((ids == self.token_id(kind)).int() * (n + 1) for n, kind in enumerate(KINDS))
        names = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts", "attention_mask")
        given = {name: kwargs[name] for name in names if kwargs.get(name) is not None}
        vision, _ = self.model.get_rope_index(ids, mm_token_type_ids=types, **given)
        text = torch.arange(ids.shape[1], device=ids.device).expand(1, *ids.shape)
        return torch.cat([text, vision])


@register_adapter
class Qwen2VLAdapter(QwenAdapter):
    """`Qwen2VLForConditionalGeneration`."""

    family = "qwen2_vl"
    classes = ("Qwen2VLForConditionalGeneration",)


@register_adapter
class Qwen25VLAdapter(QwenAdapter):
    """`Qwen2_5_VLForConditionalGeneration`, whose tower has windows."""

    family = "qwen2_5_vl"
    classes = ("Qwen2_5_VLForConditionalGeneration",)

    def _order(self, grid_thw: torch.Tensor) -> torch.Tensor | None:
        return private.vision_window_index(self.model.visual, grid_thw).argsort()


@register_adapter
class Qwen3VLAdapter(QwenAdapter):
    """`Qwen3VLForConditionalGeneration`, whose first decoder layers receive additional features."""

    family = "qwen3_vl"
    classes = ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.first_cut = len(target.config.vision_config.deepstack_visual_indexes)

    def visuals(
        self, kind: str, output: Any, kwargs: dict[str, Any], probe: Probe | None, seen: int = 0
    ) -> list[Visual]:
        found = super().visuals(kind, output, kwargs, probe, seen)
        for number, visual in enumerate(found):
            visual.extra = tuple(layer[number] for layer in output.deepstack_features)
        return found

    def inputs(self, prompt: Prompt) -> dict[str, Any]:
        outputs = {}
        for kind, visuals in prompt.visuals.items():
            features: Any = tuple(visual.features for visual in visuals)  # one for each, where others have a tensor
            output: Any = BaseModelOutputWithPooling(pooler_output=features)
            output.deepstack_features = [list(layer) for layer in zip(*(v.extra for v in visuals), strict=True)]
            outputs[kind] = output
        return {"input_ids": prompt.input_ids, **({"mm_encoder_outputs": outputs} if outputs else {})}
