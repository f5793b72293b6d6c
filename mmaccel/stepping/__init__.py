"""Steps of a sampler that are computed, forecast or reused, for any sampler and model.

What is here knows noise levels, guidance branches and tensors, and neither pipelines nor model families.

Example
-------
>>> run = StepAllocation(levels, refresh(steps, budget=0.5), sampler=sampler)  # doctest: +SKIP
>>> for k in range(steps):  # doctest: +SKIP
...     velocity = model(x, levels[k]) if run.begin(k) else None
...     x = run.step(lambda v, x: sampler.step(v, k, x), velocity, x)
"""

from .allocation import StepAllocation
from .easy_reuse import EasyReuse
from .forecast import Velocities
from .layout import LatentLayout
from .ratios import growth, stretched
from .replay import Replay
from .reuse import BranchState, StepReuse
from .run import SamplerRun
from .schedule import Schedule, chosen, groups, refresh
from .solver import best_steps

__all__ = [
    "EasyReuse",
    "LatentLayout",
    "BranchState",
    "Replay",
    "SamplerRun",
    "Schedule",
    "StepAllocation",
    "StepReuse",
    "Velocities",
    "best_steps",
    "chosen",
    "groups",
    "growth",
    "refresh",
    "stretched",
]
