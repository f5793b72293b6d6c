"""Attention over chosen blocks of keys: FlashAttention-2's loop over a plan's columns, or over a range."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .blocks import LOG2_E, dot, finish, fold, load_rows, narrow
from .launch import architecture, batch_stride, ceil_div, check_dtypes, dense_rows, on_device, power_of_two
from .tiles import attention_tile, cut

_NO_LIMIT = 1 << 30  # beyond every position, and added to one it still fits in 32 bits


@triton.jit
def _scan(
    acc, peak, total, query, k, v, stride_kn, stride_vn, col, begin, end, hole, skip, low, high, first, last, scale,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, PLAN_N: tl.constexpr,
    MASKED: tl.constexpr, GATHERED: tl.constexpr,
):  # fmt: skip
    """Fold the key tiles `begin` to `end`: parts of the blocks named in `col`, or without it of the keys as they lie.

    From `hole` on, `skip` tiles are left out.
    """
    PARTS: tl.constexpr = PLAN_N // BLOCK_N
    inner = tl.arange(0, BLOCK_N)
    for tile in range(begin, end):
        if col is not None:
            start = tl.load(col + tile // PARTS) * PLAN_N + (tile % PARTS) * BLOCK_N
        else:
            start = (tile + tl.where(tile >= hole, skip, 0)) * BLOCK_N
        number = start + inner
        at = tl.cast(start, tl.int64)
        wanted = (number >= first) & (number < last)
        key = load_rows(k + at * stride_kn, inner * stride_kn, wanted, WIDTH, BLOCK_D, MASKED)
        scores = dot(query, tl.trans(key), tl.zeros([query.shape[0], BLOCK_N], tl.float32)) * scale
        if MASKED:
            visible = (number[None, :] >= low[:, None]) & (number[None, :] < high[:, None])
            scores = tl.where(visible, scores, float("-inf"))
            # a value that no query sees may hold NaN, which times a weight of 0 is NaN; gathered queries may leave
            # gaps between `first` and `last`
            if GATHERED:
                wanted = tl.max(visible.to(tl.int32), 0) > 0
        value = load_rows(v + at * stride_vn, inner * stride_vn, wanted, WIDTH, BLOCK_D, MASKED)
        acc, peak, total = fold(acc, peak, total, scores, value)
    return acc, peak, total


@triton.jit(do_not_specialize=["queries", "keys", "left", "right"])
def attend_kernel(
    q, k, v, output, lse, row_ptr, col, n_full, key_begin, key_end,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_rb, stride_rh, stride_fb, stride_fh, stride_gb,
    queries, keys, left, right, group, plan_group, scale,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PLAN_M: tl.constexpr, PLAN_N: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head against the keys it sees."""
    GATHERED: tl.constexpr = key_begin is not None
    # under a causal mask the last queries see most: started first, they do not finish alone
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    exists = rows < queries
    # the keys `low` to `high` are those that each query sees by its position
    if GATHERED:
        low = tl.load(key_begin + batch * stride_gb + rows, mask=exists, other=0)
        high = tl.load(key_end + batch * stride_gb + rows, mask=exists, other=0)
    else:
        position = rows + (keys - queries)
        low = tl.maximum(position - left, 0)
        high = tl.minimum(position + right + 1, keys)
    some = exists & (low < high)
    low, high = tl.where(some, low, keys), tl.where(some, high, 0)
    first, last = tl.min(low, 0), tl.max(high, 0)

    row_offsets = rows.to(tl.int64) * stride_qm
    query = load_rows(q + batch * stride_qb + head * stride_qh, row_offsets, exists, WIDTH, BLOCK_D, True)
    k += batch * stride_kb + (head // group) * stride_kh
    v += batch * stride_vb + (head // group) * stride_vh
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    scale *= LOG2_E

    if col is not None:
        PARTS: tl.constexpr = PLAN_N // BLOCK_N
        row = (tile * BLOCK_M) // PLAN_M
        row_ptr += batch * stride_rb + (head // plan_group) * stride_rh + row
        begin, end = tl.load(row_ptr) * PARTS, tl.load(row_ptr + 1) * PARTS
        whole = begin
        if not GATHERED:  # the plan counted whole blocks for queries at their default positions
            whole += tl.load(n_full + batch * stride_fb + (head // plan_group) * stride_fh + row) * PARTS
            acc, peak, total = _scan(
                acc, peak, total, query, k, v, stride_kn, stride_vn, col, begin, whole, 0, 0, low, high, first, last,
                scale, WIDTH, BLOCK_D, BLOCK_N, PLAN_N, False, GATHERED,
            )  # fmt: skip
        acc, peak, total = _scan(
            acc, peak, total, query, k, v, stride_kn, stride_vn, col, whole, end, 0, 0, low, high, first, last,
            scale, WIDTH, BLOCK_D, BLOCK_N, PLAN_N, True, GATHERED,
        )  # fmt: skip
    else:
        # keys that all queries of the tile see need no mask: only the tiles at both ends are masked
        begin = first // BLOCK_N
        end = tl.maximum((last + BLOCK_N - 1) // BLOCK_N, begin)
        shared_first = tl.max(tl.where(exists, low, 0), 0)
        shared_last = tl.min(tl.where(exists, high, keys), 0)
        whole = tl.minimum(tl.maximum((shared_first + BLOCK_N - 1) // BLOCK_N, begin), end)
        ragged = tl.minimum(tl.maximum(shared_last // BLOCK_N, whole), end)
        acc, peak, total = _scan(
            acc, peak, total, query, k, v, stride_kn, stride_vn, col, whole, ragged, end, 0, low, high, first, last,
            scale, WIDTH, BLOCK_D, BLOCK_N, PLAN_N, False, GATHERED,
        )  # fmt: skip
        acc, peak, total = _scan(
            acc, peak, total, query, k, v, stride_kn, stride_vn, col, begin, end - (ragged - whole), whole,
            ragged - whole, low, high, first, last, scale, WIDTH, BLOCK_D, BLOCK_N, PLAN_N, True, GATHERED,
        )  # fmt: skip

    result, log_sum = finish(acc, peak, total)
    place = (batch * tl.num_programs(1) + head) * queries + rows
    columns = tl.arange(0, BLOCK_D)[None, :]
    tl.store(
        output + place[:, None] * WIDTH + columns,
        narrow(result, output.dtype.element_ty),
        mask=exists[:, None] & (columns < WIDTH),
    )
    tl.store(lse + place, log_sum, mask=exists)


def block_sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    row_ptr: torch.Tensor | None,
    col: torch.Tensor | None,
    n_full: torch.Tensor | None,
    block_m: int,
    block_n: int,
    left: int,
    right: int,
    q_pos: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`mmaccel.kernels.block_sparse_attention`; without a plan, `block_m` and `block_n` are not used."""
    check_dtypes(q=q, k=k, v=v)
    batch, heads, queries, width = q.shape
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    output = q.new_empty(q.shape)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    if output.numel() == 0:
        return output, lse
    gathered = q_pos is not None or cu_seqlens_q is not None
    tile = attention_tile(architecture(q.device), width, q.element_size(), gathered)
    plan_strides, plan_heads = [0, 0, 0, 0], 1
    if row_ptr is None or n_full is None:
        block_m, block_n = tile.block_m, tile.block_n
    else:
        tile = cut(tile, block_m, block_n)
        row_ptr, n_full, plan_heads = dense_rows(row_ptr), dense_rows(n_full), n_full.shape[1]
        plan_strides = [x for table in (row_ptr, n_full) for x in (batch_stride(table, 3), table.stride(1))]
    left, right = (_NO_LIMIT if side < 0 else min(side, _NO_LIMIT) for side in (left, right))
    begin, end = key_ranges(q, k, left, right, q_pos, cu_seqlens_q, cu_seqlens_k) if gathered else (None, None)
    with on_device(q):
        attend_kernel[(ceil_div(queries, tile.block_m), heads, batch)](
            q, k, v, output, lse, row_ptr, col, n_full, begin, end,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *plan_strides, 0 if begin is None else begin.stride(0),
            queries, k.shape[2], left, right, heads // k.shape[1], heads // plan_heads, scale,
            WIDTH=width, BLOCK_D=power_of_two(width), BLOCK_M=tile.block_m, BLOCK_N=tile.block_n,
            PLAN_M=block_m, PLAN_N=block_n, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return output, lse


def key_ranges(
    q: torch.Tensor,
    k: torch.Tensor,
    left: int,
    right: int,
    q_pos: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """First and last + 1 of the keys each query sees by its position or in its packed sequence, int32 `[B, M]`.

    Computed by torch: a bisection inside the kernel would keep Triton from pipelining its loops over keys.
    """
    first: int | torch.Tensor = 0
    last: int | torch.Tensor = k.shape[2]
    if cu_seqlens_q is not None and cu_seqlens_k is not None:
        row = torch.arange(q.shape[2], device=q.device, dtype=cu_seqlens_q.dtype)
        sequence = torch.searchsorted(cu_seqlens_q[1:], row, right=True).clamp(max=len(cu_seqlens_q) - 2)
        first, last = cu_seqlens_k[sequence][None].long(), cu_seqlens_k[sequence + 1][None].long()
        # aligned at the end of the sequence
        q_pos = (row - cu_seqlens_q[sequence + 1])[None] + last
    assert q_pos is not None
    position = q_pos.long()
    begin = (position - left).clamp(min=first).clamp(max=_NO_LIMIT)
    end = (position + right + 1).clamp(max=last).clamp(min=0)
    return begin.to(torch.int32).contiguous(), end.to(torch.int32).contiguous()
