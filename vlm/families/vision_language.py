"""Any class of transformers that scatters the features of a vision tower into placeholders of its prompt."""

from __future__ import annotations

import functools
import inspect
import itertools
import statistics
from typing import Any

import torch
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPooling

from mmaccel.adapter import register_adapter
from mmaccel.cache.argument import CACHE_NAMES
from mmaccel.decoding.setting import mask_of, prompt_ids
from mmaccel.errors import UnsupportedTargetError

from ..input.prompt import Prompt
from ..input.spans import Grid
from ..input.visual import UNTOLD, Visual
from ..pruning.compressor import MANY, Compressor
from .layout import lay_grids, lay_tiles
from .rows import ROWS, row_of
from .tower import Probe, blocks, tower_attention
from .visual_adapter import KINDS, MASK, PIXELS, VisualAdapter

DIGITS = 2  # tokens by which the words between the frames of a clip differ, where these are numbered or have a time
TOWERS = ("vision_tower", "visual", "vision_model", "vision_encoder", "video_tower")


@register_adapter
class VisionLanguageAdapter(VisualAdapter):
    """Reads placeholders, the call that makes features, and the rule of positions from the class and its configuration.

    What cannot be read there is a line of :data:`mmaccel.vlm.families.rows.ROWS`.
    """

    family = "vision_language"
    advice = "the other compressors work on it, such as vlm.HoliTom"
    classes = tuple(name for name, row in ROWS.items() if not row.reads)

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.row = row_of(target)
        self.counted = self.row.counted
        self.stacked, self.carried = False, None
        self.kind: type[Any] = BaseModelOutputWithPooling
        deep = getattr(target.config.vision_config, "deepstack_visual_indexes", None) or ()
        self.first_cut = max(1 + min(self.attending(), default=0), len(deep))

    @property
    def tower(self) -> Any:
        return next(getattr(self.model, name) for name in TOWERS if hasattr(self.model, name))

    def check(self, method: Any) -> None:
        super().check(method)
        reads = getattr(method, "needs_attention", False) or getattr(method, "needs_key", False)
        why = self.row.unplaced or ("" if tower_attention(self.tower) else "no attention that can be read")
        if reads and why:
            raise UnsupportedTargetError(
                f"{method.name} ranks tokens by the attention in the vision tower, and that of"
                f" {type(self.target).__name__} has {why}: vlm.VidCom2 does without"
            )
        if isinstance(method, Compressor) and method.merges_after(MANY) and not blocks(self.tower):
            raise UnsupportedTargetError(
                f"{method.name} merges frames between the layers of a vision tower, and that of"
                f" {type(self.target).__name__} has none in a list: vlm.VidCom2 does without"
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
        if self.row.cells:
            return int(functools.reduce(getattr, self.row.cells.split("."), config))
        return int((config.vision_config.image_size // config.vision_config.patch_size // self.merge) ** 2)

    def grids(self, kind: str, kwargs: dict[str, Any]) -> list[Grid] | None:
        patches, merge = self._patches(kind, kwargs), self.merge
        if patches is not None:
            return [(frames, rows // merge, columns // merge) for frames, rows, columns in patches]
        ids = prompt_ids(kwargs)
        if kind != "image" or not self.row.tiles or ids is None:
            return None
        return [_square(self.cells)] * (int((ids == self.token_id(kind)).sum()) // self.cells)

    def clips(self, kind: str, kwargs: dict[str, Any], seen: int = 0) -> list[tuple[int, int]]:
        patches = self._patches(kind, kwargs)
        if patches is not None:
            return [(frames, rows * columns) for frames, rows, columns in patches]
        if not self.row.tiles:
            return []
        counts = self._counts(kind, _shown(kwargs[PIXELS[kind]], kind), self.cells, kwargs, seen)
        return [(count, 1) for count in counts]

    def visuals(
        self, kind: str, output: Any, kwargs: dict[str, Any], probe: Probe | None, seen: int = 0
    ) -> list[Visual]:
        features = self._features(output)
        self.stacked, self.kind = isinstance(features, torch.Tensor), type(output)
        self.carried = getattr(output, self.row.carried, None) if self.row.carried else None
        entries = [part.reshape(-1, part.shape[-1]) for part in features]
        patches = self._patches(kind, kwargs)
        if patches is None:
            found = self._tiles(kind, entries, kwargs, seen)
        else:
            grids = [_merged(grid, len(part)) for grid, part in zip(patches, entries, strict=True)]
            found = [Visual.of_frames(part, grid) for part, grid in zip(entries, grids, strict=True)]
        if probe is not None and patches is not None:
            lay_grids(probe, found, patches, self.tower, self.row.order)
        elif probe is not None:
            lay_tiles(probe, found, self.row.skip_last)
        for layer in getattr(output, "deepstack_features", None) or ():
            for visual, part in zip(found, layer, strict=True):
                visual.extra = (*visual.extra, part)
        return _placed(found, kwargs[MASK]) if kind == "video" and kwargs.get(MASK) is not None else found

    def _features(self, output: Any) -> Any:
        """What the language model gets: a tensor, or one for each picture."""
        if self.row.projector:
            return getattr(self.model, self.row.projector)(output.last_hidden_state)
        return output.pooler_output

    def _patches(self, kind: str, kwargs: dict[str, Any]) -> list[Grid] | None:
        """Frames, rows and columns of patches where pictures have any size; None where all are alike."""
        if self.row.tiles and self.row.order != "rows":
            return None
        of_molmo = kwargs.get("video_grids") if kind == "video" else None  # in tokens, and no patches
        grid_thw, sizes = kwargs.get(f"{kind}_grid_thw", of_molmo), kwargs.get("image_sizes")
        if grid_thw is not None:
            return [(t, rows, columns) for t, rows, columns in grid_thw.tolist()]
        if sizes is not None:
            patch = self.target.config.vision_config.patch_size
            return [(1, int(height) // patch, int(width) // patch) for height, width in sizes]
        if kwargs.get("spatial_shapes") is not None:
            return [(1, rows, columns) for rows, columns in kwargs["spatial_shapes"].tolist()]
        places = kwargs.get(f"{kind}_position_ids")  # x and y of each patch, -1 for padding
        if places is None:
            return None
        found = [(1, rows, columns) for columns, rows in (places.amax(1) + 1).tolist()]
        counts = kwargs.get("num_frames_per_video") if kind == "video" else None
        if counts is None:
            return found
        starts = [0, *counts.cumsum(0).tolist()[:-1]]
        return [(count, *found[start][1:]) for start, count in zip(starts, counts.tolist(), strict=True)]

    def _tiles(self, kind: str, entries: list[torch.Tensor], kwargs: dict[str, Any], seen: int) -> list[Visual]:
        """Pictures or tiles apart, or those that stand in for frames of a video together."""
        if not self.row.tiles:
            unframed = UNTOLD if kind == "video" else ""
            return [Visual.of_frames(part, _square(len(part)), unframed=unframed) for part in entries]
        cells = len(entries[0]) if self.stacked else self.cells
        flat = torch.cat(entries)
        if len(flat) % cells:  # said with the placeholders
            cells = len(flat)
        tiles = len(flat) // cells
        counts = self._counts(kind, tiles, cells, kwargs, seen)
        _, rows, columns = _square(cells)
        parts = flat.split([count * cells for count in counts])
        return [Visual.of_frames(part, (count, rows, columns)) for part, count in zip(parts, counts, strict=True)]

    def _counts(self, kind: str, tiles: int, cells: int, kwargs: dict[str, Any], seen: int) -> list[int]:
        """The number of tiles of each picture or video."""
        if kind == "video" and kwargs.get(PIXELS[kind]) is not None:
            return [kwargs[PIXELS[kind]].shape[1]] * len(kwargs[PIXELS[kind]])
        return self._frames(kind, tiles, cells, kwargs, seen) if self.row.frames else [1] * tiles

    def _frames(self, kind: str, tiles: int, cells: int, kwargs: dict[str, Any], seen: int) -> list[int]:
        """The number of tiles of each picture or video, those of earlier turns and of the new one apart."""
        rows = (kwargs["input_ids"] == self.token_id(kind)).tolist()
        counts = [count for row in rows for count in _joined(row[seen:], cells)]
        if sum(counts) != tiles:  # not only those that are new were given
            counts = [count for row in rows for turn in (row[:seen], row[seen:]) for count in _joined(turn, cells)]
        return counts if sum(counts) == tiles else [tiles]

    def positions(self, kwargs: dict[str, Any]) -> torch.Tensor | None:
        rule = self.target._prepare_position_ids_for_generation
        if rule.__func__ is GenerationMixin._prepare_position_ids_for_generation:
            return None  # they count up
        kinds = [kind for kind in KINDS if kwargs.get(f"{kind}_grid_thw") is not None]
        if not kinds:
            return None
        ids = kwargs["input_ids"]
        given = {name: kwargs[name] for name in kwargs.keys() - {*CACHE_NAMES, "input_ids"}}
        given["attention_mask"] = mask_of(self.target, kwargs)  # without one, some rules count up
        if given.get("mm_token_type_ids") is None:
            numbers = [(ids == self.token_id(kind)).int() * (KINDS.index(kind) + 1) for kind in kinds]
            given["mm_token_type_ids"] = sum(numbers)
        before = self.model.rope_deltas
        positions: torch.Tensor = rule(ids, given)
        self.model.rope_deltas = before
        if len(positions) > 3 or not self.counted:  # a count comes before time, row and column
            return positions
        text = torch.arange(ids.shape[1], device=ids.device).expand(1, *ids.shape)
        return torch.cat([text, positions])

    def inputs(self, prompt: Prompt) -> dict[str, Any]:
        visuals = [visual for found in prompt.visuals.values() for visual in found]
        takes = inspect.signature(self.target.prepare_inputs_for_generation).parameters
        if "inputs_embeds" in takes and not self.row.own and not any(visual.extra for visual in visuals):
            return super().inputs(prompt)
        outputs = {kind: self._encoded(found) for kind, found in prompt.visuals.items()}
        return {"input_ids": prompt.input_ids, **({"mm_encoder_outputs": outputs} if outputs else {})}

    def _encoded(self, visuals: list[Visual]) -> Any:
        """What the model's own call of the tower would have returned."""
        features: Any = tuple(visual.features for visual in visuals)
        if self.stacked:  # each token a picture of its own: `generate` deals them out to beams by number
            features = torch.cat(features)[:, None]
        more: dict[str, Any] = {self.row.carried: self.carried} if self.row.carried else {}
        if visuals[0].extra:
            more["deepstack_features"] = [list(layer) for layer in zip(*(v.extra for v in visuals), strict=True)]
        return self.kind(pooler_output=features, **more)  # off-loaded, a model gets a copy: the fields of its class


@register_adapter
class PageReaderAdapter(VisionLanguageAdapter):
    """Classes made to read pages: all works that does on the others, but no preset was measured to pay."""

    family = "page_reader"
    classes = tuple(name for name, row in ROWS.items() if row.reads)


def _shown(pixels: torch.Tensor, kind: str) -> int:
    """Pictures or tiles in `[..., C, H, W]`, less those of zeros that pad rows with fewer, which no tower gets."""
    if kind == "video" or pixels.dim() < 5:
        return pixels.shape[:-3].numel()
    return max(1, int(pixels.flatten(-3).any(-1).sum()))


def _joined(places: list[bool], cells: int) -> list[int]:
    """The number of tiles of each picture or video, by the placeholders of one turn.

    Tiles that stand apart from each other are the frames of one video, several in a row the parts of one picture.

    Examples
    --------
    >>> _joined([*[True, True, False] * 3, *[True] * 4, False, True, True], cells=2)
    [3, 1, 1, 1]
    """
    lengths = [len([*run]) for _, run in itertools.groupby([False, *places])]  # words and tiles by turns
    tiles, words = [length // cells for length in lengths[1::2]], lengths[2::2]
    found: list[int] = []
    for alone, group in itertools.groupby(range(len(tiles)), lambda number: tiles[number] == 1):
        numbers = [*group]
        between = [words[number] for number in numbers[:-1]]
        found += _clips(between) if alone else [1] * sum(tiles[number] for number in numbers)
    return found


def _clips(between: list[int]) -> list[int]:
    """The number of frames of each clip, by the words between neighbours: within a clip there are about as many.

    Examples
    --------
    >>> _clips([7, 7, 8, 30, 3])
    [4, 1, 1]
    """
    usual, found = statistics.median_low(between or [0]), [1]
    for words in between:
        if abs(words - usual) > DIGITS:
            found.append(1)
        else:
            found[-1] += 1
    return found


def _placed(visuals: list[Visual], mask: torch.Tensor) -> list[Visual]:
    """Videos with the tokens that have a placeholder."""
    masks = mask.to(visuals[0].features.device).split([len(visual.features) for visual in visuals])
    return [visual if stays.all() else visual.only(stays) for visual, stays in zip(visuals, masks, strict=True)]


def _square(cells: int) -> Grid:
    side = round(cells**0.5)
    return (1, side, side) if side**2 == cells else (1, 1, cells)


def _merged(patches: Grid, tokens: int) -> Grid:
    """Frames, rows and columns of tokens that such patches become; one line where others lie between them."""
    frames, rows, columns = patches
    for merge in range(8, 0, -1):  # a smaller one fits too where there are many frames
        cells = (rows // merge) * (columns // merge)
        if cells and tokens % cells == 0 and tokens // cells <= frames:
            return tokens // cells, rows // merge, columns // merge
    return 1, 1, tokens
