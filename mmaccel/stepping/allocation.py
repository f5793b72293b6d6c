"""One run that computes some steps and tokens, and forecasts and corrects the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .forecast import Velocities
from .layout import LatentLayout
from .replay import Make, Replay
from .schedule import MULTISTEP_TRUST, Schedule

TARGETS = ("plain", "converged")


class StepAllocation:
    """One run of a sampler: which tokens each step computes, and the velocities that all of them continue with.

    Before a step, :meth:`begin` decides whether all tokens (`share` 1), none (0) or those at the indices `active` are
    to be computed. :meth:`step` then takes what was computed, forecasts the rest, and has the sampler step. Once a
    token's forecasts turn out wrong, the steps that took them are made again.

    Parameters
    ----------
    levels
        Noise levels (sigmas) of the steps, and where the last one ends: one more than steps.
    schedule
        Share of the tokens that each step computes; the first step computes all in any case.
    forecast
        Share of the velocity's slope that forecasts trust, 0 to 1; None (default) for the :attr:`Schedule.trust` of
        the schedule with a sampler of `one_step`, else for a half.
    correct
        Make steps again, in which forecasts missed (default). Only for samplers that draw no random numbers.
    sampler
        An object whose attributes are the sampler's state, such as its past outputs; None (default) if it has none.
    tokens
        Whether a partial step computes the ``"hottest"`` tokens (default), or ``"random"`` ones.
    by_groups
        Rank tokens by the relative change of their velocity, and anew in full steps only; default False.
    target
        What the samples follow: the ``"plain"`` run (default), of which a step goes by the velocity where it begins, or
        the ``"converged"`` one of more and more steps: then a step goes by the mean of its velocity, as
        predictor-corrector methods do (Adams and Moulton, 1926). That is for Euler's steps of flow matching.
    tolerance
        Root mean square of all corrections from which every further step is computed; None (default) for any.
    one_step
        Whether the sampler's steps depend on nothing but where they start (default), and not on several past ones.
    curved
        Correct along parabolas (default), measured to be better for the velocities of Euler's steps; else along lines,
        better for samplers of several past steps, for clean samples in place of velocities, and over gaps that grow.

    Attributes
    ----------
    agree
        Whether any of several processes that work on one run says so, of what `tolerance` decides: they have to decide
        alike.

    Examples
    --------
    Euler steps along the velocity ``2 * level``, of which two of four are computed:

    >>> levels = [1.0, 0.75, 0.5, 0.25, 0.0]
    >>> run, x = StepAllocation(levels, Schedule((1, 0, 0, 1))), torch.ones(1, 1, 1)
    >>> for k in range(4):
    ...     velocity = torch.full((1, 1, 1), 2 * levels[k]) if run.begin(k) else None
    ...     x = run.step(lambda v, x, k=k: x + (levels[k + 1] - levels[k]) * v, velocity, x)
    >>> x.item()  # as if all had been computed
    -0.25
    """

    def __init__(
        self,
        levels: Sequence[float],
        schedule: Schedule,
        forecast: float | None = None,
        correct: bool = True,
        sampler: object | None = None,
        tokens: str = "hottest",
        by_groups: bool = False,
        target: str = TARGETS[0],
        tolerance: float | None = None,
        one_step: bool = True,
        curved: bool = True,
    ) -> None:
        self.levels, self.schedule, self.sampler = levels, schedule, sampler
        self.tokens, self.by_groups, self.target, self.tolerance = tokens, by_groups, target, tolerance
        self.forecast, self.one_step, self.curved, self.velocities = forecast, one_step, curved, Velocities()
        self.replay = Replay(sampler) if correct else None
        self.layout = LatentLayout()
        self.index = 0
        self.share = 1.0
        self.agree: Callable[[bool], bool] = bool
        self.active: torch.Tensor | None = None
        self.order: torch.Tensor | None = None  # tokens, the hottest first
        self.pinned: torch.Tensor | None = None  # bool `[S]`: tokens that never move, and are not chosen
        self.generator = torch.Generator().manual_seed(0)

    def restart(self) -> None:
        """Forget all velocities, as where another model takes over; the next step computes all tokens."""
        self.velocities = Velocities(self.trust, self.velocities.curved)
        if self.replay is not None:
            missed, self.replay = self.replay.missed, Replay(self.sampler)
            self.replay.missed = missed

    @property
    def trust(self) -> float:
        """Share of the velocity's slope that forecasts trust."""
        if self.forecast is not None:
            return self.forecast
        return self.schedule.trust if self.one_step else min(MULTISTEP_TRUST, self.schedule.trust)

    @property
    def missed(self) -> float:
        """Root mean square of all corrections so far: how far forecasts led the sample astray."""
        return 0.0 if self.replay is None else self.replay.missed**0.5

    def begin(self, step: int) -> float:
        """Decide what the step of this index computes; returns the share of the tokens, and sets `active`."""
        self.index, self.active = step, None
        self.velocities.forecast, self.velocities.curved = self.trust, self.curved and not self.schedule.grows
        is_due = not self.velocities.is_known
        if self.tolerance is not None:
            is_due |= self.agree(self.missed > self.tolerance)
        self.share = 1.0 if is_due else self.schedule.fractions[step]
        if 0 < self.share < 1:
            if not self.by_groups:
                self._rank()
            assert self.order is not None
            self.active = self.order[: active_count(self.share, len(self.order))].sort().values
        return self.share

    def step(self, make: Make, output: torch.Tensor | None, sample: torch.Tensor) -> Any:
        """Have the sampler step with the velocities of all tokens.

        Parameters
        ----------
        make
            ``make(velocity, sample)`` makes this step of the sampler; it is called again for a correction, and
            returns the next sample, by itself or as the first of several things.
        output
            The velocity that was computed, after guidance; only that of `active` counts in a partial step. None, or
            anything of its shape, if none was.
        sample
            Where the step starts.
        """
        like = sample if output is None else output
        computed = None if self.share == 0 or output is None else self.layout.tokens(output)
        merged, sample = self._merge(computed, sample, like)
        result = make(self.layout.latents(merged, like).to(like.dtype), sample)
        if self.replay is not None:
            kept = merged.clone() if merged is computed else merged  # compiled models write their next output there
            self.replay.note(self._span, kept, make, result)
        if self.share == 1:
            self._rank()
        return result

    @property
    def _span(self) -> tuple[float, float]:
        """The levels for whose mean this step's velocities stand, or twice its own."""
        level = self.levels[self.index]
        return level, self.levels[self.index + 1] if self.target == "converged" else level

    def _merge(
        self, computed: torch.Tensor | None, sample: torch.Tensor, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The velocities of all tokens, and the sample less what forecasts missed until now."""
        velocities, replay = self.velocities, self.replay
        before = velocities.level.clone() if velocities.is_known else None
        merged = velocities.step(self.levels[self.index], computed, self.active, sum(self._span) / 2)
        if replay is not None:
            replay.arrive(sample)
        if replay is not None and before is not None and computed is not None:
            sample = replay.correct(sample, like, velocities, before, self.layout)
        if replay is not None and self.share == 1:
            replay.begin(sample)
        return merged, sample

    def _rank(self) -> None:
        heat = self.velocities.heat(relative=self.by_groups)
        if self.tokens == "random":
            heat = torch.rand(len(heat), generator=self.generator).to(heat.device)
        if self.pinned is not None:
            heat = heat.masked_fill(self.pinned.to(heat.device), -1.0)  # as told by a model on another device
        self.order = heat.argsort(descending=True, stable=True)

    def nbytes(self) -> int:
        """Bytes held."""
        return self.velocities.nbytes() + (0 if self.replay is None else self.replay.nbytes())


def active_count(share: float, tokens: int) -> int:
    """Tokens of a partial step, at least one: whole tiles of the attention kernels, where there are many."""
    multiple = 128 if tokens >= 4096 else 1
    return min(tokens, max(multiple, round(share * tokens / multiple) * multiple))
