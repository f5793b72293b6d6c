"""The policies by name, each table with one signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mmaccel.kernels.checks import check_attention
from mmaccel.kernels.plan import BlockPlan

from .a_shape import a_shape, widest_local
from .blocks import check_count, check_share, check_sizes
from .double_sparsity import double_sparsity, label_channels
from .fasa import dominant_pairs, fasa
from .fast_kv import fast_kv
from .flex_prefill import flex_prefill
from .pooled_top_k import pooled_top_k
from .pooled_top_p import pooled_top_p
from .recycled_attention import recycled_attention
from .snap_kv import snap_kv
from .sparge import sparge
from .st_lite import Visual, st_lite
from .streaming import streaming
from .token_select import token_select_cached
from .vertical_slash import vertical_slash

Prefill = Callable[..., BlockPlan]
Choice = Callable[..., torch.Tensor]


def _a_shape(
    q: torch.Tensor, k: torch.Tensor, *, budget: float, causal: bool, block_m: int = 64, block_n: int = 64
) -> BlockPlan:
    """One block of sinks, and the widest window that the budget allows."""
    check_attention(q, k, k)
    check_share("budget", budget)
    check_sizes(q.shape[2], k.shape[2], block_m, block_n)
    sizes: dict[str, Any] = {"causal": causal, "block_m": block_m, "block_n": block_n}
    local = widest_local(q.shape[2], k.shape[2], budget=budget, **sizes)
    return a_shape(q.shape[2], k.shape[2], sink=1, local=local, device=q.device, **sizes)


def _vertical_slash(
    q: torch.Tensor, k: torch.Tensor, *, budget: float, causal: bool, block_m: int = 64, block_n: int = 64
) -> BlockPlan:
    """Lines of any number, heaviest first, until the budget is met."""
    check_share("budget", budget)
    lines = k.shape[2]
    return vertical_slash(
        q, k, vertical=lines, slash=lines, causal=causal, budget=budget, block_m=block_m, block_n=block_n
    )


def _pooled_top_k(
    q: torch.Tensor, k: torch.Tensor, *, budget: float, causal: bool, block_m: int = 64, block_n: int = 64
) -> BlockPlan:
    """The budget is every row's density."""
    check_share("budget", budget)
    return pooled_top_k(q, k, density=budget, causal=causal, block_m=block_m, block_n=block_n)


def _pooled_top_p(
    q: torch.Tensor, k: torch.Tensor, *, budget: float, causal: bool, block_m: int = 64, block_n: int = 64
) -> BlockPlan:
    """The `p` of each head is the one that meets the budget."""
    check_share("budget", budget)
    return pooled_top_p(q, k, p=1.0, budget=budget, causal=causal, block_m=block_m, block_n=block_n)


def _flex_prefill(
    q: torch.Tensor, k: torch.Tensor, *, budget: float, causal: bool, block_m: int = 64, block_n: int = 64
) -> BlockPlan:
    """The pattern by its test, the `gamma` of each head the one that meets the budget."""
    check_share("budget", budget)
    return flex_prefill(q, k, gamma=1.0, min_budget=0, budget=budget, causal=causal, block_m=block_m, block_n=block_n)


def _sparge(
    q: torch.Tensor, k: torch.Tensor, *, budget: float, causal: bool, block_m: int = 64, block_n: int = 64
) -> BlockPlan:
    """The `p` of each head is the one that meets the budget, with some favour for guarded blocks."""
    check_share("budget", budget)
    return sparge(q, k, p=1.0, budget=budget, causal=causal, block_m=block_m, block_n=block_n)


PREFILL: dict[str, Prefill] = {
    "a_shape": _a_shape,
    "vertical_slash": _vertical_slash,
    "pooled_top_k": _pooled_top_k,
    "pooled_top_p": _pooled_top_p,
    "flex_prefill": _flex_prefill,
    "sparge": _sparge,
}
"""Prefill policies, `(q, k, *, budget, causal, block_m=64, block_n=64) -> BlockPlan`.

`budget` in (0, 1] is the target share of the blocks that are visible, per head (`pooled_top_k`: per row), to the
nearest whole number; 1 gives all of them. What a policy always keeps (the first block, the diagonal if causal)
counts, and may exceed a small budget. Policies that go by a share of attention lower it until the budget is met.
"""


def _ends(count: int) -> dict[str, Any]:
    """Sinks and recent tokens that leave most of a small count to the policy."""
    check_count("count", count, 1)
    return {"sink": min(4, count // 8), "recent": min(64, count // 4)}


def _token_select(
    q: torch.Tensor,
    k: torch.Tensor,
    lengths: torch.Tensor,
    *,
    count: int,
    state: dict[str, Any],
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """Keeps "query" and "votes"."""
    return token_select_cached(q, k, lengths, state=state, count=count, valid=valid, **_ends(count))


def _double_sparsity(
    q: torch.Tensor,
    k: torch.Tensor,
    lengths: torch.Tensor,
    *,
    count: int,
    state: dict[str, Any],
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """Keeps "channels"; put those of the prompt there, or they come from the first step's query."""
    ends = _ends(count)
    if "channels" not in state:
        state["channels"] = label_channels(q, k, lengths=lengths, valid=valid)
    return double_sparsity(q, k, lengths, channels=state["channels"], count=count, valid=valid, **ends)


def _fasa(
    q: torch.Tensor,
    k: torch.Tensor,
    lengths: torch.Tensor,
    *,
    count: int,
    state: dict[str, Any],
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """Keeps "pairs"; put those of the prompt there, or they come from the first step's query."""
    ends = _ends(count)
    if "pairs" not in state:
        state["pairs"] = dominant_pairs(q, k, lengths=lengths, valid=valid)
    return fasa(q, k, lengths, pairs=state["pairs"], count=count, valid=valid, **ends)


def _recycled_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    lengths: torch.Tensor,
    *,
    count: int,
    state: dict[str, Any],
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """Keeps "step" and "votes"; every tenth step attends to all tokens, whatever the count."""
    return recycled_attention(q, k, lengths, state=state, count=count, valid=valid, **_ends(count))


DECODE: dict[str, Choice] = {
    "token_select": _token_select,
    "double_sparsity": _double_sparsity,
    "fasa": _fasa,
    "recycled_attention": _recycled_attention,
}
"""Decode policies, `(q, k, lengths, *, count, state, valid=None) -> int32 [B, Hkv, S]`.

`count` tokens are chosen, up to 4 sinks and 64 recent ones among them (fewer for a small count); the new tokens
are always among them. `state` is a dictionary per layer and sequence, empty at first. :func:`mac` is not here: it
returns attention, not tokens.
"""


def _snap_kv(
    q_window: torch.Tensor,
    k: torch.Tensor,
    *,
    count: int,
    valid: torch.Tensor | None = None,
    visual: Visual | None = None,
    window: int = 32,
    kernel: int = 7,
    head_budgets: bool = False,
) -> torch.Tensor:
    """A window of at most half the count."""
    window = _window(window, count)
    return snap_kv(q_window, k, count=count, window=window, kernel=kernel, head_budgets=head_budgets, valid=valid)


def _fast_kv(
    q_window: torch.Tensor,
    k: torch.Tensor,
    *,
    count: int,
    valid: torch.Tensor | None = None,
    visual: Visual | None = None,
    window: int = 8,
    kernel: int = 7,
) -> torch.Tensor:
    """The tokens that would be propagated, kept for every key head."""
    tokens = fast_kv(q_window, k, count=count, window=_window(window, count), kernel=kernel, valid=valid)
    return tokens[:, None].expand(-1, k.shape[1], -1).contiguous()


def _streaming(
    q_window: torch.Tensor,
    k: torch.Tensor,
    *,
    count: int,
    valid: torch.Tensor | None = None,
    visual: Visual | None = None,
) -> torch.Tensor:
    """4 sinks, or half of a small count."""
    check_count("count", count, 2)
    return streaming(k, count=count, sink=min(4, count // 2), valid=valid)


def _st_lite(
    q_window: torch.Tensor,
    k: torch.Tensor,
    *,
    count: int,
    valid: torch.Tensor | None = None,
    visual: Visual | None = None,
    window: int = 32,
    kernel: int = 7,
) -> torch.Tensor:
    """A window of at most half the count."""
    return st_lite(q_window, k, count=count, visual=visual, window=_window(window, count), kernel=kernel, valid=valid)


def _window(window: int, count: int) -> int:
    """No more than half of a small count, so that something is left to vote on."""
    check_count("count", count, 2)
    return min(window, count // 2)


COMPRESS: dict[str, Choice] = {
    "snap_kv": _snap_kv,
    "fast_kv": _fast_kv,
    "streaming": _streaming,
    "st_lite": _st_lite,
}
"""Compression policies, `(q_window, k, *, count, valid=None, visual=None) -> int32 [B, Hkv, S]`.

`count` is at least 2. `visual` says which tokens of each row are visual; policies that do not care ignore it. Those
that go by votes also take `window`, at most half of the count, and `kernel`; `snap_kv` also `head_budgets`.
"""
