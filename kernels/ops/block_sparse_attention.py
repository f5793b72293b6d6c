"""Attention over chosen blocks of keys."""

from __future__ import annotations

import torch

from .calibration import should_use_sparse
from .checks import check_attention, check_indices, require
from .plan import BlockPlan, window_sides
from .sparse_op import attend


def block_sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: BlockPlan | None = None,
    *,
    causal: bool = False,
    window: int | tuple[int, int] | None = None,
    q_pos: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    scale: float | None = None,
    cutover: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention that reads only the blocks of keys a plan names (FlashAttention-2's loop, 2023).

    Exact: the softmax runs over the keys that plan, `causal`, `window` and sequence bounds leave visible.

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
    q_pos : int32 `[B, M]`
        Positions of gathered queries among the keys, instead of the alignment above; the plan's rows are
        blocks of these queries.
    cu_seqlens_q, cu_seqlens_k : int32 `[sequences + 1]`
        Sequences packed along `M` and `N`, with `B` = 1: none sees another, each is aligned by itself.
    scale
        Of the scores, by default ``D ** -0.5``.
    cutover
        Take the plan as the least to attend to: where it holds so many of the visible blocks that dense
        attention is faster (:func:`mmaccel.kernels.should_use_sparse`), attend to all of them.

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
    _check_sequences(q, k, q_pos, cu_seqlens_q, cu_seqlens_k)
    left, right = window_sides(window, causal)
    if plan is not None:
        _check_plan(plan, q, k)
        if cutover and not _pays(plan, left, right, q.dtype):
            plan = None
    return attend(q, k, v, plan, left, right, q_pos, cu_seqlens_q, cu_seqlens_k, scale)


def _pays(plan: BlockPlan, left: int, right: int, dtype: torch.dtype) -> bool:
    """Whether the plan leaves out enough of what can be seen."""
    share = plan.visible_share(window=(left, right))
    return should_use_sparse(share, plan.kv_len, plan.col.device, right == 0, dtype)


def _check_plan(plan: BlockPlan, q: torch.Tensor, k: torch.Tensor) -> None:
    require(plan.q_len == q.shape[2], "plan.q_len", f"{q.shape[2]}, the length of q", plan.q_len)
    require(plan.kv_len == k.shape[2], "plan.kv_len", f"{k.shape[2]}, the length of k", plan.kv_len)
    batch, heads = plan.n_full.shape[:2]
    require(batch in (1, q.shape[0]), "plan", f"of batch 1 or {q.shape[0]}", plan.n_full)
    allowed = {1, k.shape[1], q.shape[1]}
    require(heads in allowed, "plan", f"of {' or '.join(map(str, sorted(allowed)))} heads", plan.n_full)
    require(plan.col.device == q.device, "plan", f"on {q.device}, as q is: plan.to(q.device)", plan.col)


def _check_sequences(
    q: torch.Tensor,
    k: torch.Tensor,
    q_pos: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
) -> None:
    if q_pos is not None:
        check_indices("q_pos", q_pos, q.device, 2)
        require(tuple(q_pos.shape) == (q.shape[0], q.shape[2]), "q_pos", f"[{q.shape[0]}, {q.shape[2]}]", q_pos)
    if cu_seqlens_q is None and cu_seqlens_k is None:
        return
    require(q_pos is None, "q_pos", "left out where cu_seqlens_q and cu_seqlens_k are given", q_pos)
    require(q.shape[0] == 1, "q", "of batch 1 where sequences are packed", q)
    for name, bounds in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        require(bounds is not None, name, "given together with the other cu_seqlens", bounds)
        assert bounds is not None
        check_indices(name, bounds, q.device, 1)
    assert cu_seqlens_q is not None and cu_seqlens_k is not None
    same = cu_seqlens_q.shape == cu_seqlens_k.shape
    require(same, "cu_seqlens_k", f"of shape {list(cu_seqlens_q.shape)}, as cu_seqlens_q is", cu_seqlens_k)
    if q.device.type == "cpu":  # elsewhere reading them would stall the stream
        for name, bounds, length in (
            ("cu_seqlens_q", cu_seqlens_q, q.shape[2]),
            ("cu_seqlens_k", cu_seqlens_k, k.shape[2]),
        ):
            ends = (int(bounds[0]), int(bounds[-1]))
            rising = ends == (0, length) and bool((bounds.diff() >= 0).all())
            require(rising, name, f"ascending from 0 to {length}", bounds.tolist())
