"""Attention of a few new queries over a cache: packed rows, split keys (Flash-Decoding), merged at the end."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .blocks import LOG2_E, dot, finish, fold, load_rows, narrow
from .launch import architecture, batch_stride, ceil_div, check_dtypes, dense_rows, on_device, power_of_two, processors
from .merge_states import merge_into
from .tiles import verify_tile

_MOST_SPLITS = 64


@triton.jit
def _visible(number, place, exists, start, count, window_mask, stride_wm, stride_wn):
    """Which of the slots `number` each row sees; `place` is the row's own place among the new tokens."""
    new = number - start
    context = (number >= 0) & (new < 0)
    within = (new >= 0) & (new < count)
    if window_mask is None:
        allowed = within[None, :] & (new[None, :] <= place[:, None])
    else:
        asked = within[None, :] & exists[:, None]
        allowed = tl.load(window_mask + place[:, None] * stride_wm + new[None, :] * stride_wn, mask=asked, other=0) != 0
    return (context[None, :] | allowed) & exists[:, None]


@triton.jit
def _scan(
    acc, peak, total, query, k, v, stride_kn, stride_vn, token_idx, tokens, begin, end, place, exists, start, count,
    window_mask, stride_wm, stride_wn, scale,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold the tiles `begin` to `end` of the cache, or of the tokens chosen from it."""
    inner = tl.arange(0, BLOCK_N)
    for tile in range(begin, end):
        number = tile * BLOCK_N + inner
        if token_idx is not None:
            number = tl.load(token_idx + number, mask=number < tokens, other=-1).to(tl.int32)
        slots = number.to(tl.int64)
        held = (number >= 0) & (number < start + count)
        key = load_rows(k, slots * stride_kn, held, WIDTH, BLOCK_D, MASKED)
        scores = dot(query, tl.trans(key), tl.zeros([query.shape[0], BLOCK_N], tl.float32)) * scale
        if MASKED:
            visible = _visible(number, place, exists, start, count, window_mask, stride_wm, stride_wn)
            scores = tl.where(visible, scores, float("-inf"))
            # a value that no row sees may hold NaN, which times a weight of 0 is NaN
            held = tl.max(visible.to(tl.int32), 0) > 0
        value = load_rows(v, slots * stride_vn, held, WIDTH, BLOCK_D, MASKED)
        acc, peak, total = fold(acc, peak, total, scores, value)
    return acc, peak, total


@triton.jit(do_not_specialize=["count", "rows", "keys", "tokens", "splits"])
def verify_kernel(
    q, k, v, lengths, token_idx, window_mask, output, lse,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_tb, stride_th, stride_wb, stride_wm, stride_wn,
    count, rows, group, keys, tokens, splits, scale,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One part of the cache for one tile of the rows that share a key head."""
    split = tl.program_id(0) % splits
    row = tl.program_id(0) // splits * BLOCK_M + tl.arange(0, BLOCK_M)
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    exists = row < rows
    place = row % count
    length = tl.minimum(tl.load(lengths + batch).to(tl.int32), keys)
    start = length - count

    row_offsets = (row // count).to(tl.int64) * stride_qh + place.to(tl.int64) * stride_qm
    query = load_rows(q + batch * stride_qb + head * group * stride_qh, row_offsets, exists, WIDTH, BLOCK_D, True)
    k += batch * stride_kb + head * stride_kh
    v += batch * stride_vb + head * stride_vh
    if window_mask is not None:
        window_mask += batch * stride_wb
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    scale *= LOG2_E

    span = length
    if token_idx is not None:
        token_idx += batch * stride_tb + head * stride_th
        span = tokens
    tiles = (span + BLOCK_N - 1) // BLOCK_N
    each = (tiles + splits - 1) // splits
    begin = tl.minimum(split * each, tiles)
    end = tl.minimum(begin + each, tiles)
    whole = begin
    if token_idx is None:  # every row sees all of the context
        whole = tl.minimum(tl.maximum(start // BLOCK_N, begin), end)
        acc, peak, total = _scan(
            acc, peak, total, query, k, v, stride_kn, stride_vn, token_idx, tokens, begin, whole, place, exists,
            start, count, window_mask, stride_wm, stride_wn, scale, WIDTH, BLOCK_D, BLOCK_N, False,
        )  # fmt: skip
    acc, peak, total = _scan(
        acc, peak, total, query, k, v, stride_kn, stride_vn, token_idx, tokens, whole, end, place, exists,
        start, count, window_mask, stride_wm, stride_wn, scale, WIDTH, BLOCK_D, BLOCK_N, True,
    )  # fmt: skip

    result, log_sum = finish(acc, peak, total)
    # the rows of a key head lie together: [split, batch, key head, group, count]
    at = ((split * tl.num_programs(2) + batch) * tl.num_programs(1) + head) * rows + row
    columns = tl.arange(0, BLOCK_D)[None, :]
    tl.store(
        output + at[:, None] * WIDTH + columns,
        narrow(result, output.dtype.element_ty),
        mask=exists[:, None] & (columns < WIDTH),
    )
    tl.store(lse + at, log_sum, mask=exists)


def verify_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    token_idx: torch.Tensor | None,
    window_mask: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`mmaccel.kernels.verify_attention`."""
    check_dtypes(q=q, k=k, v=v)
    batch, heads, count, width = q.shape
    key_heads, keys = k.shape[1:3]
    if q.numel() == 0:
        return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    rows = heads // key_heads * count
    tile = verify_tile(architecture(q.device), width, q.element_size(), rows)
    token_idx = None if token_idx is None else dense_rows(token_idx)
    tokens = keys if token_idx is None else token_idx.shape[2]
    row_tiles = ceil_div(rows, tile.block_m)
    splits = choose_splits(batch * key_heads * row_tiles, ceil_div(tokens, tile.block_n), q.device)
    window_strides = [0, 0, 0]
    if window_mask is not None:
        window_strides = [batch_stride(window_mask, 3), *window_mask.stride()[-2:]]
        window_mask = window_mask.view(torch.uint8)
    # parts stay in float32, so that splitting rounds nothing
    output = q.new_empty(splits, *q.shape, dtype=torch.float32 if splits > 1 else q.dtype)
    lse = q.new_empty(splits, *q.shape[:3], dtype=torch.float32)
    with on_device(q):
        verify_kernel[(row_tiles * splits, key_heads, batch)](
            q, k, v, lengths.contiguous(), token_idx, window_mask, output, lse,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            *((0, 0) if token_idx is None else token_idx.stride()[:2]), *window_strides,
            count, rows, heads // key_heads, keys, tokens, splits, scale,
            WIDTH=width, BLOCK_D=power_of_two(width), BLOCK_M=tile.block_m, BLOCK_N=tile.block_n,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return (output[0], lse[0]) if splits == 1 else merge_into(output, lse, q.dtype)


def choose_splits(programs: int, tiles: int, device: torch.device) -> int:
    """Enough parts to fill the GPU twice, but of four tiles or more; in the interpreter two where there is a choice.

    The host does not know the lengths in use (reading them would stall the stream), only the slots.
    """
    wanted = 2 * processors(device) // programs or 1
    if device.type != "cuda":
        wanted = 2
    return max(1, min(wanted, tiles // 4, _MOST_SPLITS))
