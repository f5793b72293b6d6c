"""Who draws in `mmaccel bench unet`, and by which samplers."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)

from mmaccel.comparison.entry import Entry

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
PACKAGE = "DeepCache"  # of its authors


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


def cases(pipe: Any, sampler: Sampler) -> Iterator[Entry]:
    """All of them; by other samplers than the default one the main ones."""
    is_default = sampler == DEFAULT
    yield from (Entry.of(pipe, HeterogeneousSteps(budget)) for budget in BUDGETS)
    yield Entry.of(pipe, EncoderReuse())
    if is_default:
        yield Entry.of(pipe, EncoderReuse(parallel=4))
        yield Entry.of(pipe, EncoderReuse(prior_noise=0.003))
        yield from (Entry.of(pipe, EasyCache(threshold), kind="rival") for threshold in (0.02, 0.05, 0.1))
    for steps in (max(1, round(sampler.steps * budget)) for budget in BUDGETS):
        yield Entry(f"{steps} steps", "simple", fewer=steps)
    for settings in ({"interval": interval} for interval in ((2, 3, 5) if is_default else (2, 5))):
        yield Entry(PACKAGE, "rival", setup=functools.partial(deep_cache, **settings), columns=settings)


def is_missing(entry: Entry) -> bool:
    """Whether it is of a package that is not installed."""
    return entry.label == PACKAGE and importlib.util.find_spec(PACKAGE) is None
