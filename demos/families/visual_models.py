"""Small models of transformers' vision-language classes, with the arguments of a call.

`visual_models.json` has a line for each class: what its configuration needs beside `TEXT` and `VISION`, and how its
processor hands pictures over.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers

from mmaccel.vlm import visual_examples
from mmaccel.vlm.visual_examples import FRAMES, IMAGE, NEW_TOKENS, PLACEHOLDERS, TEXT, VIDEO, WEIGHT_SCALE, sharp

from .written import read_rows

# Classes of transformers that are shown pictures and are not built; all other reasons are in `REFUSED`.
UNTRIED = (
    "Apertus1p5ForConditionalGeneration",
    "DeepseekOcr2ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Granite4VisionForConditionalGeneration",
    "GraniteDoclingForConditionalGeneration",
    "HYV4VLForConditionalGeneration",
    "InklingForConditionalGeneration",
    "Inkling2ForConditionalGeneration",
    "Inkling2LoopForConditionalGeneration",
    "MiniCPMOcrForConditionalGeneration",
    "MiniCPMV4_7ForConditionalGeneration",
    "NemotronH_Omni_Reasoning_V3",
    "UnlimitedOcrForConditionalGeneration",
)
rows = functools.partial(read_rows, "visual_models.json")
VISION = {**visual_examples.VISION, "image_size": 32, "patch_size": 4}
PACKED = {**VISION, "depth": 2, "num_heads": 4, "out_hidden_size": 32}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SIDE = 32
ROWS, COLUMNS = 8, 8  # patches of a frame, of which 2 x 2 are a token


def build(name: str, seed: int = 0, scale: float = WEIGHT_SCALE) -> tuple[Any, Callable[..., dict[str, Any]]]:
    """A model of a class, and ``arguments(batch, frames, **more)`` of a greedy call."""
    row = rows()[name]
    cls = getattr(transformers, name)
    text = {**TEXT, **row.get("text", {})}
    if section := text.pop("mrope", None):
        text["rope_parameters"] = {**ROPE, "mrope_section": section}
    vision = {**(PACKED if row["call"] == "grid" else VISION), **row.get("vision", {})}
    names = cls.config_class.attribute_map or {}
    tokens = {names.get(name, name): PLACEHOLDERS[name] for name in ("video_token_id", "image_token_id")}
    config = cls.config_class(
        text_config=text, vision_config=vision, tie_word_embeddings=False, **{**tokens, **row.get("more", {})}
    )
    model = sharp(lambda: filled(cls(config)), seed, scale)
    return model, functools.partial(_CALLS[row["call"]], model, row)


def filled(model: torch.nn.Module) -> torch.nn.Module:
    """A model without matrices of zeros, which untrained ones may have, and which nothing would come out of."""
    for value in model.parameters():
        if value.dim() > 1 and not value.any():
            torch.nn.init.normal_(value, std=0.02)
    return model


def _call(visual: list[int], batch: int, more: dict[str, Any], **pixels: Any) -> dict[str, Any]:
    return {**visual_examples.prompt(batch, visual), "max_new_tokens": NEW_TOKENS, "do_sample": False, **pixels, **more}


def _grid(model: Any, row: dict[str, Any], batch: int = 1, frames: int = FRAMES, **more: Any) -> dict[str, Any]:
    """Patches in one row; a video, or pictures where the class has no video."""
    kind = row.get("kind", "video")
    vision, token = model.config.vision_config, IMAGE if row.get("placeholder") == "image" or kind == "image" else VIDEO
    length = 3 * getattr(vision, row.get("temporal", "temporal_patch_size"), 1) * vision.patch_size**2
    generator = torch.Generator().manual_seed(0)
    scene = torch.randn(batch, 1, ROWS * COLUMNS, length, generator=generator)
    pixels = (scene + 0.3 * torch.randn(batch, frames, ROWS * COLUMNS, length, generator=generator)).flatten(0, 2)
    stamp = [5, 6] if row.get("stamp") or kind == "image" else []
    visual = [*stamp, *[token] * row.get("cells", ROWS * COLUMNS // 4)] * (frames // row.get("joined", 1))
    whole = [[frames, ROWS, COLUMNS]] * batch if kind == "video" else [[1, ROWS, COLUMNS]] * (batch * frames)
    call = _call([*row.get("before", []), *visual, *row.get("after", [])], batch, more)
    shape = row.get("patch")
    call["pixel_values_videos" if kind == "video" else "pixel_values"] = pixels.view(-1, *shape) if shape else pixels
    call[f"{kind}_grid_thw"] = torch.tensor(whole)
    if row.get("merge_sizes"):
        call[f"{kind}_merge_sizes"] = torch.tensor([2] * len(whole))
    if row.get("seconds"):
        call["video_second_per_grid"] = torch.ones(batch)
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
        call["mm_token_type_ids"] = (call["input_ids"] == token).int() * (2 if kind == "video" else 1)
    if "moe_mm_token_type_ids" in inspect.signature(model.forward).parameters:  # by which it chooses experts
        call["moe_mm_token_type_ids"] = call["mm_token_type_ids"].clone()
    return call


def _tiles(model: Any, row: dict[str, Any], batch: int = 1, frames: int = FRAMES, **more: Any) -> dict[str, Any]:
    """Tiles of one size."""
    visual = [5, *[IMAGE] * row["cells"], 6] * frames
    pixels = visual_examples.clip(batch, frames, SIDE)
    call = _call(visual, batch, more, pixel_values=pixels.flatten(0, int(row["call"] == "tiles")))
    if row.get("high"):
        call["high_res_pixel_values"] = visual_examples.clip(batch, frames, 2 * SIDE).flatten(0, 1)
    if row.get("types"):
        call["token_type_ids"] = (call["input_ids"] == IMAGE).int()
    return call


def _sizes(model: Any, row: dict[str, Any], batch: int = 1, frames: int = FRAMES, **more: Any) -> dict[str, Any]:
    """Pictures of any size, with a token between their rows."""
    lines = [[IMAGE] * 4 + [7]] * 4
    visual = [token for _ in range(frames) for token in [5, *sum(lines, [])]]
    pixels = visual_examples.clip(batch, frames, SIDE).flatten(0, 1)
    sizes = torch.tensor([[SIDE, SIDE]] * len(pixels))
    return _call(visual, batch, more, pixel_values=pixels, image_sizes=sizes)


def _onevision(model: Any, row: dict[str, Any], batch: int = 1, frames: int = FRAMES, **more: Any) -> dict[str, Any]:
    """One picture in two tiles, the whole and an enlarged one, whose lines end in newline tokens."""
    pixels = visual_examples.clip(batch, 2, SIDE)
    sizes = torch.tensor([[SIDE, SIDE]] * batch)
    return _call([5, *[IMAGE] * row["cells"]], batch, more, pixel_values=pixels, image_sizes=sizes)


def _videos(model: Any, row: dict[str, Any], batch: int = 1, frames: int = FRAMES, **more: Any) -> dict[str, Any]:
    """Videos of frames of one size."""
    visual = [VIDEO] * (row["cells"] * frames + row.get("ends", 0))
    return _call(visual, batch, more, pixel_values_videos=visual_examples.clip(batch, frames, SIDE))


def _patches(model: Any, row: dict[str, Any], batch: int = 1, frames: int = FRAMES, **more: Any) -> dict[str, Any]:
    """Pictures of any size as rows of patches, with the place of each."""
    patch = model.config.vision_config.patch_size
    pixels = visual_examples.clip(batch, frames, SIDE).flatten(0, 1)
    rows = pixels.unfold(2, patch, patch).unfold(3, patch, patch).permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
    call = _call([5, *[IMAGE] * row["cells"], 6] * frames, batch, more, pixel_values=rows)
    places = torch.cartesian_prod(torch.arange(SIDE // patch), torch.arange(SIDE // patch))
    call.update(_PLACES[row["places"]](len(rows), places))
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
        call["mm_token_type_ids"] = (call["input_ids"] == IMAGE).int()
    return call


_PLACES: dict[str, Callable[[int, torch.Tensor], dict[str, Any]]] = {
    "image_position_ids": lambda count, places: {"image_position_ids": places.flip(1).repeat(count, 1, 1)},
    "spatial_shapes": lambda count, places: {
        "spatial_shapes": torch.tensor([[ROWS, COLUMNS]] * count),
        "pixel_attention_mask": torch.ones(count, len(places), dtype=torch.long),
    },
    "image_grids": lambda count, places: {
        "image_grids": torch.tensor([[4, 4, 0, 0]] * count),
        "image_token_pooling": torch.arange(count * len(places)).view(count * len(places) // 4, 4),
    },
}


def _packed(model: Any, row: dict[str, Any], batch: int = 1, frames: int = FRAMES, **more: Any) -> dict[str, Any]:
    """Patches of all pictures side by side, and the size of each picture."""
    patch = model.config.vision_config.patch_size
    pixels = visual_examples.clip(batch, frames, SIDE).flatten(0, 1)
    rows = pixels.unfold(2, patch, patch).unfold(3, patch, patch).permute(1, 4, 0, 2, 3, 5).flatten(2)
    sizes = torch.tensor([[SIDE // patch, SIDE // patch]] * len(pixels))
    return _call([5, *[IMAGE] * row["cells"], 6] * frames, batch, more, pixel_values=rows[None], target_sizes=sizes)


_CALLS = {
    "grid": _grid,
    "tiles": _tiles,
    "rows": _tiles,
    "sizes": _sizes,
    "onevision": _onevision,
    "videos": _videos,
    "patches": _patches,
    "packed": _packed,
}
