"""Joining attention over parts of the keys."""

from __future__ import annotations

import math

import torch


def merge_states(output: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = lse.logsumexp(0)
    weights = (lse - total.masked_fill(total == -math.inf, 0.0)).exp_()[..., None]
    if output.dtype == torch.float64:
        weights = weights.double()
    all_count = output.is_cpu and bool((weights > 0).all())  # elsewhere to ask would stall the stream
    merged = torch.zeros((), dtype=weights.dtype, device=output.device)
    for number, (part, weight) in enumerate(zip(output, weights, strict=True)):
        values = part.to(weights.dtype)
        if not all_count:
            values = values.masked_fill(weight == 0, 0.0)  # such a part may hold anything
        merged = merged.addcmul_(values, weight) if number else values * weight
    return merged.to(output.dtype), total
