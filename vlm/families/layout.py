"""From the patches of a vision tower to the tokens of the language model: what each of these received."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import adaptive_avg_pool2d

from ..input.spans import Grid
from ..input.visual import Visual
from .tower import Probe


def lay_grids(probe: Probe, found: list[Visual], patches: list[Grid], tower: Any, order: str) -> None:
    """Give visuals of any size the scores and keys of their patches, which come in one row.

    Parameters
    ----------
    patches
        Frames, rows and columns of patches of each.
    order
        ``"merged"`` if the patches of one token come one after the other, ``"rows"`` if those of one row of a frame do.
    """
    sizes = [rows * columns for frames, rows, columns in patches for _ in range(frames)]
    if len(probe.received) != len(sizes):  # not frame by frame, and so not padded
        sizes = [len(part) for part in probe.received]
    values = torch.cat([part[:size] for part, size in zip(probe.told(), sizes, strict=True)])
    if getattr(tower, "window_size", None):
        index = _window_index(tower, torch.tensor(patches))
        values = values.unflatten(0, (len(index), -1))[index.argsort()].flatten(0, 1)
    pool = _rows_pooled if order == "rows" else _merged
    parts = values.split([math.prod(grid) for grid in patches])
    _share(torch.cat([pool(*each) for each in zip(parts, patches, found, strict=True)]), found)


def _window_index(tower: Any, patches: torch.Tensor) -> torch.Tensor:
    """The order in which the tower of Qwen2.5-VL processes its merged tokens, `[L]`."""
    from transformers.vision_utils import get_vision_window_index  # imports torch's compiler

    sizes = {name: getattr(tower, name) for name in ("spatial_merge_size", "window_size", "patch_size")}
    index, _ = get_vision_window_index(patches, **sizes)
    return index


def _rows_pooled(values: torch.Tensor, grid: Grid, visual: Visual) -> torch.Tensor:
    planes = values.unflatten(0, grid).permute(0, 3, 1, 2)
    return adaptive_avg_pool2d(planes, visual.grid[1:]).flatten(2).transpose(1, 2).flatten(0, 1)


def _merged(values: torch.Tensor, grid: Grid, visual: Visual) -> torch.Tensor:
    frames, cells = visual.grid[0], visual.cells  # of which each may be several frames of the tower
    return values.unflatten(0, (frames, grid[0] // frames, cells, -1)).mean((1, 3)).flatten(0, 1)


def lay_tiles(
    probe: Probe,
    found: list[Visual],
    skip_last: bool = False,
    pool: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> None:
    """Give visuals of equal frames the scores and keys of their tiles, of which the tower had one for each frame.

    What the tower has beside a square of patches, such as a class token, comes before them or, with `skip_last`, after.
    `pool` makes the rows and columns of a frame of `[F, 1 + E, rows, columns]`; by default it takes means.
    """
    values = torch.stack(probe.told())
    side = math.isqrt(values.shape[1])
    values = values[:, : side**2] if skip_last else values[:, values.shape[1] - side**2 :]
    planes = values.transpose(1, 2).unflatten(2, (side, side))
    pooled = adaptive_avg_pool2d(planes, found[0].grid[1:]) if pool is None else pool(planes)
    _share(pooled.flatten(2).transpose(1, 2).flatten(0, 1), found)


def _share(laid: torch.Tensor, found: list[Visual]) -> None:
    """Hand out rows `[L, 1 + E]`, the score and the key of each token."""
    for visual, part in zip(found, laid.split([visual.grid[0] * visual.cells for visual in found]), strict=True):
        visual.hear(part)
