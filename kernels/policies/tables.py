"""The policies by name, each table with one signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mmaccel.kernels.checks import check_attention
from mmaccel.kernels.plan import BlockPlan

from .compress.fast_kv import fast_kv
from .compress.snap_kv import snap_kv
from .compress.st_lite import Visual, st_lite
from .compress.streaming import streaming
from .decode.double_sparsity import double_sparsity, label_channels
from .decode.fasa import dominant_pairs, fasa
from .decode.recycled_attention import recycled_attention
from .decode.token_select import token_select
from .prefill.a_shape import a_shape, widest_local
from .prefill.blocks import BlockGrid
from .prefill.flex_prefill import flex_prefill
from .prefill.pooled_top_k import pooled_top_k
from .prefill.pooled_top_p import pooled_top_p
from .prefill.sparge import sparge
from .prefill.vertical_slash import vertical_slash
from .scores import check_count, check_share

Prefill = Callable[..., BlockPlan]
Choice = Callable[..., torch.Tensor]
ALL = 2**62  # more lines than any attention has


def _by_budget(policy: Prefill, name: str = "budget", **settings: Any) -> Prefill:
    """A policy whose setting `name` is the budget, with settings that leave the choice to it."""

    def plan(q: torch.Tensor, k: torch.Tensor, *, budget: float, causal: bool, **more: Any) -> BlockPlan:
        check_share("budget", budget)
        return policy(q, k, causal=causal, **{name: budget}, **settings, **more)

    return plan


def _a_shape(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    budget: float,
    causal: bool,
    block_m: int = 64,
    block_n: int = 64,
    scale: float | None = None,
) -> BlockPlan:
    """One block of sinks, and the widest window that the budget allows."""
    check_attention(q, k, k)
    sizes = (q.shape[2], k.shape[2])
    local = widest_local(BlockGrid(*sizes, block_m, block_n, causal), budget)
    return a_shape(*sizes, sink=1, local=local, causal=causal, block_m=block_m, block_n=block_n, device=q.device)


PREFILL: dict[str, Prefill] = {
    "a_shape": _by_budget(_a_shape),
    "vertical_slash": _by_budget(vertical_slash, vertical=ALL, slash=ALL),
    "pooled_top_k": _by_budget(pooled_top_k, "density"),
    "pooled_top_p": _by_budget(pooled_top_p, p=1.0),
    "flex_prefill": _by_budget(flex_prefill, gamma=1.0, min_budget=0),
    "sparge": _by_budget(sparge, p=1.0),
}
"""Prefill policies, `(q, k, *, budget, causal, block_m=64, block_n=64, scale=None) -> BlockPlan`.

`budget` in (0, 1] is the target share of the blocks that are visible, per head (`pooled_top_k`: per row), to the
nearest whole number; 1 gives all of them. What a policy always keeps (the first block, the diagonal if causal)
counts, and may exceed a small budget. Policies that go by a share of attention lower it until the budget is met.
"""


def _decoding(policy: Choice, name: str = "", learn: Choice | None = None) -> Choice:
    """A policy with sinks and recent tokens that leave most of a small count to it.

    What `learn` finds is kept in the state as `name`: that of the prompt, if it was put there, or of the first query.
    """

    def choose(
        q: torch.Tensor,
        k: torch.Tensor,
        lengths: torch.Tensor,
        *,
        count: int,
        state: dict[str, Any],
        scale: float | None = None,
    ) -> torch.Tensor:
        more = {"count": count, "scale": scale, **_ends(count)}
        if learn is None:
            return policy(q, k, lengths, state=state, **more)
        if name not in state:
            state[name] = learn(q, k, lengths=lengths)
        return policy(q, k, lengths, **{name: state[name]}, **more)

    return choose


def _ends(count: int) -> dict[str, int]:
    check_count("count", count, 1)
    return {"sink": min(4, count // 8), "recent": min(64, count // 4)}


DECODE: dict[str, Choice] = {
    "token_select": _decoding(token_select),
    "double_sparsity": _decoding(double_sparsity, "channels", label_channels),
    "fasa": _decoding(fasa, "pairs", dominant_pairs),
    "recycled_attention": _decoding(recycled_attention),
}
"""Decode policies, `(q, k, lengths, *, count, state, scale=None) -> int32 [B, Hkv, S]`.

`count` tokens are chosen, up to 4 sinks and 64 recent ones among them (fewer for a small count); the new tokens
are always among them. Every tenth step of `recycled_attention` attends to all tokens, whatever the count. `state` is a
dictionary per layer and sequence, empty at first.
"""


def _voting(policy: Choice, window: int) -> Choice:
    """A policy that goes by the votes of a window of the last queries, at most half of the count."""

    def choose(
        q_window: torch.Tensor, k: torch.Tensor, *, count: int, window: int = window, **settings: Any
    ) -> torch.Tensor:
        check_count("count", count, 2)
        return policy(q_window, k, count=count, window=min(window, count // 2), **settings)

    return choose


def _snap_kv(q_window: torch.Tensor, k: torch.Tensor, *, visual: Visual | None = None, **settings: Any) -> torch.Tensor:
    return snap_kv(q_window, k, **settings)


def _fast_kv(q_window: torch.Tensor, k: torch.Tensor, *, visual: Visual | None = None, **settings: Any) -> torch.Tensor:
    """The tokens that would be propagated, kept for every key head."""
    return fast_kv(q_window, k, **settings)[:, None].expand(-1, k.shape[1], -1).contiguous()


def _streaming(
    q_window: torch.Tensor,
    k: torch.Tensor,
    *,
    count: int,
    visual: Visual | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """4 sinks, or half of a small count."""
    check_count("count", count, 2)
    return streaming(k, count=count, sink=min(4, count // 2))


COMPRESS: dict[str, Choice] = {
    "snap_kv": _voting(_snap_kv, window=32),
    "fast_kv": _voting(_fast_kv, window=8),
    "streaming": _streaming,
    "st_lite": _voting(st_lite, window=32),
}
"""Compression policies, `(q_window, k, *, count, visual=None, scale=None) -> int32 [B, Hkv, S]`.

`count` is at least 2. `visual` says which tokens of each row are visual; policies that do not care ignore it. Those
that go by votes also take `window`, at most half of the count, and `kernel`; `snap_kv` also `head_budgets`.
"""
