"""Velocities of tokens between the steps that compute them."""

from __future__ import annotations

from typing import Any

import torch

from mmaccel.cache.layers import tensor_bytes

from .families import divisible_family


class Layout:
    """How the tokens of a transformer lie in the latents of its pipeline.

    Parameters
    ----------
    patch
        Size of a token along each dimension of the grid; None where tokens are not known, and all is one token.
    frames_first
        Whether latents are `[B, F, C, H, W]` instead of `[B, C, F, H, W]`.

    Examples
    --------
    >>> Layout((1, 2, 2)).tokens(torch.zeros(1, 4, 3, 8, 8)).shape
    torch.Size([1, 48, 16])
    """

    def __init__(self, patch: tuple[int, ...] | None = None, frames_first: bool = False) -> None:
        self.patch, self.frames_first = patch, frames_first

    @classmethod
    def of(cls, denoiser: torch.nn.Module, latents: torch.Tensor) -> Layout:
        """The layout of latents of this denoiser."""
        family = divisible_family(denoiser)
        config: Any = denoiser.config
        if family is None:
            return cls()
        size = config.patch_size
        if isinstance(size, int):
            size = (getattr(config, "patch_size_t", None) or 1, size, size)
        return cls(tuple(size)[-(latents.ndim - 2) :], family.layout == "BFCHW")

    def tokens(self, latents: torch.Tensor) -> torch.Tensor:
        """Latents as tokens `[B, S, C * patch]` in the transformer's order; packed ones `[B, S, C]` stay."""
        if self.patch is None:
            return latents.flatten(1)[:, None]
        if latents.ndim == 3:
            return latents
        x = latents.transpose(1, 2) if self.frames_first else latents
        batch, channels, *sizes = x.shape
        split = [part for size, p in zip(sizes, self.patch, strict=True) for part in (size // p, p)]
        x = x.reshape(batch, channels, *split)
        grid, inner = range(2, x.ndim, 2), range(3, x.ndim, 2)
        return x.permute(0, *grid, 1, *inner).flatten(1, len(sizes)).flatten(2)

    def latents(self, tokens: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The inverse of :meth:`tokens`, in the shape of `like`."""
        if self.patch is None or like.ndim == 3:
            return tokens.reshape(like.shape)
        target = like.transpose(1, 2) if self.frames_first else like
        batch, channels, *sizes = target.shape
        dims = len(sizes)
        grid = [size // p for size, p in zip(sizes, self.patch, strict=True)]
        x = tokens.reshape(batch, *grid, channels, *self.patch)
        order = [part for i in range(dims) for part in (1 + i, 2 + dims + i)]
        x = x.permute(0, 1 + dims, *order).reshape(target.shape)
        return x.transpose(1, 2) if self.frames_first else x


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

    def heat(self, relative: bool = False) -> torch.Tensor:
        """How fast each token's velocity changes, mean ``|dv / d level|`` over channels and batch, `[S]`.

        `relative` divides it by the velocity's own size.
        """
        assert self.velocity is not None
        if self.slope is None:
            return torch.zeros(self.velocity.shape[1], device=self.velocity.device)
        heat = self.slope.abs().float().mean((0, 2))
        return heat / self.velocity.abs().float().mean((0, 2)).clamp(min=1e-12) if relative else heat

    def nbytes(self) -> int:
        """Bytes held."""
        return tensor_bytes((self.velocity, self.slope, self.level))


def _apart(level: float, last: torch.Tensor) -> torch.Tensor:
    """`level - last` `[S, 1]`, never 0: samplers of second order visit a level twice."""
    apart = level - last
    return torch.where(apart.abs() < 1e-6, torch.full_like(apart, -1e-6), apart)[:, None]
