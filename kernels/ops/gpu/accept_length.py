"""How many drafts of a chain are kept: one program per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import check_dtypes, dense_rows, on_device, power_of_two


@triton.jit(do_not_specialize=["places"])
def accept_kernel(
    p, q, tok, u, kept, stride_pb, stride_pk, stride_qb, stride_qk, stride_tb, stride_ub, places,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Place of the first draft that fails."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK_K)
    exists = place < places
    token = tl.load(tok + row * stride_tb + place, mask=exists, other=0).to(tl.int64)
    model = tl.load(p + row * stride_pb + place.to(tl.int64) * stride_pk + token, mask=exists, other=0.0)
    draft = tl.load(q + row * stride_qb + place.to(tl.int64) * stride_qk + token, mask=exists, other=0.0)
    uniform = tl.load(u + row * stride_ub + place, mask=exists, other=0.0)
    # the product of two float32 is exact in float64: u * q == p fails everywhere alike
    product = uniform.to(tl.float32).to(tl.float64) * draft.to(tl.float32).to(tl.float64)
    passes = product < model.to(tl.float32).to(tl.float64)
    tl.store(kept + row, tl.min(tl.where(passes, places, tl.minimum(place, places)), 0))


def accept_length(p: torch.Tensor, q: torch.Tensor, tok: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """See :func:`mmaccel.kernels.accept_length`."""
    check_dtypes(p=p, q=q, u=u)
    batch, places, _ = q.shape
    if batch == 0 or places == 0:
        return q.new_zeros(batch, dtype=torch.int32)
    p, q, tok, u = dense_rows(p), dense_rows(q), dense_rows(tok), dense_rows(u)
    kept = q.new_empty(batch, dtype=torch.int32)
    with on_device(q):
        accept_kernel[(batch,)](
            p, q, tok, u, kept, *p.stride()[:2], *q.stride()[:2], tok.stride(0), u.stride(0), places,
            BLOCK_K=power_of_two(places), num_warps=1,
        )  # fmt: skip
    return kept
