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
    MASKED: tl.constexpr,
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
        value = load_rows(v + at * stride_vn, inner * stride_vn, wanted, WIDTH, BLOCK_D, MASKED)
        acc, peak, total = fold(acc, peak, total, scores, value)
    return acc, peak, total


@triton.jit(do_not_specialize=["queries", "keys", "left", "right"])
def attend_kernel(
    q, k, v, output, lse, row_ptr, col, n_full,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_rb, stride_rh, stride_fb, stride_fh,
    queries, keys, left, right, group, plan_group, scale,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PLAN_M: tl.constexpr, PLAN_N: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head against the keys it sees."""
    # under a causal mask the last queries see most: started first, they do not finish alone
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    exists = rows < queries
    # the keys `low` to `high` are those that each query sees by its position
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
        whole = begin + tl.load(n_full + batch * stride_fb + (head // plan_group) * stride_fh + row) * PARTS
        acc, peak, total = _scan(
            acc, peak, total, query, k, v, stride_kn, stride_vn, col, begin, whole, 0, 0, low, high, first, last,
            scale, WIDTH, BLOCK_D, BLOCK_N, PLAN_N, False,
        )  # fmt: skip
        acc, peak, total = _scan(
            acc, peak, total, query, k, v, stride_kn, stride_vn, col, whole, end, 0, 0, low, high, first, last,
            scale, WIDTH, BLOCK_D, BLOCK_N, PLAN_N, True,
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
            scale, WIDTH, BLOCK_D, BLOCK_N, PLAN_N, False,
        )  # fmt: skip
        acc, peak, total = _scan(
            acc, peak, total, query, k, v, stride_kn, stride_vn, col, begin, end - (ragged - whole), whole,
            ragged - whole, low, high, first, last, scale, WIDTH, BLOCK_D, BLOCK_N, PLAN_N, True,
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
    tile = attention_tile(architecture(q.device), width, q.element_size())
    plan_strides, plan_heads = [0, 0, 0, 0], 1
    if row_ptr is None or n_full is None:
        block_m, block_n = tile.block_m, tile.block_n
    else:
        tile = cut(tile, block_m, block_n)
        row_ptr, n_full, plan_heads = dense_rows(row_ptr), dense_rows(n_full), n_full.shape[1]
        plan_strides = [x for table in (row_ptr, n_full) for x in (batch_stride(table, 3), table.stride(1))]
    left, right = (_NO_LIMIT if side < 0 else min(side, _NO_LIMIT) for side in (left, right))
    with on_device(q):
        attend_kernel[(ceil_div(queries, tile.block_m), heads, batch)](
            q, k, v, output, lse, row_ptr, col, n_full,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *plan_strides,
            queries, k.shape[2], left, right, heads // k.shape[1], heads // plan_heads, scale,
            WIDTH=width, BLOCK_D=power_of_two(width), BLOCK_M=tile.block_m, BLOCK_N=tile.block_n,
            PLAN_M=block_m, PLAN_N=block_n, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return output, lse
