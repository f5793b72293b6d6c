"""Velocities of tokens between the steps that compute them."""

from __future__ import annotations

import torch

from .tensors import count_bytes

SAME = 1e-6  # levels that are nearer than this are the same


class Velocities:
    """Each token's last computed velocity and its slope, at a noise level of its own.

    A token that is not computed moves with ``v + forecast * slope * (level - level of v)``. The forecast reaches no
    further ahead than the last two computed velocities lie apart. Half the slope was measured to be better than none
    and than all of it.

    Parameters
    ----------
    forecast
        Share of the slope that is trusted, from 0 (the cached velocity stays) to 1.
    curved
        Whether :meth:`on_curve` bends (default), or is the line through the last two velocities.
    """

    def __init__(self, forecast: float = 0.5, curved: bool = True) -> None:
        self.forecast, self.curved = forecast, curved
        self.velocity: torch.Tensor | None = None
        self.slope: torch.Tensor  # these belong to the velocity
        self.bend: torch.Tensor  # change of the slope, over the levels of the last three velocities
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
        return (self.velocity + self.slope * trusted[:, None]).to(self.velocity.dtype)

    def on_curve(self, begin: float, end: float) -> torch.Tensor:
        """Mean velocities `[B, S, C]` from one noise level to another on the parabola through each token's last three.

        With two computed velocities it is a line, and where both levels are the same the mean is its value.
        """
        assert self.velocity is not None
        first, last = begin - self.level, end - self.level
        mean = (first + last) / 2
        square = (first * first + first * last + last * last) / 3
        curve = self.slope * mean[:, None] + self.bend * (square + self.gap * mean)[:, None]
        return (self.velocity + curve).to(self.velocity.dtype)

    def step(
        self,
        level: float,
        computed: torch.Tensor | None,
        active: torch.Tensor | None = None,
        place: float | None = None,
    ) -> torch.Tensor:
        """The velocities `[B, S, C]` that all tokens continue with from a noise level.

        Parameters
        ----------
        level
            Noise level of the step.
        computed
            Velocities `[B, S, C]` after guidance, of which those of `active` count; None if none were computed.
        active
            Indices `[A]` of the tokens that were computed, None for all.
        place
            Noise level for which velocities are wanted; None (default) for that of the step.
        """
        place = level if place is None else place
        if self.velocity is None:
            assert computed is not None
            self._begin(computed, level)
            return computed
        if computed is not None and active is None:
            self._renew(computed, level, slice(None))
            return computed if place == level else self.at(place)
        if computed is not None and active is not None:
            self._renew(computed[:, active], level, active)
        return self.at(place)

    def _begin(self, computed: torch.Tensor, level: float) -> None:
        self.velocity = computed.clone()
        wide = torch.promote_types(computed.dtype, torch.float32)  # a slope may be more than half precision can hold
        self.slope = torch.zeros_like(computed, dtype=wide)
        self.bend = torch.zeros_like(self.slope)
        self.level = torch.full((computed.shape[1],), level, dtype=torch.float32, device=computed.device)
        self.gap = torch.zeros_like(self.level)

    def _renew(self, computed: torch.Tensor, level: float, tokens: torch.Tensor | slice) -> None:
        """Take in the velocities `[B, A, C]` of some tokens."""
        assert self.velocity is not None
        gap = level - self.level[tokens]
        is_again = gap.abs() < SAME  # as Heun's sampler visits levels twice: there is no slope between the two
        slope = (computed.to(self.slope.dtype) - self.velocity[:, tokens]) / gap.where(~is_again, 1.0)[:, None]
        slope = torch.where(is_again[:, None], self.slope[:, tokens], slope)
        before = self.gap[tokens]
        if self.curved:
            is_bent = (before.abs() > SAME) & ~is_again  # three levels, all different
            bend = (slope - self.slope[:, tokens]) / torch.where(is_bent, gap + before, torch.inf)[:, None]
            self.bend[:, tokens] = torch.where(is_again[:, None], self.bend[:, tokens], bend)
        gap = torch.where(is_again, before, gap)
        self.velocity[:, tokens], self.slope[:, tokens] = computed, slope
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
        return 0 if self.velocity is None else count_bytes([self.velocity, self.slope, self.bend, self.level])
