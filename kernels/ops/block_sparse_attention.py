"""Attention over chosen blocks of keys."""

from __future__ import annotations

import torch

from .checks import check_attention, require
from .library import define, fake_attention
from .plan import BlockPlan, window_sides

_op = define(
    "block_sparse_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor? row_ptr, Tensor? col, Tensor? n_full, int block_m, int block_n,"
    " int left, int right, float scale) -> (Tensor, Tensor)",
    fake_attention,
)


def block_sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: BlockPlan | None = None,
    *,
    causal: bool = False,
    window: int | tuple[int, int] | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention that reads only the blocks of keys a plan names (FlashAttention-2's loop, 2023).

    Exact: the softmax runs over the keys that plan, `causal` and `window` leave visible.

    Parameters
    ----------
    q : `[B, Hq, M, D]`
        Queries in float32, float16 or bfloat16; any strides.
    k, v : `[B, Hkv, N, D]`
        Keys and values; `Hq` is a multiple of `Hkv`, and query head `h` reads key head ``h // (Hq // Hkv)``.
    plan
        Blocks to read, None (default) for all that `causal` and `window` leave.
    causal
        Aligned at the bottom right: the last query sees the last key.
    window
        `w`: the query itself and the `w - 1` keys before it, and after it unless `causal`; or `(left, right)`
        with -1 for no limit.
    scale
        Of the scores, by default ``D ** -0.5``.

    Returns
    -------
    output : `[B, Hq, M, D]` in the dtype of `q`; 0 where a query sees no key.
    lse : float32 `[B, Hq, M]`; natural logarithm of the sum of exponentials, -inf where a query sees no key.

    Raises
    ------
    ValueError
        For wrong shapes, dtypes or devices, or a plan for other lengths; before any launch.

    Examples
    --------
    >>> q = k = v = torch.randn(1, 2, 128, 64)
    >>> output, lse = block_sparse_attention(q, k, v, causal=True, window=32)
    >>> output.shape, lse.shape
    (torch.Size([1, 2, 128, 64]), torch.Size([1, 2, 128]))
    """
    check_attention(q, k, v)
    if plan is not None:
        _check_plan(plan, q, k)
    table = (None, None, None) if plan is None else (plan.row_ptr, plan.col, plan.n_full)
    sizes = (64, 64) if plan is None else (plan.block_m, plan.block_n)
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    return _op(q, k, v, *table, *sizes, *window_sides(window, causal), scale)


def _check_plan(plan: BlockPlan, q: torch.Tensor, k: torch.Tensor) -> None:
    require(plan.q_len == q.shape[2], "plan.q_len", f"{q.shape[2]}, the length of q", plan.q_len)
    require(plan.kv_len == k.shape[2], "plan.kv_len", f"{k.shape[2]}, the length of k", plan.kv_len)
    batch, heads = plan.n_full.shape[:2]
    require(batch in (1, q.shape[0]), "plan", f"of batch 1 or {q.shape[0]}", plan.n_full)
    allowed = {1, k.shape[1], q.shape[1]}
    require(heads in allowed, "plan", f"of {' or '.join(map(str, sorted(allowed)))} heads", plan.n_full)
    require(plan.col.device == q.device, "plan", f"on {q.device}, as q is: plan.to(q.device)", plan.col)
