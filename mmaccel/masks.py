"""Masks of attention."""

from __future__ import annotations

import torch


def additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A bool mask as eager attention takes it, which adds it to its scores: 0, or the lowest number where it hides.

    Examples
    --------
    >>> additive(torch.tensor([True, False]), torch.float16).tolist()
    [0.0, -65504.0]
    """
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
