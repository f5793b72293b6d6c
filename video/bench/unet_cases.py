"""Who draws in `mmaccel bench unet`, and by which samplers."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)

from mmaccel.comparison.entry import Entry
from mmaccel.method import Method

from ..caches.easy_cache import EasyCache
from ..caches.encoder_reuse import EncoderReuse
from ..heterogeneous.heterogeneous_steps import HeterogeneousSteps
from .packages import deep_cache, sharing

MODEL = "tiny-unet"
CONVERGED = 4  # times the steps
SCHEDULERS = {
    "DDIM": DDIMScheduler,
    "PNDM": PNDMScheduler,
    "DPM++ 2M": DPMSolverMultistepScheduler,
    "Euler": EulerDiscreteScheduler,
    "UniPC": UniPCMultistepScheduler,
}
BUDGETS = (0.5, 0.25)


@dataclass(frozen=True)
class Sampler:
    """A sampler of Stable Diffusion with its steps."""

    name: str
    steps: int

    def __str__(self) -> str:
        return f"{self.name}, {self.steps} steps"

    @property
    def finest(self) -> int:
        """Steps of a converged picture."""
        return CONVERGED * self.steps

    def on(self, pipe: Any) -> Any:
        """A pipeline of the same components with this sampler, at the same noise levels and in its own spacing."""
        config = {name: value for name, value in pipe.scheduler.config.items() if name != "timestep_spacing"}
        if self.name == "PNDM":
            config["skip_prk_steps"] = True  # as Stable Diffusion has it
        scheduler = SCHEDULERS[self.name].from_config(config)
        made = sharing(type(pipe), pipe, scheduler=scheduler, requires_safety_checker=False)
        made.facts = pipe.facts
        return made


DEFAULT = Sampler("DDIM", 50)
SAMPLERS = (DEFAULT, Sampler("PNDM", 50), Sampler("Euler", 30), Sampler("DPM++ 2M", 25), Sampler("UniPC", 20))


@dataclass(frozen=True)
class DrawingCase:
    """One line of the benchmark: a method, a number of steps, or another package with its settings."""

    setup: Method | int | None
    kind: str
    label: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    package: str = ""

    @property
    def is_missing(self) -> bool:
        """Whether its package is not installed."""
        return bool(self.package) and importlib.util.find_spec(self.package) is None

    def entry(self, pipe: Any) -> Entry:
        """Who runs."""
        if isinstance(self.setup, int):
            return Entry(f"{self.setup} steps", self.kind, fewer=self.setup)
        if isinstance(self.setup, Method):
            return Entry.of(pipe, self.setup, kind=self.kind)
        setup = functools.partial(deep_cache, **self.settings)
        return Entry(self.label, self.kind, setup=setup, columns=self.settings)


def cases(sampler: Sampler) -> Iterator[DrawingCase]:
    """All of them; by other samplers than the default one the main ones."""
    is_default = sampler == DEFAULT
    yield from (DrawingCase(HeterogeneousSteps(budget), "method") for budget in BUDGETS)
    yield DrawingCase(EncoderReuse(), "method")
    if is_default:
        yield DrawingCase(EncoderReuse(parallel=4), "method")
        yield DrawingCase(EncoderReuse(prior_noise=0.003), "method")
        yield from (DrawingCase(EasyCache(threshold), "rival") for threshold in (0.02, 0.05, 0.1))
    yield from (DrawingCase(max(1, round(sampler.steps * budget)), "simple") for budget in BUDGETS)
    for interval in (2, 3, 5) if is_default else (2, 5):
        yield DrawingCase(None, "rival", "DeepCache", {"interval": interval}, package="DeepCache")
