"""Joining attention over parts of the keys."""

from __future__ import annotations

import math

import torch


def merge_states(output: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = lse.logsumexp(0)
    weights = (lse - total.masked_fill(total == -math.inf, 0.0)).exp_()[..., None]
    if output.dtype == torch.float64:
        weights = weights.double()
    merged = torch.zeros(output.shape[1:], dtype=weights.dtype, device=output.device)
    for part, weight in zip(output, weights, strict=True):
        # a part of weight 0 is not read: it may hold anything
        merged.add_(torch.where(weight > 0, part, 0.0) * weight)
    return merged.to(output.dtype), total
