"""Each head by the pattern that fits it."""

from __future__ import annotations

import torch

from mmaccel.kernels.checks import require
from mmaccel.kernels.plan import BlockPlan

from ..scores import check_count, check_share, exact, head_scores
from .blocks import BlockGrid, exclusive_mass, keep_first, pool_mean, pool_sum
from .vertical_slash import covering_lines, last_attention, line_mass, on_lines


def flex_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    gamma: float = 0.95,
    tau: float = 0.1,
    min_budget: int = 1024,
    causal: bool = True,
    budget: float | None = None,
    block_m: int = 64,
    block_n: int = 64,
    scale: float | None = None,
) -> BlockPlan:
    """Heads whose pooled attention can be trusted read by it, the others by columns and diagonals (FlexPrefill, 2025).

    The test of a head: attention of the last block of queries over blocks of keys, estimated from block means
    and computed in full; where the square root of their Jensen-Shannon divergence (:func:`pattern_distance`)
    is below `tau`, the head is query-aware. Either way the heaviest entries are kept until they hold `gamma` of
    the mass: blocks of the head's whole pooled map, or columns and diagonals of the last block of queries. The
    first block and the diagonal are always kept.

    `q`, `k`, `causal`, `block_m`, `block_n` (128 in the paper), `scale` and the plan are as for :func:`pooled_top_k`.

    Parameters
    ----------
    gamma
        Share of the attention to keep, default 0.95 (the paper uses 0.9 and 0.95); 1 keeps every visible block.
    tau
        The bound of the test, default 0.1 as in the paper; 0 sends every head to columns and diagonals.
    min_budget
        Keys that each query reads at least, if it sees as many; default 1024 as in the paper.
    budget
        At most this share of each head's visible blocks, the heaviest first; None (default) for no limit. The
        blocks that are always kept and `min_budget` count; the former may exceed it.

    Raises
    ------
    ValueError
        If shapes do not fit, `gamma` or `budget` is not in (0, 1], or `tau` or `min_budget` is below 0.
    """
    check_share("gamma", gamma)
    require(isinstance(tau, (int, float)) and tau >= 0, "tau", "at least 0", tau)
    check_count("min_budget", min_budget, 0)
    grid = BlockGrid.of(q, k, block_m, block_n, causal, budget)
    attention = last_attention(q, k, block_m, causal, scale)
    trusted = (pattern_distance(q, k, attention, block_n, scale) < tau)[..., None, None]

    weights = exact(grid.pooled_weights(q, k, scale))
    columns, diagonals = line_mass(attention)
    kept_lines = (covering_lines(columns, gamma), covering_lines(diagonals, gamma))
    key = -torch.where(trusted, weights, on_lines(columns, diagonals, grid))
    if gamma < 1:
        rows = weights.shape[2]
        by_query = (exclusive_mass(weights.flatten(2) / rows) < gamma).view_as(weights)
        chosen = torch.where(trusted, by_query, on_lines(*kept_lines, grid) > 0)
    else:  # rounding must not drop blocks
        chosen = grid.visible
    forced = grid.anchors | grid.diagonal
    chosen = chosen | keep_first(key, forced, grid.visible, -(-min_budget // block_n))
    return grid.within_budget(chosen, key, forced)


def pattern_distance(
    q: torch.Tensor, k: torch.Tensor, attention: torch.Tensor, block_n: int, scale: float | None = None
) -> torch.Tensor:
    """Square root of the Jensen-Shannon divergence between pooled and true attention of the last queries, `[B, Hq]`.

    `attention` is that of :func:`last_attention`, `[B, Hq, last, N]`; natural logarithm, so at most 0.833.
    """
    last = attention.shape[2]
    pooled = head_scores(pool_mean(q[:, :, -last:], last), pool_mean(k, block_n), scale)[:, :, 0].softmax(-1)
    true = pool_sum(attention.mean(2), block_n)
    middle = (pooled + true) / 2
    divergence = (_relative_entropy(pooled, middle) + _relative_entropy(true, middle)) / 2
    return divergence.clamp(min=0).sqrt()


def _relative_entropy(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    tiny = torch.finfo(p.dtype).tiny
    return (p * (p.clamp(min=tiny).log() - q.clamp(min=tiny).log())).sum(-1)
