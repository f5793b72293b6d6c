"""The same share of blocks for every row, by the scores of block means."""

from __future__ import annotations

import math

import torch

from mmaccel.kernels.plan import BlockPlan

from ..scores import check_share
from .blocks import BlockGrid, keep_first, share_of


def pooled_top_k(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    density: float = 0.25,
    causal: bool = True,
    block_m: int = 64,
    block_n: int = 64,
    scale: float | None = None,
) -> BlockPlan:
    """Each block of queries reads the key blocks whose means score highest (block top-k as in MInference, 2024).

    Parameters
    ----------
    q : `[B, Hq, M, D]`, k : `[B, Hkv, N, D]`
        Rotated queries and keys; `M` may be smaller than `N` (chunked prefill).
    density
        Share of a row's visible blocks that is kept, to the nearest whole number; default 0.25, below which a
        sparse kernel pays on every device. The first block and, if `causal`, the diagonal come first and are
        always kept.
    causal
        That of the call, default True.
    block_m, block_n
        Queries and keys in a block, default 64.
    scale
        Of the scores, by default ``D ** -0.5``; here it does not change the order.

    Returns
    -------
    A plan per batch row and query head.

    Raises
    ------
    ValueError
        If shapes do not fit or `density` is not in (0, 1].
    """
    check_share("density", density)
    grid = BlockGrid.of(q, k, block_m, block_n, causal)
    scores = grid.pooled_scores(q, k, scale)
    if not causal:
        # every row keeps as many, so that the plan is their numbers; the first block is always among them
        count = blocks_of_row(scores.shape[3], density)
        scores[..., 0] = torch.inf
        chosen = scores.topk(count).indices.sort(dim=-1).values
        return BlockPlan.from_columns(chosen, q_len=q.shape[2], kv_len=k.shape[2], block_m=block_m, block_n=block_n)
    return grid.plan(keep_first(-scores, grid.anchors, grid.visible, share_of(grid.visible, density)))


def blocks_of_row(columns: int, density: float) -> int:
    """How many of `columns` blocks each row keeps where all can be seen: the first always."""
    return max(1, math.floor(columns * density + 0.5))
