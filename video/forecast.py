"""Velocities of tokens between the steps that compute them."""

from __future__ import annotations

import torch

from mmaccel.cache.layers import tensor_bytes


class Velocities:
    """Each token's last computed velocity and its slope, at a noise level of its own.

    A token that is not computed moves with ``v + forecast * slope * (level - level of v)``, no further than its two
    computed velocities are apart: half the linear forecast is measured to be better than none and than the whole. When
    it is computed again, the way it went on forecasts is replaced by the one between its two computed velocities:
    one Euler step of the sampler takes it along. That costs no forward pass, as the corrector of UniPC (2023).

    Parameters
    ----------
    forecast
        Share of the slope that is trusted, from 0 (the cached velocity stays) to 1.
    corrects
        Whether to correct what forecasts missed; only right for a sampler that makes Euler steps.
    """

    def __init__(self, forecast: float = 0.5, corrects: bool = True) -> None:
        self.forecast, self.corrects = forecast, corrects
        self.velocity: torch.Tensor | None = None
        self.slope: torch.Tensor  # these belong to the velocity
        self.level: torch.Tensor
        self.gap: torch.Tensor  # between the levels of the last two velocities
        # Since a token was computed it moved by the sum of d * v, and of these two times its slope, in which d are the
        # sampler's moves: the sum of d * (level - level of v), and what the forecasts trusted of that.
        self.way: torch.Tensor
        self.trusted: torch.Tensor

    def at(self, level: float) -> torch.Tensor:
        """Velocities `[B, S, C]` of all tokens at a noise level, forecast from what was computed."""
        assert self.velocity is not None
        return self.velocity + self.slope * self._trust(level)[:, None]

    def step(
        self, level: float, following: float, computed: torch.Tensor | None, active: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The velocities `[B, S, C]` with which all tokens go from a noise level to the following one.

        Parameters
        ----------
        level, following
            Noise level of the step, and of the next.
        computed
            Velocities `[B, S, C]` after guidance, of which those of `active` count; None if none were computed.
        active
            Indices `[A]` of the tokens that were computed, None for all.
        """
        move = following - level
        if self.velocity is None:
            assert computed is not None
            self._begin(computed, level)
            return computed
        if computed is None or active is not None:
            merged = self.at(level)
            if computed is not None and active is not None:
                merged[:, active] = self._renew(computed[:, active], level, move, active).to(merged.dtype)
            self.trusted = self.trusted + move * self._trust(level)  # 0 for the active ones
            self.way = self.way + move * (level - self.level)
            return merged
        return self._renew(computed, level, move, slice(None))

    def _begin(self, computed: torch.Tensor, level: float) -> None:
        self.velocity, self.slope = computed.clone(), torch.zeros_like(computed)
        self.level = torch.full((computed.shape[1],), level, dtype=torch.float32, device=computed.device)
        self.gap, self.way, self.trusted = (torch.zeros_like(self.level) for _ in range(3))

    def _renew(self, computed: torch.Tensor, level: float, move: float, tokens: torch.Tensor | slice) -> torch.Tensor:
        """Take in the velocities `[B, A, C]` of some tokens, and return those that make up for their forecasts."""
        assert self.velocity is not None
        gap = level - self.level[tokens]
        gap = torch.where(gap.abs() < 1e-6, torch.full_like(gap, -1e-6), gap)  # some samplers visit a level twice
        slope = (computed - self.velocity[:, tokens]) / gap[:, None]
        # what the moves since then should have been, less what they were; without a move it is 0
        missed = self.way[tokens, None] * slope - self.trusted[tokens, None] * self.slope[:, tokens]
        self.velocity[:, tokens], self.slope[:, tokens] = computed, slope.to(computed.dtype)
        self.level[tokens], self.gap[tokens] = level, gap
        self.way[tokens] = self.trusted[tokens] = 0.0
        return computed + missed / move if self.corrects and move else computed

    def _trust(self, level: float) -> torch.Tensor:
        """Distance `[S]` over which forecasts follow the slope, times the share of it that they trust."""
        reach = self.gap.abs()
        return self.forecast * torch.maximum(torch.minimum(level - self.level, reach), -reach)

    def heat(self, relative: bool = False) -> torch.Tensor:
        """How fast each token's velocity changes, mean ``|dv / d level|`` over channels and batch, `[S]`.

        `relative` divides it by the velocity's own size.
        """
        assert self.velocity is not None
        heat = self.slope.abs().float().mean((0, 2))
        return heat / self.velocity.abs().float().mean((0, 2)).clamp(min=1e-12) if relative else heat

    def nbytes(self) -> int:
        """Bytes held."""
        return 0 if self.velocity is None else tensor_bytes((self.velocity, self.slope, self.level))
