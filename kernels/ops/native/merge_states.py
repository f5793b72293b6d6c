"""Joining attention over parts of the keys."""

from __future__ import annotations

import math

import torch


def merge_states(output: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Join attention over `S` disjoint sets of keys into attention over their union (FlashInfer, 2024).

    Exact: each part is weighted with its share of the softmax.

    Parameters
    ----------
    output : `[S, ..., D]`
        Outputs over each part.
    lse : float32 `[S, ...]`
        Natural log-sum-exp of each part, -inf where it had no key; its output then counts for nothing.

    Returns
    -------
    output : `[..., D]` in the dtype that came in, lse : float32 `[...]`.
    """
    total = lse.logsumexp(0)
    weights = (lse - total.masked_fill(total == -math.inf, 0.0)).exp_()[..., None]
    if output.dtype == torch.float64:
        weights = weights.double()
    all_count = output.is_cpu and bool((weights > 0).all())  # elsewhere to ask would stall the stream

    def part(number: int) -> torch.Tensor:
        values = output[number].to(weights.dtype)
        return values if all_count else values.masked_fill(weights[number] == 0, 0.0)  # it may hold anything

    merged = part(0) * weights[0]
    for number in range(1, len(output)):
        merged.addcmul_(part(number), weights[number])
    return merged.to(output.dtype), total
