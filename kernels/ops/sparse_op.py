"""The op of block-sparse attention, below its checks and below what measures when it pays."""

from __future__ import annotations

import torch

from .library import define
from .plan import BlockPlan


def _fake(q: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=torch.float32)


_op = define(
    "block_sparse_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor? row_ptr, Tensor? col, Tensor? n_full, int block_m, int block_n,"
    " int left, int right, Tensor? q_pos, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, float scale)"
    " -> (Tensor, Tensor)",
    _fake,
)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: BlockPlan | None,
    left: int,
    right: int,
    q_pos: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What :func:`mmaccel.kernels.block_sparse_attention` does, of arguments that were checked.

    `left` and `right` are keys that a query sees before and after itself, -1 for no limit.
    """
    table = (None, None, None) if plan is None else (plan.row_ptr, plan.col, plan.n_full)
    sizes = (64, 64) if plan is None else (plan.block_m, plan.block_n)
    scale = q.shape[3] ** -0.5 if scale is None else float(scale)
    result: tuple[torch.Tensor, torch.Tensor] = _op(
        q, k, v, *table, *sizes, left, right, q_pos, cu_seqlens_q, cu_seqlens_k, scale
    )
    return result
