"""What all policies share: checks of their settings, and attention scores of grouped heads."""

from __future__ import annotations

from typing import Any

import torch

from mmaccel.kernels.checks import require
from mmaccel.machine import unrounded


def check_share(name: str, value: Any) -> None:
    """Raise unless the value is a share in (0, 1]."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1
    require(fits, name, "above 0 and at most 1", value)


def check_count(name: str, value: Any, least: int) -> None:
    """Raise unless the value is a whole number of at least `least`."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(fits, name, f"a whole number of at least {least}", value)


def work(x: torch.Tensor) -> torch.Tensor:
    """A tensor in the precision that policies compute in: float64 stays, all others become float32."""
    return x if x.dtype == torch.float64 else x.float()


def exact(x: torch.Tensor) -> torch.Tensor:
    """A tensor in float64, so that long sums still tell light entries apart; in float32 on GPUs that may lack it."""
    return x.float() if x.device.type in ("mps", "xpu") else x.double()


def head_scores(q: torch.Tensor, k: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """Scaled scores `[B, Hq, M, N]` of `q [B, Hq, M, D]` against `k [B, Hkv, N, D]`, heads grouped contiguously."""
    heads, queries = q.shape[1:3]
    packed = work(q).unflatten(1, (k.shape[1], heads // k.shape[1])).flatten(2, 3)
    with unrounded(q.device.type):
        scores = packed @ work(k).transpose(-1, -2)
    return scores.unflatten(2, (-1, queries)).flatten(1, 2) * (q.shape[3] ** -0.5 if scale is None else scale)


def masked_softmax(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Softmax over the visible places of the last axis; 0 elsewhere, also in rows without any."""
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return weights.masked_fill(~visible, 0.0)
