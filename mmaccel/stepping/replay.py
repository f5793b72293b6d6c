"""Correction: steps of a sampler made again, once it is known what their velocities should have been."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .forecast import SAME, Velocities
from .layout import LatentLayout
from .tensors import count_bytes, tensors

Make = Callable[[torch.Tensor, torch.Tensor], Any]


@dataclass
class _Change:
    """What a pipeline did to the sample after a step: some values it held where the step began, to others it added."""

    held: torch.Tensor
    added: torch.Tensor

    def __call__(self, began: torch.Tensor, ended: torch.Tensor) -> torch.Tensor:
        """The same done to a step that began and ended elsewhere."""
        return torch.where(self.held, began, ended + self.added)


@dataclass
class _Made:
    """A step that was made: the levels that its velocities `[B, S, C]` stand for, and how to repeat it."""

    begin: float
    end: float
    velocity: torch.Tensor
    make: Make
    change: _Change | None  # of the sample that it began with, since the step before


class Replay:
    """The sampler's steps since the last full one, repeated when their true velocities become known.

    Between two full steps the sampler moves by forecasts. At the second one a token's velocity is known at both ends,
    so the steps between are made again from the sampler's state at the first, each with the velocity on the curve
    through these two and the one before. This corrects the sample, and with it the history of a multistep sampler. It
    takes no forward pass of a model.

    Parameters
    ----------
    sampler
        An object whose attributes are the sampler's state, such as its past outputs; None if it has none.
    """

    def __init__(self, sampler: object | None = None) -> None:
        self.sampler = sampler
        self.made: list[_Made] = []
        self.state: dict[str, Any] = {}
        self.start: torch.Tensor | None = None
        self.began: torch.Tensor | None = None  # the pipeline's sample, where the step begins
        self.change: _Change | None = None  # of that, since the step before
        self.reached: torch.Tensor | None = None  # where the last step ended
        self.missed = 0.0  # mean square of all corrections

    def begin(self, sample: torch.Tensor) -> None:
        """The steps before this one stay as they are; it starts at `sample`."""
        self.made.clear()
        self.start = sample.clone()  # diffusion forcing writes the next sample over it
        if self.sampler is not None:
            self.state = _copied(vars(self.sampler))

    def arrive(self, sample: torch.Tensor) -> None:
        """The pipeline's next step starts at `sample`, which it may have changed after the last one."""
        began, reached = self.began, self.reached
        self.began, self.change = _held(sample), None
        if began is None or reached is None:
            return
        changed = sample != reached.to(sample.dtype)
        if bool(changed.any()):
            self.change = _Change(changed & (sample == began), sample - reached)

    def note(self, levels: tuple[float, float], velocity: torch.Tensor, make: Make, result: Any) -> None:
        """A step was made, which `make(velocity, sample)` makes again, and gave this result.

        Its velocities are those at one level, given twice, or the mean between two.
        """
        self.made.append(_Made(*levels, velocity, make, self.change))
        self.reached = next(tensors(result)).clone()  # callbacks write into it

    def correct(
        self,
        sample: torch.Tensor,
        like: torch.Tensor,
        velocities: Velocities,
        before: torch.Tensor,
        layout: LatentLayout,
    ) -> torch.Tensor:
        """The sample, less what forecasts missed; the sampler's state is corrected with it.

        Parameters
        ----------
        sample
            Where the next step starts. What the pipeline did to it between steps is done again: values that it held
            stay, and what it added is added.
        like
            What the model returned now, whose shape and type all its outputs have: some are wider than the sample.
        velocities
            Those of now.
        before
            Level `[S]` of each token's velocity before it was computed now.
        """
        is_late = False
        for made in self.made:
            place = (made.begin + made.end) / 2
            # behind the level before, and up to that of now, at which the second half of a step of Heun's may stand too
            between = ((place - before).abs() > SAME) & ((place - before) * (place - velocities.level) <= 0)
            if bool(between.any()):
                curve = velocities.on_curve(made.begin, made.end)
                made.velocity = torch.where(between[:, None], curve, made.velocity)
                is_late = True
        if not is_late:
            return sample
        assert self.start is not None
        if self.sampler is not None:
            vars(self.sampler).update(_copied(self.state))
        began = ended = self.start
        for number, made in enumerate(self.made):
            began = made.change(began, ended) if number and made.change else ended
            velocity = layout.latents(made.velocity, like).to(like.dtype)
            ended = next(tensors(made.make(velocity, began)))
        corrected = (self.change(began, ended) if self.change else ended).to(sample.dtype)
        self.missed += float((corrected - sample).float().square().mean())
        return corrected

    def nbytes(self) -> int:
        """Bytes held."""
        made = [(made.velocity, made.change and vars(made.change)) for made in self.made]
        return count_bytes([made, self.start, self.began, self.reached])


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a sampler.

    Lists are copied, since samplers write into them. Into their tensors they do not, but where one is a view of the
    latents of diffusion forcing, the pipeline does.
    """
    return {name: _held(value) for name, value in state.items()}


def _held(value: Any) -> Any:
    if isinstance(value, list):
        return list(value)
    return value.clone() if isinstance(value, torch.Tensor) and value._base is not None else value
