"""Muon in a chosen precision, the optimizers and the learning-rate schedule that recipes share.

`torch.optim.Muon` always runs its iteration in bfloat16, which is many times slower on a CPU without
bfloat16 arithmetic, so the few lines stand here.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised by a Newton-Schulz iteration (Jordan et al., 2024), for matrices and filters.

    A convolution filter is taken as a matrix with one row per output channel.
    """

    def __init__(
        self, parameters, lr: float, momentum: float, weight_decay: float, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                buffer = state.setdefault("momentum", torch.zeros_like(parameter))
                buffer.lerp_(parameter.grad, 1 - group["momentum"])
                matrix = parameter.grad.lerp(buffer, group["momentum"]).flatten(1)
                scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(orthogonalize(matrix.to(self.dtype)).view_as(parameter), alpha=-group["lr"] * scale)


def orthogonalize(matrix: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """The nearest (semi-)orthogonal matrix, roughly: singular values end between 0.7 and 1.2."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def muon_and_adam(
    inside: Iterable[torch.nn.Parameter],
    outside: Iterable[torch.nn.Parameter],
    *,
    pace: float = 1.0,
    lr: float = 2e-3,
    weight_decay: float = 0.0,
    dtype: torch.dtype = torch.bfloat16,
) -> list[torch.optim.Optimizer]:
    """Muon, computing in `dtype`, for what is inside the blocks, AdamW for all else; at `pace` times their rates."""
    return [
        Muon(inside, lr=0.02 * pace, momentum=0.95, weight_decay=0.01, dtype=dtype),
        torch.optim.AdamW(outside, lr=lr * pace, betas=(0.9, 0.98), weight_decay=weight_decay),
    ]


def optimizers_of(
    module: torch.nn.Module,
    parts: tuple[str, ...] = ("",),
    *,
    blocks: tuple[str, ...] = (".layers.",),
    pace: float = 1.0,
    weight_decay: float = 0.0,
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks of the named parts, AdamW for all else of them; freezes the others."""
    inside, outside = [], []
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(any(part in name for part in parts))
        if parameter.requires_grad:
            is_inside = parameter.ndim == 2 and any(block in f".{name}" for block in blocks)
            (inside if is_inside else outside).append(parameter)
    return muon_and_adam(inside, outside, pace=pace, weight_decay=weight_decay)


def trapezoid(optimizer: torch.optim.Optimizer, step: int, total: int, *, warmup: int, decay: float) -> None:
    """Set the learning rate: linear warm-up, constant, then linear to zero over the last `decay` share."""
    factor = min((step + 1) / warmup, (total - step) / (total * decay), 1.0)
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
        group["lr"] = group["initial_lr"] * factor
