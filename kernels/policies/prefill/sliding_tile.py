"""A window over a video, moved tile by tile."""

from __future__ import annotations

from typing import Any

import torch

from mmaccel.kernels.checks import require
from mmaccel.kernels.plan import BlockPlan

from ..scores import check_count
from .blocks import BlockGrid

Triple = tuple[int, int, int]


def sliding_tile(
    grid: Triple,
    tile: Triple,
    window: Triple,
    *,
    extra: int = 0,
    block_m: int = 64,
    block_n: int = 64,
    device: torch.device | str = "cpu",
) -> BlockPlan:
    """Each tile of a video reads the tiles in a 3D window around it (Sliding Tile Attention, 2025).

    Tokens must come tile by tile: reorder them with :func:`tile_order`. At the borders the window is moved
    inwards and keeps its size. Exact where tiles are whole blocks (the volume of `tile` is a multiple of
    `block_m` and `block_n`); otherwise a block reads what any of its tiles reads.

    Parameters
    ----------
    grid
        Tokens along frames, height and width (F, H, W).
    tile
        Tokens of a tile along the same axes; each divides that of `grid`.
    window
        Tiles along the same axes, odd numbers; larger ones than the grid see all of that axis. The paper's for
        the Hunyuan video model: (3, 3, 3) with tiles of (6, 8, 8).
    extra
        Tokens after the grid, such as those of a prompt, that see all and are seen by all; default 0.
    block_m, block_n
        Queries and keys in a block, default 64.
    device
        Of the plan.

    Returns
    -------
    A plan of batch 1 and one head, for all; bidirectional.

    Raises
    ------
    ValueError
        If `tile` does not divide `grid`, a `window` is even, or a number is below 1 (`extra`: 0).
    """
    check_grid(grid, tile)
    _check_triple("window", window)
    require(all(w % 2 for w in window), "window", "three odd numbers", window)
    check_count("extra", extra, 0)
    tokens = grid[0] * grid[1] * grid[2] + extra
    blocks = BlockGrid(tokens, tokens, block_m, block_n, False, device)
    volume, counts = tile[0] * tile[1] * tile[2], [length // size for length, size in zip(grid, tile, strict=True)]
    tiles = counts[0] * counts[1] * counts[2]
    # those behind the grid stand in a tile of their own
    rows, columns = (_touched(tokens, block, volume, tiles + bool(extra), device) for block in (block_m, block_n))
    read = rows[:, :tiles].unflatten(1, counts)
    for count, width in zip(counts, window, strict=True):  # the axis in front goes to the end, and after all three
        read = torch.tensordot(read, _near(count, width, device).to(rows.dtype), ([1], [0]))  # each is at its place
    read = read.flatten(1)
    if extra:
        read = torch.nn.functional.pad(read + rows[:, -1:], (0, 1), value=1.0)
    return blocks.plan(read @ columns.transpose(0, 1) > 0)


def tile_order(grid: Triple, tile: Triple, *, device: torch.device | str = "cpu") -> torch.Tensor:
    """Raster numbers of tokens in tile order, int64 `[F * H * W]`: ``x[:, tile_order(grid, tile)]`` is tile by tile.

    The way back is its ``argsort()``. Raises a ValueError if `tile` does not divide `grid`.
    """
    check_grid(grid, tile)
    frames, height, width = grid
    number = torch.arange(frames * height * width, device=device)
    parts = number.view(frames // tile[0], tile[0], height // tile[1], tile[1], width // tile[2], tile[2])
    return parts.permute(0, 2, 4, 1, 3, 5).flatten()


def check_grid(grid: Triple, tile: Triple) -> None:
    """Raise unless both are triples and `tile` divides `grid`."""
    _check_triple("grid", grid)
    _check_triple("tile", tile)
    divides = all(length % size == 0 for length, size in zip(grid, tile, strict=True))
    require(divides, "tile", f"a divisor of grid {tuple(grid)} along each axis", tile)


def _check_triple(name: str, value: Any) -> None:
    fits = isinstance(value, (tuple, list)) and len(value) == 3
    fits = fits and all(isinstance(x, int) and not isinstance(x, bool) and x >= 1 for x in value)
    require(fits, name, "three whole numbers of at least 1", value)


def _near(tiles: int, width: int, device: torch.device | str) -> torch.Tensor:
    """Which tiles each tile reads along one axis."""
    place, reach = torch.arange(tiles, device=device), width // 2
    if width >= tiles:
        return torch.ones(tiles, tiles, dtype=torch.bool, device=device)
    centre = place.clamp(reach, tiles - 1 - reach)
    return (centre[:, None] - place).abs() <= reach


def _touched(tokens: int, block: int, volume: int, tiles: int, device: torch.device | str) -> torch.Tensor:
    """Which tiles each block holds tokens of, float32 `[blocks, tiles]`."""
    first = torch.arange(0, tokens, block, device=device)
    last = (first + block).clamp(max=tokens) - 1
    tile = torch.arange(tiles, device=device)
    low, high = ((x // volume).clamp(max=tiles - 1)[:, None] for x in (first, last))
    return ((tile >= low) & (tile <= high)).float()
