"""Velocities of tokens between the steps that compute them."""

from __future__ import annotations

import torch

from .tensors import count_bytes


class Velocities:
    """Each token's last computed velocity and its slope, at a noise level of its own.

    A token that is not computed moves with ``v + forecast * slope * (level - level of v)``. The forecast reaches no
    further ahead than the last two computed velocities lie apart. Half the slope was measured to be better than none
    and than all of it.

    Parameters
    ----------
    forecast
        Share of the slope that is trusted, from 0 (the cached velocity stays) to 1.
    """

    def __init__(self, forecast: float = 0.5) -> None:
        self.forecast = forecast
        self.velocity: torch.Tensor | None = None
        self.slope: torch.Tensor  # these belong to the velocity
        self.level: torch.Tensor
        self.gap: torch.Tensor  # between the levels of the last two velocities

    @property
    def is_known(self) -> bool:
        """Whether anything was computed, from which to forecast."""
        return self.velocity is not None

    def at(self, level: float) -> torch.Tensor:
        """Velocities `[B, S, C]` of all tokens at a noise level, forecast from what was computed."""
        assert self.velocity is not None
        reach = self.gap.abs()
        trusted = self.forecast * torch.maximum(torch.minimum(level - self.level, reach), -reach)
        return self.velocity + self.slope * trusted[:, None]

    def on_line(self, level: float) -> torch.Tensor:
        """Velocities `[B, S, C]` on the line through each token's last two computed ones."""
        assert self.velocity is not None
        return self.velocity + self.slope * (level - self.level)[:, None]

    def step(self, level: float, computed: torch.Tensor | None, active: torch.Tensor | None = None) -> torch.Tensor:
        """The velocities `[B, S, C]` that all tokens continue with from a noise level.

        Parameters
        ----------
        level
            Noise level of the step.
        computed
            Velocities `[B, S, C]` after guidance, of which those of `active` count; None if none were computed.
        active
            Indices `[A]` of the tokens that were computed, None for all.
        """
        if self.velocity is None:
            assert computed is not None
            self._begin(computed, level)
            return computed
        if computed is not None and active is None:
            self._renew(computed, level, slice(None))
            return computed
        if computed is not None and active is not None:
            self._renew(computed[:, active], level, active)
        return self.at(level)

    def _begin(self, computed: torch.Tensor, level: float) -> None:
        self.velocity, self.slope = computed.clone(), torch.zeros_like(computed)
        self.level = torch.full((computed.shape[1],), level, dtype=torch.float32, device=computed.device)
        self.gap = torch.zeros_like(self.level)

    def _renew(self, computed: torch.Tensor, level: float, tokens: torch.Tensor | slice) -> None:
        """Take in the velocities `[B, A, C]` of some tokens."""
        assert self.velocity is not None
        gap = level - self.level[tokens]
        gap = torch.where(gap.abs() < 1e-6, torch.full_like(gap, -1e-6), gap)  # some samplers visit a level twice
        slope = (computed - self.velocity[:, tokens]) / gap[:, None]
        self.velocity[:, tokens], self.slope[:, tokens] = computed, slope.to(computed.dtype)
        self.level[tokens], self.gap[tokens] = level, gap

    def heat(self, relative: bool = False) -> torch.Tensor:
        """How fast each token's velocity changes, mean ``|dv / d level|`` over channels and batch, `[S]`.

        `relative` divides it by the velocity's own size.
        """
        assert self.velocity is not None
        heat = self.slope.abs().float().mean((0, 2))
        return heat / self.velocity.abs().float().mean((0, 2)).clamp(min=1e-12) if relative else heat

    def nbytes(self) -> int:
        """Bytes held."""
        return 0 if self.velocity is None else count_bytes([self.velocity, self.slope, self.level])
