"""A spatial window that narrows with distance in time."""

from __future__ import annotations

import torch

from mmaccel.kernels.checks import require
from mmaccel.kernels.plan import BlockPlan

from ..scores import check_count
from .blocks import BlockGrid


def radial(
    frames: int,
    tokens_per_frame: int,
    *,
    decay: float = 1.0,
    sink_frames: int = 1,
    extra: int = 0,
    block_m: int = 64,
    block_n: int = 64,
    device: torch.device | str = "cpu",
) -> BlockPlan:
    """Queries read tokens near their own place, fewer the farther away in time (Radial Attention, 2025).

    Frames at a distance of `d` are read within `tokens_per_frame * decay / 2 ** floor(log2(d))` tokens of the
    query's place; neighbouring frames and its own whole. A window narrower than a block would not save
    anything more, so from there on the block at the query's place is read in every second, fourth, eighth...
    frame. Blocks read are of the order of `frames * log(frames)`.

    Parameters
    ----------
    frames, tokens_per_frame
        Of the video; tokens come frame by frame.
    decay
        Factor of all windows beyond the neighbouring frames, default 1 as in the paper's formula.
    sink_frames
        Leading frames that all see, default 1 as in the paper.
    extra
        Tokens after the video, such as those of a prompt, that see all and are seen by all; default 0.
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
        If a number is below 1 (`sink_frames` and `extra`: 0) or `decay` is not above 0.
    """
    check_count("frames", frames, 1)
    check_count("tokens_per_frame", tokens_per_frame, 1)
    check_count("sink_frames", sink_frames, 0)
    check_count("extra", extra, 0)
    require(isinstance(decay, (int, float)) and decay > 0, "decay", "above 0", decay)
    tokens = frames * tokens_per_frame + extra
    grid = BlockGrid(tokens, tokens, block_m, block_n, False, device)
    rows, columns = (_pieces(frames, tokens_per_frame, tokens, block, device) for block in (block_m, block_n))
    mask = torch.zeros(rows[0].shape[0], columns[0].shape[0], dtype=torch.bool, device=device)
    for i in range(rows[0].shape[1]):  # a block holds pieces of a few frames
        for j in range(columns[0].shape[1]):
            row, column = [x[:, i, None] for x in rows], [x[None, :, j] for x in columns]
            mask |= _meet(row, column, frames, tokens_per_frame, decay, sink_frames, min(block_n, tokens_per_frame))
    return grid.plan(mask)


def _pieces(
    frames: int, per_frame: int, tokens: int, block: int, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Frame, first and last place of the pieces of frames in each block, `[blocks, pieces]`; last < first: none.

    What follows the video counts as a frame of number `frames`.
    """
    first = torch.arange(0, tokens, block, device=device)[:, None]
    last = (first + block).clamp(max=tokens) - 1
    piece = torch.arange(-(-block // per_frame) + 2, device=device)
    frame = (first // per_frame).clamp(max=frames) + piece
    begin = frame * per_frame
    end = torch.where(frame >= frames, tokens, begin + per_frame) - 1
    low, high = torch.maximum(first, begin), torch.minimum(last, end)
    return frame, low - begin, high - begin


def _meet(
    row: list[torch.Tensor],
    column: list[torch.Tensor],
    frames: int,
    per_frame: int,
    decay: float,
    sink_frames: int,
    narrowest: int,
) -> torch.Tensor:
    """Whether any query of a piece reads any key of another."""
    (frame_q, low_q, high_q), (frame_k, low_k, high_k) = row, column
    distance = (frame_q - frame_k).abs()
    halvings = (distance.clamp(min=1).float() + 0.5).log2().floor()  # a half away from where it would round
    width = per_frame * decay * torch.exp2(-halvings)
    every = (narrowest / width).ceil().clamp(min=1)
    gap = torch.maximum(low_q - high_k, low_k - high_q).clamp(min=0)
    # too narrow a window still takes in the block at the same place
    near = (gap < torch.where(width < narrowest, 1.0, width)) & (distance.remainder(every) == 0)
    always = (distance <= 1) | (frame_k < sink_frames) | (frame_q >= frames) | (frame_k >= frames)
    return (near | always) & (high_q >= low_q) & (high_k >= low_k)
