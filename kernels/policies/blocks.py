"""What the block policies share: pooling, scores of grouped heads, shares of visible blocks, the finished plan."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from mmaccel.kernels.checks import require
from mmaccel.kernels.plan import BlockPlan, block_coverage


def check_share(name: str, value: Any) -> None:
    """A share in (0, 1]."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1
    require(fits, name, "above 0 and at most 1", value)


def check_count(name: str, value: Any, least: int) -> None:
    """A whole number of at least `least`."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(fits, name, f"a whole number of at least {least}", value)


def check_sizes(q_len: int, kv_len: int, block_m: int, block_n: int) -> None:
    """Lengths and block sizes that a plan can have."""
    check_count("q_len", q_len, 1)
    check_count("kv_len", kv_len, 1)
    for name, size in (("block_m", block_m), ("block_n", block_n)):
        check_count(name, size, 16)
        require(size & (size - 1) == 0, name, "a power of two, at least 16", size)


def work(x: torch.Tensor) -> torch.Tensor:
    """In the precision that policies compute in: float64 stays, the rest becomes float32."""
    return x if x.dtype == torch.float64 else x.float()


def head_scores(q: torch.Tensor, k: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """Scaled scores `[B, Hq, M, N]` of `q [B, Hq, M, D]` against `k [B, Hkv, N, D]`, heads grouped contiguously."""
    heads, queries = q.shape[1:3]
    packed = work(q).unflatten(1, (k.shape[1], heads // k.shape[1])).flatten(2, 3)
    scores = packed @ work(k).transpose(-1, -2)
    return scores.unflatten(2, (-1, queries)).flatten(1, 2) * (q.shape[3] ** -0.5 if scale is None else scale)


def pool_mean(x: torch.Tensor, block: int) -> torch.Tensor:
    """Mean of each block of tokens, `[B, H, N, D]` to `[B, H, blocks, D]`; the last block may be short."""
    tokens = x.shape[2]
    blocks = -(-tokens // block)
    total = F.pad(work(x), (0, 0, 0, blocks * block - tokens)).unflatten(2, (blocks, block)).sum(3)
    size = (tokens - torch.arange(0, tokens, block, device=x.device)).clamp(max=block)
    return total / size[:, None]


def pool_sum(x: torch.Tensor, block: int) -> torch.Tensor:
    """Sum of each block of the last axis."""
    blocks = -(-x.shape[-1] // block)
    return F.pad(x, (0, blocks * block - x.shape[-1])).unflatten(-1, (blocks, block)).sum(-1)


def visible_blocks(
    q_len: int, kv_len: int, block_m: int, block_n: int, causal: bool, device: torch.device | str
) -> torch.Tensor:
    """Blocks in which some query sees some key, `[rows, columns]`."""
    return block_coverage(q_len, kv_len, block_m, block_n, causal, None, device)[0]


def own_blocks(q_len: int, kv_len: int, block_m: int, block_n: int, device: torch.device | str) -> torch.Tensor:
    """The diagonal, `[rows, columns]`: blocks of keys that hold the queries' own positions."""
    return block_coverage(q_len, kv_len, block_m, block_n, False, (0, 0), device)[0]


def anchor_blocks(
    q_len: int, kv_len: int, block_m: int, block_n: int, causal: bool, device: torch.device | str
) -> torch.Tensor:
    """What block policies never drop, `[rows, columns]`: the first block of keys and, if causal, the diagonal."""
    visible = visible_blocks(q_len, kv_len, block_m, block_n, causal, device)
    first = torch.zeros_like(visible)
    first[:, 0] = True
    diagonal = own_blocks(q_len, kv_len, block_m, block_n, device) if causal else first
    return (first | diagonal) & visible


def pooled_weights(
    q: torch.Tensor, k: torch.Tensor, visible: torch.Tensor, block_m: int, block_n: int, scale: float | None = None
) -> torch.Tensor:
    """Attention between block means, `[B, Hq, rows, columns]`; 0 where nothing is visible."""
    scores = head_scores(pool_mean(q, block_m), pool_mean(k, block_n), scale)
    return masked_softmax(scores, visible)


def masked_softmax(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Softmax over the visible places of the last axis; 0 elsewhere, also in rows without any."""
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return weights.masked_fill(~visible, 0.0)


def exclusive_mass(weights: torch.Tensor) -> torch.Tensor:
    """For each entry of the last axis the sum of the heavier ones (ties: of the earlier ones)."""
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    before = F.pad(ordered.cumsum(-1)[..., :-1], (1, 0))
    return torch.empty_like(weights).scatter_(-1, order, before)


def share_of(visible: torch.Tensor, share: float) -> torch.Tensor:
    """`share` of the visible entries of the last axis, to the nearest whole number."""
    return (visible.sum(-1) * share + 0.5).floor().long()


def keep_first(
    key: torch.Tensor, forced: torch.Tensor, visible: torch.Tensor, count: torch.Tensor | int
) -> torch.Tensor:
    """The `count` visible entries of the last axis with the smallest keys, forced ones first and always."""
    forced, visible = (forced & visible).expand_as(key), visible.expand_as(key)
    order = key.masked_fill(forced, -torch.inf).masked_fill(~visible, torch.inf).argsort(dim=-1, stable=True)
    rank = torch.empty_like(order).scatter_(-1, order, torch.arange(key.shape[-1], device=key.device).expand_as(order))
    limit = torch.as_tensor(count, device=key.device)
    return ((rank < limit[..., None]) | forced) & visible


def within_budget(
    chosen: torch.Tensor, key: torch.Tensor, forced: torch.Tensor, visible: torch.Tensor, budget: float | None
) -> torch.Tensor:
    """Of the chosen blocks `[B, H, rows, columns]` of each head those with the smallest keys, up to the budget."""
    if budget is None:
        return (chosen | forced) & visible
    count = share_of(visible.flatten(-2), budget)
    kept = keep_first(key.flatten(-2), forced.flatten(-2), ((chosen | forced) & visible).flatten(-2), count)
    return kept.unflatten(-1, key.shape[-2:])


def finish(mask: torch.Tensor, q_len: int, kv_len: int, block_m: int, block_n: int, causal: bool) -> BlockPlan:
    """The plan of a table of blocks `[rows, columns]` or `[B, H, rows, columns]`."""
    table = mask if mask.ndim == 4 else mask[None, None]
    return BlockPlan.from_mask(table, q_len=q_len, kv_len=kv_len, block_m=block_m, block_n=block_n, causal=causal)
