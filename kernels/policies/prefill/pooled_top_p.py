"""As many blocks as hold a share of the attention, by the scores of block means."""

from __future__ import annotations

import torch

from mmaccel.kernels.plan import BlockPlan

from ..scores import check_share
from .blocks import BlockGrid, exclusive_mass


def pooled_top_p(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    p: float = 0.9,
    causal: bool = True,
    budget: float | None = None,
    block_m: int = 64,
    block_n: int = 64,
    scale: float | None = None,
) -> BlockPlan:
    """Each block of queries reads the heaviest key blocks that together hold `p` (top-p as in Twilight, 2025).

    Heavier ones first, while those before hold less than `p` of the attention between block means. The
    cumulative sum is exclusive, so that the block that crosses `p` is kept and no row is empty. The first block
    and, if `causal`, the diagonal are always kept.

    `q`, `k`, `causal`, `block_m`, `block_n`, `scale` and the plan are as for :func:`pooled_top_k`.

    Parameters
    ----------
    p
        Share of the attention between block means, default 0.9; 1 keeps every visible block.
    budget
        At most this share of each head's visible blocks: `p` is lowered, alike for all rows of a head, until it
        holds; None (default) for no limit. The blocks that are always kept count, and may exceed it.

    Raises
    ------
    ValueError
        If shapes do not fit, or `p` or `budget` is not in (0, 1].
    """
    check_share("p", p)
    grid = BlockGrid.of(q, k, block_m, block_n, causal, budget)
    mass = exclusive_mass(grid.pooled_weights(q, k, scale))
    # rounding must not drop blocks at p = 1
    chosen = mass < p if p < 1 else grid.visible
    return grid.within_budget(chosen, mass, grid.anchors)
