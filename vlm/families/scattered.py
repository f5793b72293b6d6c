"""Any class of transformers that scatters the features of a vision tower into placeholders of its prompt."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPooling

from mmaccel.adapter import register_adapter
from mmaccel.errors import UnsupportedTargetError

from ..input.prompt import Prompt
from ..input.spans import Grid
from ..input.visual import Visual
from .layout import lay_grids, lay_tiles
from .rows import ROWS, row_of
from .tower import Probe, attention_layers
from .visual_adapter import KINDS, VisualAdapter

TOWERS = ("vision_tower", "visual", "vision_model", "vision_encoder")


@register_adapter
class ScatteredAdapter(VisualAdapter):
    """Reads placeholders, the call that makes features, and the rule of positions from the class and its configuration.

    What cannot be read there is a line of :data:`mmaccel.vlm.families.rows.ROWS`.
    """

    family = "scattered"
    classes = tuple(ROWS)

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.row = row_of(target)
        vision = target.config.vision_config
        self.first_cut = max(1, len(getattr(vision, "deepstack_visual_indexes", None) or ()))

    @property
    def tower(self) -> Any:
        return next(getattr(self.model, name) for name in TOWERS if hasattr(self.model, name))

    def check(self, method: Any) -> None:
        super().check(method)
        if not (getattr(method, "needs_attention", False) or getattr(method, "needs_key", False)):
            return
        why = "no attention that can be read" if not attention_layers(self.tower) else self.row.unplaced
        if why:
            raise UnsupportedTargetError(
                f"{method.name} ranks tokens by the attention in the vision tower, and that of"
                f" {type(self.target).__name__} has {why}: vlm.VidCom2 does without"
            )

    def token_id(self, kind: str) -> int:
        return super().token_id(self.row.video if kind == "video" else kind)

    @property
    def merge(self) -> int:
        """Rows of patches in a row of tokens."""
        names = ("spatial_merge_size", "merge_size", "downsample_factor", "scale_factor")
        places = (self.tower, self.target.config.vision_config, self.target.config)
        found = (getattr(place, name, None) for place in places for name in names)
        return next((int(value) for value in found if value is not None), 1)

    @property
    def cells(self) -> int:
        """Tokens of a tile."""
        config = self.target.config
        told = self.row.cells and getattr(config, self.row.cells, None)
        vision = config.vision_config
        return int(told or (vision.image_size // vision.patch_size // self.merge) ** 2)

    def grids(self, kind: str, kwargs: dict[str, Any]) -> list[Grid] | None:
        grid_thw, merge = kwargs.get(f"{kind}_grid_thw"), self.merge
        if grid_thw is not None:
            return [(t, rows // merge, columns // merge) for t, rows, columns in grid_thw.tolist()]
        if self.row.tiles and kind == "image":
            tiles = int((kwargs["input_ids"] == self.token_id(kind)).sum()) // self.cells
            return [_square(self.cells)] * tiles
        return None

    def visuals(
        self, kind: str, output: Any, kwargs: dict[str, Any], probe: Probe | None, seen: int = 0
    ) -> list[Visual]:
        entries = [part.reshape(-1, part.shape[-1]) for part in output.pooler_output]
        grid_thw = kwargs.get(f"{kind}_grid_thw")
        if grid_thw is not None:
            grids = self.grids(kind, kwargs) or []
            found = [Visual.of_frames(part, _fitting(grid, len(part))) for part, grid in zip(entries, grids, strict=True)]
            if probe is not None:
                lay_grids(probe, found, grid_thw, self.tower, self.row.order)
        else:
            found = self._tiles(kind, torch.cat(entries), kwargs, seen) if self.row.tiles else _alone(entries)
            if probe is not None:
                lay_tiles(probe, found, self.tower)
        for layer in getattr(output, "deepstack_features", None) or ():
            for visual, part in zip(found, layer, strict=True):
                visual.extra = (*visual.extra, part)
        return found

    def _tiles(self, kind: str, flat: torch.Tensor, kwargs: dict[str, Any], seen: int) -> list[Visual]:
        """Tiles apart, or those of each prompt as the frames of one video."""
        cells = self.cells
        if len(flat) % cells:  # said with the placeholders
            return _alone([flat])
        counts = [1] * (len(flat) // cells)
        if self.row.frames:
            counts = self._frames(kind, len(flat) // cells, kwargs, seen)
        _, rows, columns = _square(cells)
        parts = flat.split([count * cells for count in counts])
        return [Visual.of_frames(part, (count, rows, columns)) for part, count in zip(parts, counts, strict=True)]

    def _frames(self, kind: str, tiles: int, kwargs: dict[str, Any], seen: int) -> list[int]:
        """The number of tiles of each prompt, earlier turns and the new one apart."""
        places = kwargs["input_ids"] == self.token_id(kind)
        turns = torch.stack([places[:, :seen].sum(1), places[:, seen:].sum(1)], 1) // self.cells
        if int(turns[:, 1].sum()) == tiles:  # only those that are new were given
            turns[:, 0] = 0
        counts = [count for count in turns.flatten().tolist() if count]
        return counts if sum(counts) == tiles else [tiles]

    def positions(self, kwargs: dict[str, Any]) -> torch.Tensor | None:
        rule = self.target._prepare_position_ids_for_generation
        if rule.__func__ is GenerationMixin._prepare_position_ids_for_generation:
            return None  # they count up
        kinds = [kind for kind in KINDS if kwargs.get(f"{kind}_grid_thw") is not None]
        if not kinds:
            return None
        ids, given = kwargs["input_ids"], {name: kwargs[name] for name in kwargs.keys() - {"past_key_values", "input_ids"}}
        if given.get("mm_token_type_ids") is None:
            given["mm_token_type_ids"] = sum((ids == self.token_id(kind)).int() * (KINDS.index(kind) + 1) for kind in kinds)
        before = self.model.rope_deltas
        positions: torch.Tensor = rule(ids, given)
        self.model.rope_deltas = before
        return positions

    def inputs(self, prompt: Prompt) -> dict[str, Any]:
        if not any(visual.extra for visuals in prompt.visuals.values() for visual in visuals):
            return super().inputs(prompt)
        outputs = {}
        for kind, visuals in prompt.visuals.items():
            features: Any = tuple(visual.features for visual in visuals)  # one for each, where others have a tensor
            output: Any = BaseModelOutputWithPooling(pooler_output=features)
            output.deepstack_features = [list(layer) for layer in zip(*(v.extra for v in visuals), strict=True)]
            outputs[kind] = output
        return {"input_ids": prompt.input_ids, "mm_encoder_outputs": outputs}


def _square(cells: int) -> Grid:
    side = round(cells**0.5)
    return (1, side, side) if side**2 == cells else (1, 1, cells)


def _alone(entries: list[torch.Tensor]) -> list[Visual]:
    """Pictures of any size."""
    return [Visual.of_frames(part, _square(len(part))) for part in entries]


def _fitting(grid: Grid, tokens: int) -> Grid:
    """A grid whose frames the projector may have merged; a line of tokens where there are others among them."""
    _, rows, columns = grid
    return (1, 1, tokens) if tokens % (rows * columns) else (tokens // (rows * columns), rows, columns)
