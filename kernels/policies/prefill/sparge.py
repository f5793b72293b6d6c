"""Top-p by block means, except where a mean says little about its block."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from mmaccel.kernels.checks import require
from mmaccel.kernels.plan import BlockPlan

from ..scores import check_share, masked_softmax, work
from .blocks import BlockGrid, exclusive_mass, pool_mean


def sparge(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    p: float = 0.97,
    similarity: float = 0.6,
    causal: bool = True,
    budget: float | None = None,
    block_m: int = 64,
    block_n: int = 64,
    scale: float | None = None,
) -> BlockPlan:
    """Top-p by block means; blocks whose members are not alike are always read (SpargeAttn, 2025, first stage).

    A block of queries that are not alike reads all that it sees, a block of keys that are not alike is read by
    all who see it, and `p` is shared out among the others. The first block and, if `causal`, the diagonal are
    always kept. The paper's second stage, skipping within the kernel, is not part of a plan.

    `q`, `k`, `causal`, `block_m`, `block_n`, `scale` and the plan are as for :func:`pooled_top_k`.

    Parameters
    ----------
    p
        Share of the attention between block means, default 0.97 as the authors' examples; 1 keeps all.
    similarity
        Least mean cosine between all pairs in a block (:func:`self_similarity`) for it to count as alike, default
        0.6 as the authors' examples; -1 switches the guard off.
    budget
        At most this share of each head's visible blocks, in order of what heavier ones of their row hold; None
        (default) for no limit. It overrules the guard, which then halves that number (our choice). The first
        block and the diagonal count, and may exceed it.

    Raises
    ------
    ValueError
        If shapes do not fit, `p` or `budget` is not in (0, 1], or `similarity` is not in [-1, 1].
    """
    check_share("p", p)
    fits = isinstance(similarity, (int, float)) and -1 <= similarity <= 1
    require(fits, "similarity", "between -1 and 1", similarity)
    grid = BlockGrid.of(q, k, block_m, block_n, causal, budget)
    visible = grid.visible
    group = q.shape[1] // k.shape[1]
    mixed_rows = (self_similarity(q, block_m) < similarity)[..., None]
    mixed_columns = (self_similarity(k, block_n) < similarity).repeat_interleave(group, 1)[..., None, :]

    scores = grid.pooled_scores(q, k, scale)
    mass, whole_mass = (exclusive_mass(masked_softmax(scores, part)) for part in (visible & ~mixed_columns, visible))
    guarded = mixed_rows | mixed_columns
    chosen = guarded | (mass < p if p < 1 else visible)
    key = torch.where(guarded, whole_mass / 2, whole_mass)
    return grid.within_budget(chosen, key, grid.anchors)


def self_similarity(x: torch.Tensor, block: int) -> torch.Tensor:
    """Mean cosine between all pairs of tokens of a block, `[B, H, N, D]` to `[B, H, blocks]`."""
    return pool_mean(F.normalize(work(x), dim=-1), block).square().sum(-1)
