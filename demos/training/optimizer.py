"""Muon in a chosen precision, and the learning-rate schedule that all recipes share.

`torch.optim.Muon` always runs its iteration in bfloat16, which is many times slower on a CPU without
bfloat16 arithmetic, so the few lines stand here.
"""

from __future__ import annotations

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


def trapezoid(optimizer: torch.optim.Optimizer, step: int, total: int, *, warmup: int, decay: float) -> None:
    """Set the learning rate: linear warm-up, constant, then linear to zero over the last `decay` share."""
    factor = min((step + 1) / warmup, (total - step) / (total * decay), 1.0)
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
        group["lr"] = group["initial_lr"] * factor
