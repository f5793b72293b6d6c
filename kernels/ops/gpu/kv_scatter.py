"""Writing new keys and values into a cache, both in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import batch_stride, ceil_div, check_dtypes, dense_rows, on_device, power_of_two


@triton.jit(do_not_specialize=["count", "slots"])
def scatter_kernel(
    k_new, v_new, idx, k, v, stride_ab, stride_ah, stride_am, stride_bb, stride_bh, stride_bm, stride_ib,
    stride_kb, stride_kh, stride_kn, stride_kd, stride_vb, stride_vh, stride_vn, stride_vd,
    count, slots, width, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A few tokens of one head."""
    token = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    slot = tl.load(idx + batch * stride_ib + token, mask=token < count, other=-1).to(tl.int64)[:, None]
    # nobody read the indices on the host: one outside the cache must not write over other memory
    inside = (slot >= 0) & (slot < slots)
    token = token.to(tl.int64)[:, None]
    k_new += batch * stride_ab + head * stride_ah + token * stride_am
    v_new += batch * stride_bb + head * stride_bh + token * stride_bm
    k += batch * stride_kb + head * stride_kh + slot * stride_kn
    v += batch * stride_vb + head * stride_vh + slot * stride_vn
    for begin in range(0, width, BLOCK_D):
        column = begin + tl.arange(0, BLOCK_D)[None, :]
        wanted = inside & (column < width)
        tl.store(k + column * stride_kd, tl.load(k_new + column, mask=wanted), mask=wanted)
        tl.store(v + column * stride_vd, tl.load(v_new + column, mask=wanted), mask=wanted)


def kv_scatter_(k_new: torch.Tensor, v_new: torch.Tensor, idx: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """See :func:`mmaccel.kernels.kv_scatter_`."""
    check_dtypes(k=k)
    batch, heads, count, width = k_new.shape
    if k_new.numel() == 0:
        return
    k_new, v_new, idx = dense_rows(k_new), dense_rows(v_new), dense_rows(idx)
    block_d = min(power_of_two(width), 128)
    with on_device(k):
        scatter_kernel[(ceil_div(count, 16), heads, batch)](
            k_new, v_new, idx, k, v, *k_new.stride()[:3], *v_new.stride()[:3], batch_stride(idx, 2),
            *k.stride(), *v.stride(), count, k.shape[2], width, BLOCK_M=16, BLOCK_D=block_d, num_warps=4,
        )  # fmt: skip
