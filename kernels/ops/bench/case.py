"""What a case of `mmaccel bench kernels` is: what is timed, on random tensors, and the error to float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

Run = Callable[[], Any]


@dataclass
class KernelCase:
    """One op at one shape.

    Attributes
    ----------
    run, baseline
        What is timed, ours and torch's own.
    error
        Largest error of `run` against float64, over 1 + the value.
    flops, bytes
        Arithmetic and memory traffic that the result needs, for the share of the machine's limit.
    usual_error
        That of `baseline`, where rounding grows with the shape; None (default) where it does not.
    """

    op: str
    shape: str
    dtype: torch.dtype
    settings: dict[str, Any]
    baseline_name: str
    run: Run
    baseline: Run
    error: Callable[[], float]
    flops: float = 0.0
    bytes: float = 0.0
    others: dict[str, Run] = field(default_factory=dict)
    usual_error: Callable[[], float] | None = None


class Draw:
    """Random tensors of one type on one device, from one seed."""

    def __init__(self, dtype: torch.dtype, device: str) -> None:
        self.dtype, self.generator = dtype, torch.Generator(device).manual_seed(0)

    def __call__(self, *shape: int) -> torch.Tensor:
        device = self.generator.device
        return torch.randn(*shape, generator=self.generator, device=device).to(self.dtype)

    def order(self, *shape: int) -> torch.Tensor:
        """Random ranks along the last axis."""
        return torch.rand(*shape, generator=self.generator, device=self.generator.device).argsort(-1).argsort(-1)


def shape_of(q: torch.Tensor, k: torch.Tensor) -> str:
    return f"q {list(q.shape)}, k {list(k.shape)}"


def one_head_error(output: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> float:
    """Of the first query head, against attention in float64 with a mask `[M, N]`."""
    query, key, value = (x[:1, :1].double() for x in (q, k, v))
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return error_of(output[:1, :1], expected)


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest error, relative to 1 + the expected size, since a float's rounding grows with it."""
    return float(((found.double() - expected).abs() / (1 + expected.abs())).max())
