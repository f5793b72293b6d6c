"""Joining attention over parts of the keys: one pass for the greatest LSE, one for the weighted sum."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .blocks import narrow
from .launch import ceil_div, dense_rows, on_device, power_of_two


@triton.jit(do_not_specialize=["parts", "rows"])
def merge_kernel(
    output, lse, merged, merged_lse, stride_os, stride_or, stride_ls, stride_lr, parts, rows, width,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One tile of rows and columns over all parts."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    exists = row < rows
    inside = exists[:, None] & (column < width)[None, :]
    lse += row * stride_lr
    output += row[:, None] * stride_or + column[None, :]

    peak = tl.full([BLOCK_R], float("-inf"), tl.float32)
    for part in range(parts):
        peak = tl.maximum(peak, tl.load(lse + tl.cast(part, tl.int64) * stride_ls, mask=exists, other=float("-inf")))
    base = tl.where(peak == float("-inf"), 0.0, peak)

    total = tl.zeros([BLOCK_R], tl.float32)
    acc = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for part in range(parts):
        at = tl.cast(part, tl.int64)
        log_sum = tl.load(lse + at * stride_ls, mask=exists, other=float("-inf"))
        weight = tl.exp(log_sum - base)
        # a part that saw no key may hold anything
        held = inside & (log_sum != float("-inf"))[:, None]
        acc += weight[:, None] * tl.load(output + at * stride_os, mask=held, other=0.0).to(tl.float32)
        total += weight

    empty = total == 0.0
    total = tl.where(empty, 1.0, total)
    acc = acc / total[:, None]
    tl.store(merged + row[:, None] * width + column[None, :], narrow(acc, merged.dtype.element_ty), mask=inside)
    if tl.program_id(1) == 0:
        log_total = tl.where(empty, float("-inf"), base + tl.log(total))
        tl.store(merged_lse + row, log_total, mask=exists)


def merge_into(output: torch.Tensor, lse: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge parts `[S, ..., D]` of one dtype into a result of another, as the native `merge_states` does."""
    parts, width = output.shape[0], output.shape[-1]
    merged = output.new_empty(output.shape[1:], dtype=dtype)
    merged_lse = lse.new_empty(lse.shape[1:])
    rows = merged_lse.numel()
    if rows == 0:
        return merged, merged_lse
    flat = dense_rows(output.reshape(parts, rows, width))
    flat_lse = lse.reshape(parts, rows)
    block_d = min(power_of_two(width), 128)
    with on_device(output):
        merge_kernel[(ceil_div(rows, 16), max(ceil_div(width, block_d), 1))](
            flat, flat_lse, merged, merged_lse, *flat.stride()[:2], *flat_lse.stride(), parts, rows, width,
            BLOCK_R=16, BLOCK_D=block_d, num_warps=4, num_stages=1,
        )  # fmt: skip
    return merged, merged_lse
