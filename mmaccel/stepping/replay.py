"""Correction: steps of a sampler made again, once it is known what their velocities should have been."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .forecast import Velocities
from .layout import LatentLayout
from .tensors import count_bytes, tensors

Make = Callable[[torch.Tensor, torch.Tensor], Any]


@dataclass
class _Made:
    """A step that was made: the levels that its velocities `[B, S, C]` stand for, and how to repeat it."""

    begin: float
    end: float
    velocity: torch.Tensor
    make: Make


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
        self.reached: torch.Tensor | None = None  # where the last step ended
        self.missed = 0.0  # mean square of all corrections

    def begin(self, sample: torch.Tensor) -> None:
        """The steps before this one stay as they are; it starts at `sample`."""
        self.made.clear()
        self.start = sample.clone()  # diffusion forcing writes the next sample over it
        if self.sampler is not None:
            self.state = _copied(vars(self.sampler))

    def note(self, levels: tuple[float, float], velocity: torch.Tensor, make: Make, result: Any) -> None:
        """A step was made, which `make(velocity, sample)` makes again, and gave this result.

        Its velocities are those at one level, given twice, or the mean between two.
        """
        self.made.append(_Made(*levels, velocity, make))
        self.reached = next(tensors(result))

    def correct(
        self, sample: torch.Tensor, velocities: Velocities, before: torch.Tensor, layout: LatentLayout
    ) -> torch.Tensor:
        """The sample, less what forecasts missed; the sampler's state is corrected with it.

        Parameters
        ----------
        sample
            Where the next step starts; changes that were made to it after the last step stay in it.
        velocities
            Those of now.
        before
            Level `[S]` of each token's velocity before it was computed now.
        """
        is_late = False
        for made in self.made:
            place = (made.begin + made.end) / 2
            between = (place - before) * (place - velocities.level) < 0
            if bool(between.any()):
                curve = velocities.on_curve(made.begin, made.end)
                made.velocity = torch.where(between[:, None], curve, made.velocity)
                is_late = True
        if not is_late:
            return sample
        assert self.start is not None and self.reached is not None
        if self.sampler is not None:
            vars(self.sampler).update(_copied(self.state))
        again = self.start
        for made in self.made:
            velocity = layout.latents(made.velocity, sample).to(sample.dtype)
            again = next(tensors(made.make(velocity, again)))
        correction = again - self.reached
        self.missed += float(correction.float().square().mean())
        return (sample + correction).to(sample.dtype)

    def nbytes(self) -> int:
        """Bytes held."""
        return count_bytes([[made.velocity for made in self.made], self.start, self.reached])


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
