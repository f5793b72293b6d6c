"""Velocities of tokens between the steps that compute them."""

from __future__ import annotations

import math

import torch


def to_tokens(x: torch.Tensor, patch: tuple[int, ...]) -> torch.Tensor:
    """Latents `[B, C, *grid]` as tokens `[B, S, C * patch]` in the transformer's order; packed ones stay.

    Examples
    --------
    >>> to_tokens(torch.zeros(1, 4, 3, 8, 8), (1, 2, 2)).shape
    torch.Size([1, 48, 16])
    """
    if x.ndim == 3:
        return x
    batch, channels, *sizes = x.shape
    split = [part for size, p in zip(sizes, patch, strict=True) for part in (size // p, p)]
    dims = len(patch)
    x = x.reshape(batch, channels, *split)
    grid, inner = [2 + 2 * i for i in range(dims)], [3 + 2 * i for i in range(dims)]
    count = math.prod(size // p for size, p in zip(sizes, patch, strict=True))
    return x.permute(0, *grid, 1, *inner).reshape(batch, count, -1)


def from_tokens(tokens: torch.Tensor, patch: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`to_tokens`, in the shape of `like`."""
    if like.ndim == 3:
        return tokens
    batch, channels, *sizes = like.shape
    dims = len(patch)
    grid = [size // p for size, p in zip(sizes, patch, strict=True)]
    x = tokens.reshape(batch, *grid, channels, *patch)
    order = [part for i in range(dims) for part in (1 + i, 2 + dims + i)]
    return x.permute(0, 1 + dims, *order).reshape(like.shape)


class Velocities:
    """Each token's last computed velocity and its slope, at token-wise noise levels.

    A token that is not computed moves with ``v + forecast * slope * (level - level of v)``: half the linear forecast
    is measured to be better than none and than the whole.

    Parameters
    ----------
    forecast
        Share of the slope that is trusted, from 0 (the cached velocity stays) to 1.
    """

    def __init__(self, forecast: float) -> None:
        self.forecast = forecast
        self.velocity: torch.Tensor | None = None
        self.slope: torch.Tensor | None = None
        self.level: torch.Tensor | None = None

    def at(self, level: float) -> torch.Tensor:
        """Velocities `[B, S, C]` of all tokens at a noise level, forecast from what was computed."""
        assert self.velocity is not None and self.level is not None
        if self.slope is None or not self.forecast:
            return self.velocity.clone()
        return self.velocity + self.slope * (self.forecast * (level - self.level))[:, None]

    def update(self, computed: torch.Tensor, level: float, active: torch.Tensor | None) -> torch.Tensor:
        """Take in a step, and return the merged velocities `[B, S, C]`.

        Parameters
        ----------
        computed
            Velocities `[B, S, C]` after guidance, of which those of `active` count.
        level
            Noise level of the step.
        active
            Indices `[A]` of the tokens that were computed, None for all.
        """
        if self.velocity is None or self.level is None or active is None:
            fresh = torch.full((computed.shape[1],), level, dtype=torch.float32, device=computed.device)
            if self.velocity is not None and self.level is not None:
                self.slope = (computed - self.velocity) / _apart(level, self.level)
            self.velocity, self.level = computed.clone(), fresh
            return computed
        merged = self.at(level)
        new, old = computed[:, active], self.velocity[:, active]
        if self.slope is None:
            self.slope = torch.zeros_like(self.velocity)
        self.slope[:, active] = (new - old) / _apart(level, self.level[active])
        self.velocity[:, active], self.level[active] = new, level
        merged[:, active] = new
        return merged

    def heat(self) -> torch.Tensor:
        """How fast each token's velocity changes, mean ``|dv / d level|`` over channels and batch, `[S]`."""
        assert self.velocity is not None
        if self.slope is None:
            return torch.zeros(self.velocity.shape[1], device=self.velocity.device)
        return self.slope.abs().float().mean((0, 2))

    def nbytes(self) -> int:
        """Bytes held."""
        return sum(x.numel() * x.element_size() for x in (self.velocity, self.slope, self.level) if x is not None)


def _apart(level: float, last: torch.Tensor) -> torch.Tensor:
    """`level - last` `[S, 1]`, never 0: samplers of second order visit a level twice."""
    apart = level - last
    return torch.where(apart.abs() < 1e-6, torch.full_like(apart, -1e-6), apart)[:, None]
