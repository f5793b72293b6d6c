"""Weighted means of groups of tokens: one program per group, members in order, no atomics."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .blocks import narrow
from .launch import batch_stride, ceil_div, check_dtypes, dense_rows, on_device, power_of_two


@triton.jit(do_not_specialize=["segments"])
def segment_kernel(
    x, w, perm, ptr, means, stride_xb, stride_xn, stride_wb, stride_pb, stride_sb, segments, width,
    BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One group and one tile of its columns."""
    segment = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    batch = tl.program_id(2).to(tl.int64)
    inside = column < width
    begin = tl.load(ptr + batch * stride_sb + segment)
    end = tl.load(ptr + batch * stride_sb + segment + 1)
    x += batch * stride_xb
    perm += batch * stride_pb
    if w is not None:
        w += batch * stride_wb

    acc = tl.zeros([BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_P], tl.float32)
    for first in range(begin, end, BLOCK_P):
        place = first + tl.arange(0, BLOCK_P)
        member = tl.load(perm + place, mask=place < end, other=0).to(tl.int64)
        if w is not None:
            weight = tl.load(w + member, mask=place < end, other=0.0).to(tl.float32)
        else:
            weight = tl.where(place < end, 1.0, 0.0)
        held = (place < end)[:, None] & inside[None, :]
        rows = tl.load(x + member[:, None] * stride_xn + column[None, :], mask=held, other=0.0)
        acc += tl.sum(weight[:, None] * rows.to(tl.float32), 0)
        total += weight

    weight_sum = tl.sum(total, 0)
    mean = tl.where(weight_sum == 0.0, 0.0, acc / tl.where(weight_sum == 0.0, 1.0, weight_sum))
    at = (batch * segments + segment) * width + column
    tl.store(means + at, narrow(mean, means.dtype.element_ty), mask=inside)


def segment_mean(x: torch.Tensor, w: torch.Tensor | None, perm: torch.Tensor, ptr: torch.Tensor) -> torch.Tensor:
    """See :func:`mmaccel.kernels.segment_mean`."""
    check_dtypes(x=x, w=w)
    segments, width = ptr.shape[-1] - 1, x.shape[-1]
    means = x.new_empty(*x.shape[:-2], segments, width)
    if means.numel() == 0:
        return means
    x, perm, ptr = dense_rows(x), dense_rows(perm), dense_rows(ptr)
    w = None if w is None else dense_rows(w)
    block_d = min(power_of_two(width), 128)
    grid = (segments, ceil_div(width, block_d), x.shape[0] if x.ndim == 3 else 1)
    with on_device(x):
        segment_kernel[grid](
            x, w, perm, ptr, means, batch_stride(x, 3), x.stride(-2), 0 if w is None else batch_stride(w, 2),
            batch_stride(perm, 2), batch_stride(ptr, 2), segments, width,
            BLOCK_P=8, BLOCK_D=block_d, num_warps=4,
        )  # fmt: skip
    return means
