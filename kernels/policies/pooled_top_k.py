"""The same share of blocks for every row, by the scores of block means."""

from __future__ import annotations

import torch

from mmaccel.kernels.checks import check_attention
from mmaccel.kernels.plan import BlockPlan

from .blocks import (
    anchor_blocks,
    check_share,
    check_sizes,
    finish,
    head_scores,
    keep_first,
    pool_mean,
    share_of,
    visible_blocks,
)


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
        Of the scores, by default ``D ** -0.5``; it does not change the order.

    Returns
    -------
    A plan per batch row and query head.

    Raises
    ------
    ValueError
        If shapes do not fit or `density` is not in (0, 1].
    """
    check_attention(q, k, k)
    check_share("density", density)
    sizes = (q.shape[2], k.shape[2], block_m, block_n)
    check_sizes(*sizes)
    visible = visible_blocks(*sizes, causal, q.device)
    scores = head_scores(pool_mean(q, block_m), pool_mean(k, block_n), scale)
    forced = anchor_blocks(*sizes, causal, q.device)
    return finish(keep_first(-scores, forced, visible, share_of(visible, density)), *sizes, causal)
