"""Which tiles the attention kernels use, by architecture, head dimension and element size.

A table instead of autotuning: nothing is measured at the first call, results do not depend on it, and every entry is
compiled ahead of time by the tests, for no stack use and for the shared memory of the architecture.
"""

from __future__ import annotations

from typing import NamedTuple

from .launch import power_of_two


class Tile(NamedTuple):
    """Queries and keys that one step works on, warps of a program, stages of its load pipeline."""

    block_m: int
    block_n: int
    warps: int
    stages: int


_SHARED_KIB = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
# what the softmax needs beside the tiles
_RESERVE_KIB = 4


def shared_memory(arch: int) -> int:
    """Bytes of shared memory one program may use; for an unknown architecture the least of all."""
    return _SHARED_KIB.get(arch, 99) * 1024


def attention_tile(arch: int, width: int, item_size: int) -> Tile:
    """Tile of `block_sparse_attention` for head dimension `width`."""
    padded = power_of_two(width)
    if arch == 0:  # the interpreter: few steps, small enough to show errors at borders
        return Tile(64, 64, 4, 1)
    if item_size == 4:
        # without tensor cores operands pass through registers, of which a padded width takes more
        tile = Tile(16, 16, 8, 1) if padded != width or width > 128 else Tile(32, 16, 4, 1)
    elif width > 128:
        tile = Tile(64, 32, 8, 2)
    elif 90 <= arch < 120:
        tile = Tile(128, 128, 8, 3) if width <= 64 else Tile(128, 64, 8, 3)
    else:
        tile = Tile(128, 64, 8, 3) if width <= 64 else Tile(128, 32, 8, 3)
    return _fit(tile, arch, padded, item_size)


def verify_tile(arch: int, width: int, item_size: int, rows: int) -> Tile:
    """Tile of `verify_attention` for `rows` packed rows of a key head."""
    if arch == 0:
        return Tile(16 if rows <= 16 else 32, 64, 4, 1)
    if item_size == 4:
        return Tile(16, 32, 8, 1)
    block_m = min(power_of_two(rows), 32 if width <= 64 else 16)
    tile = Tile(block_m, 64 if block_m == 16 and width <= 128 else 32, 4, 3)
    return _fit(tile, arch, power_of_two(width), item_size)


def cut(tile: Tile, block_m: int, block_n: int) -> Tile:
    """`tile` made no larger than the blocks of a plan; larger blocks are worked on in parts."""
    smaller = min(tile.block_m, block_m)
    warps = 4 if smaller < 128 and smaller < tile.block_m else tile.warps
    return Tile(smaller, min(tile.block_n, block_n), warps, tile.stages)


def _fit(tile: Tile, arch: int, width: int, item_size: int) -> Tile:
    """Fewer stages, and then fewer rows, where the pipeline would not fit in shared memory."""

    def used(stages: int) -> int:
        rows = tile.block_m + 2 * tile.block_n * stages
        return rows * width * item_size + tile.block_m * tile.block_n * item_size + _RESERVE_KIB * 1024

    stages = tile.stages
    while stages > 1 and used(stages) > shared_memory(arch):
        stages -= 1
    if used(stages) > shared_memory(arch) and tile.block_m > 16:
        return _fit(tile._replace(block_m=tile.block_m // 2), arch, width, item_size)
    return tile._replace(stages=stages)
