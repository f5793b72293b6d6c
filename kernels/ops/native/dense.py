"""Dense attention that also returns the log-sum-exp, which `scaled_dot_product_attention` does not."""

from __future__ import annotations

import math

import torch

from . import long_cache
from .decode_ways import FLASH as _FLASH


class Mask:
    """Which keys each query sees: a bool tensor that broadcasts to `[B, H, M, N]`, with its bias, made once."""

    def __init__(self, visible: torch.Tensor, dtype: torch.dtype) -> None:
        self.visible = visible
        self.bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -math.inf)
        empty = ~visible.any(-1)
        # torch's kernel leaves rows that see nothing at NaN and 0
        self.empty = empty if bool(empty.any()) else None


def dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    mask: Mask | None = None,
    causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention `[B, H, M, D]` over `[B, H, N, D]`; `causal` is aligned at the top left.

    Rows that see nothing give 0 and -inf.
    """
    if not k.shape[2]:
        return nothing_seen(q)  # torch's kernel would divide by 0 and end the process
    if _FLASH is None or q.device.type != "cpu":
        return matrix_products(q, k, v, scale, mask, causal)
    if mask is None and not causal and long_cache.suits(q, k, v):
        return long_cache.few_queries(q, k, v, scale)
    bias = None if mask is None else mask.bias.expand(q.shape[0], -1, q.shape[2], k.shape[2])
    output, lse = _FLASH(q, k, v, 0.0, causal, attn_mask=bias, scale=scale)
    output, lse = output.contiguous(), lse.float().contiguous()  # torch's has the strides of q
    if mask is not None and mask.empty is not None:
        empty = mask.empty.expand(lse.shape)
        output, lse = output.masked_fill(empty[..., None], 0.0), lse.masked_fill(empty, -math.inf)
    return output, lse


def nothing_seen(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What queries get that see no key, or that are none."""
    return q.new_zeros(q.shape), q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)


def matrix_products(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    mask: Mask | None = None,
    causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same from two matrix products, with float32 scores."""
    work = torch.promote_types(q.dtype, torch.float32)
    scores = (q.to(work) @ k.to(work).transpose(-1, -2)) * scale
    if causal:
        scores.masked_fill_(~scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if mask is not None:
        scores.masked_fill_(~mask.visible, -math.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse == -math.inf, 0.0)[..., None]).exp_()
    return (weights @ v.to(work)).to(q.dtype), lse.float()
