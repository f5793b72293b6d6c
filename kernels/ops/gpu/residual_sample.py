"""The token after the drafts that were kept: Gumbel-max per block of the vocabulary, then over the blocks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import ceil_div, check_dtypes, dense_rows, on_device, power_of_two

_BLOCK = 1024


@triton.jit
def _exponential(seed, row, token):
    """Exponential noise, one number for each row and token of a seed; never 0 or infinite."""
    zero = token * 0
    bits, _, _, _ = tl.philox(seed, token, zero + row, zero, zero)
    # 31 bits, so that the smallest values, which win races, keep their resolution
    uniform = ((bits >> 1).to(tl.float32) + 0.5) * 4.656612873077393e-10
    # -log(1 - u) without cancellation for small u (Kahan)
    rest = tl.maximum(1.0 - uniform, 5.960464477539063e-08)
    return tl.where(rest == 1.0, uniform, tl.log(rest) * uniform / tl.where(rest == 1.0, 1.0, rest - 1.0))


@triton.jit(do_not_specialize=["places", "seed"])
def race_kernel(
    p, q, n, best, winner, stride_pb, stride_pk, stride_qb, stride_qk, stride_n, places, vocabulary, seed,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Winner of one block, once by the residual and once by `p` alone, in case the residual is 0 everywhere.

    ``argmax(log w + Gumbel)`` is ``argmax(w / Exponential)``: the same race without logarithms of weights.
    """
    block = tl.program_id(0)
    row = tl.program_id(1)
    at = row.to(tl.int64)
    kept = tl.load(n + at * stride_n).to(tl.int32)
    token = block * BLOCK + tl.arange(0, BLOCK)
    exists = token < vocabulary
    # spelled as a tensor: the interpreter cannot mix a scalar condition into a mask
    drafted = exists & ((kept + tl.zeros([BLOCK], tl.int32)) < places)
    model = tl.load(p + at * stride_pb + kept.to(tl.int64) * stride_pk + token, mask=exists, other=0.0).to(tl.float32)
    draft = tl.load(q + at * stride_qb + kept.to(tl.int64) * stride_qk + token, mask=drafted, other=0.0)
    noise = _exponential(seed, row, token)
    residual = tl.maximum(model - draft.to(tl.float32), 0.0)
    at = (at * tl.num_programs(0) + block) * 2
    for kind in tl.static_range(2):
        weight = residual if kind == 0 else model
        score = tl.where(exists, weight / noise, -1.0)
        value, place = tl.max(score, 0, return_indices=True)
        tl.store(best + at + kind, value)
        tl.store(winner + at + kind, block * BLOCK + place)


@triton.jit(do_not_specialize=["blocks"])
def final_kernel(best, winner, token, blocks, BLOCK: tl.constexpr):
    """Winner over the blocks of one row."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCK)
    at = (row * blocks + block) * 2
    residual, place = tl.max(tl.load(best + at, mask=block < blocks, other=-1.0), 0, return_indices=True)
    _, fallback = tl.max(tl.load(best + at + 1, mask=block < blocks, other=-1.0), 0, return_indices=True)
    entry = tl.where(residual > 0.0, place * 2, fallback * 2 + 1)
    tl.store(token + row, tl.load(winner + row * blocks * 2 + entry).to(tl.int64))


def residual_sample(p: torch.Tensor, q: torch.Tensor, n: torch.Tensor, seed: int) -> torch.Tensor:
    """See :func:`mmaccel.kernels.residual_sample`."""
    check_dtypes(p=p, q=q)
    batch, places, vocabulary = q.shape
    token = p.new_empty(batch, dtype=torch.int64)
    if batch == 0:
        return token
    p, q = dense_rows(p), dense_rows(q)
    blocks = ceil_div(vocabulary, _BLOCK)
    best = p.new_empty(batch, blocks, 2, dtype=torch.float32)
    winner = p.new_empty(batch, blocks, 2, dtype=torch.int32)
    with on_device(p):
        race_kernel[(blocks, batch)](
            p, q, n, best, winner, *p.stride()[:2], *q.stride()[:2], n.stride(0), places, vocabulary, seed,
            BLOCK=min(_BLOCK, power_of_two(vocabulary)), num_warps=4,
        )  # fmt: skip
        final_kernel[(batch,)](best, winner, token, blocks, BLOCK=power_of_two(blocks), num_warps=1)
    return token
