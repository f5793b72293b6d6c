"""Making steps of a sampler again, once it is known what their velocities should have been."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .forecast import Velocities
from .layout import Layout
from .tensors import count_bytes, tensors

# Samplers whose step is a function of their state and of what they are given, with nothing drawn.
REPEATABLE = (
    "FlowMatchEulerDiscreteScheduler",
    "UniPCMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "DEISMultistepScheduler",
    "HeliosScheduler",
)
Make = Callable[[torch.Tensor, torch.Tensor], Any]


def is_repeatable(scheduler: Any) -> bool:
    """Whether steps of this sampler can be made again from the state before them."""
    config = scheduler.config
    draws = config.get("stochastic_sampling") or "sde" in str(config.get("algorithm_type"))
    draws = draws or config.get("scheduler_type") == "dmd"
    known = any(cls.__name__ in REPEATABLE for cls in type(scheduler).__mro__)
    return known and not draws and config.get("solver_p") is None


def is_one_step(scheduler: Any) -> bool:
    """Whether a step of this sampler depends on nothing but where it starts."""
    return is_repeatable(scheduler) and scheduler.config.get("solver_order", 1) == 1


@dataclass
class _Made:
    """A step as it was made: where it stood, the velocities `[B, S, C]` it went with, and how to make it again."""

    level: float
    velocity: torch.Tensor
    make: Make


class Replay:
    """The sampler's steps since the last full one, made again when the velocities behind them become known.

    Between two full steps a sampler goes on forecasts. At the second one a token's velocity is known at both ends, so
    the steps between are made again from the sampler's state at the first, each with the velocity on the line between
    the two. A multistep sampler's history is put right with that, as its position is. No forward pass is made.

    Parameters
    ----------
    scheduler
        The sampler, whose attributes are its state.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.made: list[_Made] = []
        self.state: dict[str, Any] = {}
        self.start: torch.Tensor | None = None
        self.reached: torch.Tensor | None = None  # where the last step ended

    def begin(self, sample: torch.Tensor) -> None:
        """Steps before this one are settled, and `sample` is where it starts."""
        self.made.clear()
        self.state, self.start = _copied(vars(self.scheduler)), sample

    def note(self, level: float, velocity: torch.Tensor, make: Make, result: Any) -> None:
        """A step was made, which `make(velocity, sample)` makes again, and gave this result."""
        self.made.append(_Made(level, velocity, make))
        self.reached = next(tensors(result))

    def correct(
        self, sample: torch.Tensor, velocities: Velocities, before: torch.Tensor, layout: Layout
    ) -> torch.Tensor:
        """The sample, less what forecasts missed; the sampler's state is put right with it.

        Parameters
        ----------
        sample
            Where the next step starts; what a pipeline changed after the last step stays in it.
        velocities
            Those of now.
        before
            Level `[S]` of each token's velocity before it was computed now.
        """
        is_late = False
        for made in self.made:
            between = (made.level - before) * (made.level - velocities.level) < 0
            if bool(between.any()):
                line = velocities.on_line(made.level).to(made.velocity.dtype)
                made.velocity = torch.where(between[:, None], line, made.velocity)
                is_late = True
        if not is_late:
            return sample
        assert self.start is not None and self.reached is not None
        vars(self.scheduler).update(_copied(self.state))
        again = self.start
        for made in self.made:
            velocity = layout.latents(made.velocity, sample).to(sample.dtype)
            again = next(tensors(made.make(velocity, again)))
        return (sample + (again - self.reached)).to(sample.dtype)

    def nbytes(self) -> int:
        """Bytes held."""
        return count_bytes([made.velocity for made in self.made], self.start, self.reached)


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a sampler; it writes into its lists, and never into its tensors."""
    return {name: list(value) if isinstance(value, list) else value for name, value in state.items()}
