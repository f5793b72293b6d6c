"""Keys that all queries read, and distances at which all queries read."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from mmaccel.kernels.plan import BlockPlan

from ..scores import check_count, exact, head_scores, masked_softmax
from .blocks import BlockGrid, exclusive_mass, keep_first, pool_sum


def vertical_slash(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    vertical: int = 1000,
    slash: int = 6096,
    last: int = 64,
    causal: bool = True,
    budget: float | None = None,
    block_m: int = 64,
    block_n: int = 64,
    scale: float | None = None,
) -> BlockPlan:
    """Blocks on the heaviest columns and diagonals of the last queries' attention (MInference, 2024).

    The first block and the diagonal are always kept. Without `causal` a diagonal stands for both its sides,
    since the last queries have hardly a key after them to learn the other side from.

    `q`, `k`, `causal`, `block_m`, `block_n`, `scale` and the plan are as for :func:`pooled_top_k`.

    Parameters
    ----------
    vertical, slash
        Columns (keys) and diagonals (distances) per head; 1000 and 6096 are MInference's most frequent pattern.
    last
        Queries at the end that the estimate is made from, default 64 as in the paper.
    budget
        At most this share of each head's visible blocks, those on the heaviest lines first; None (default) for
        no limit. The blocks that are always kept count, and may exceed it.

    Raises
    ------
    ValueError
        If shapes do not fit, a count is below 0 (`last`: 1), or `budget` is not in (0, 1].
    """
    grid = BlockGrid.of(q, k, block_m, block_n, causal, budget)
    check_count("vertical", vertical, 0)
    check_count("slash", slash, 0)
    check_count("last", last, 1)
    columns, diagonals = line_mass(last_attention(q, k, last, causal, scale))
    column_kept, diagonal_kept = (_heaviest(x, n) for x, n in ((columns, vertical), (diagonals, slash)))
    chosen = on_lines(column_kept, diagonal_kept, grid) > 0
    key = -on_lines(columns * column_kept, diagonals * diagonal_kept, grid)
    return grid.within_budget(chosen, key, grid.anchors | grid.diagonal)


def last_attention(
    q: torch.Tensor, k: torch.Tensor, last: int, causal: bool, scale: float | None = None
) -> torch.Tensor:
    """Attention of the last queries over all keys, `[B, Hq, last, N]`."""
    last, keys = min(last, q.shape[2]), k.shape[2]
    position = torch.arange(keys - last, keys, device=q.device)
    key = torch.arange(keys, device=q.device)
    visible = key <= position[:, None] if causal else torch.ones_like(key, dtype=torch.bool)
    return masked_softmax(head_scores(q[:, :, -last:], k, scale), visible)


def line_mass(attention: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of `[..., last, N]` over each column (key) and each diagonal (distance back), both `[..., N]`."""
    last, keys = attention.shape[-2:]
    # with both axes turned round, distance = column - row; rows one longer than they are shift by one each
    width = keys + last
    turned = F.pad(attention.flip(-1, -2), (0, last)).flatten(-2)
    shifted = F.pad(turned, (0, last)).unflatten(-1, (last, width + 1))
    return attention.sum(-2), shifted[..., :keys].sum(-2)


def on_lines(columns: torch.Tensor, diagonals: torch.Tensor, grid: BlockGrid) -> torch.Tensor:
    """What lies on lines through each block: the heavier of its columns and its diagonals, `[B, H, rows, columns]`."""
    kv_len = grid.kv_len
    first_query, last_query, first_key, last_key = grid.edges()
    nearest, farthest = first_query - last_key, last_query - first_key
    total = F.pad(exact(diagonals).cumsum(-1), (1, 0))

    def between(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        low, high = low.clamp(0, kv_len), (high + 1).clamp(0, kv_len)
        return (total[..., high] - total[..., low]).clamp(min=0)

    crossed = between(nearest, farthest)
    if not grid.causal:
        crossed = torch.maximum(crossed, between(-farthest, -nearest))
    return torch.maximum(pool_sum(exact(columns), grid.block_n)[..., None, :], crossed)


def covering_lines(mass: torch.Tensor, gamma: float) -> torch.Tensor:
    """The fewest lines that together hold a share `gamma` of the mass, as a mask."""
    weights = mass / mass.sum(-1, keepdim=True).clamp(min=torch.finfo(mass.dtype).tiny)
    return exclusive_mass(weights) < gamma if gamma < 1 else torch.ones_like(mass, dtype=torch.bool)


def _heaviest(mass: torch.Tensor, count: int) -> torch.Tensor:
    everywhere = torch.ones(mass.shape[-1], dtype=torch.bool, device=mass.device)
    return keep_first(-mass, ~everywhere, everywhere, count)
