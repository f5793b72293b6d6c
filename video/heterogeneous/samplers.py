"""Properties of the steps of diffusers' samplers."""

from __future__ import annotations

from typing import Any

import torch

from mmaccel.stepping.replay import Make
from mmaccel.stepping.tensors import map_tensors, tensors

# Samplers whose step is a function of their state and of what they are given, with nothing drawn.
REPEATABLE = (
    "FlowMatchEulerDiscreteScheduler",
    "UniPCMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "DEISMultistepScheduler",
    "HeliosScheduler",
)


def is_repeatable(scheduler: Any) -> bool:
    """Whether steps of this sampler can be repeated from the state before them."""
    config = scheduler.config
    draws = config.get("stochastic_sampling") or "sde" in str(config.get("algorithm_type"))
    draws = draws or config.get("scheduler_type") == "dmd"
    known = any(cls.__name__ in REPEATABLE for cls in type(scheduler).__mro__)
    return known and not draws and config.get("solver_p") is None


def is_one_step(scheduler: Any) -> bool:
    """Whether a step of this sampler depends on nothing but where it starts."""
    return is_repeatable(scheduler) and scheduler.config.get("solver_order", 1) == 1


def straight(make: Make, length: float) -> Make:
    """A step of any sampler of flow matching, as Euler's over the difference of its noise levels.

    The sampler makes its own step too, and so keeps count.
    """

    def step(velocity: torch.Tensor, sample: torch.Tensor) -> Any:
        moved = sample.float() + length * velocity.float()
        result = make(velocity, sample)
        ends = iter([moved.to(next(tensors(result)).dtype)])
        return map_tensors(lambda x: next(ends, x), result)

    return step
