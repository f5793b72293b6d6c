"""How the clips of the video benchmark are sampled: the default, and the grid around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from mmaccel.files.clips import Clip

from .packages import sharing

STEPS = 40
CONVERGED = 4  # times the steps
LEAST = 80  # steps of a converged clip: four times 4 steps are far from it
Clips = dict[tuple["Sampling", int], Clip]  # converged ones, by sampling and seed


@dataclass(frozen=True)
class Sampling:
    """A sampler with its steps, guidance and shift.

    Attributes
    ----------
    sampler
        ``"Euler"`` (default), of flow matching, or ``"UniPC"``, with which Wan comes.
    guidance
        Scale of the guidance; 1 for none, with half of the forward passes.
    shift
        Towards the high noise levels, above 1.
    """

    steps: int = STEPS
    sampler: str = "Euler"
    guidance: float = 3.0
    shift: float = 3.0

    def __str__(self) -> str:
        return f"{self.sampler}, {self.steps} steps, guidance {self.guidance:g}, shift {self.shift:g}"

    @property
    def columns(self) -> dict[str, Any]:
        """Of its rows."""
        return {"sampler": self.sampler, "steps": self.steps, "guidance": self.guidance, "shift": self.shift}

    def on(self, pipe: Any) -> Any:
        """A pipeline of the same components, with this sampler."""
        made = sharing(type(pipe), pipe, scheduler=self._scheduler())
        made.facts = pipe.facts
        return made

    def _scheduler(self) -> Any:
        if self.sampler == "Euler":
            return FlowMatchEulerDiscreteScheduler(shift=self.shift)
        return UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=self.shift, num_train_timesteps=1000
        )


SHORT = Sampling(20)
STEP_COUNTS = (4, 8, 20, 30, 50)
CORNERS = (Sampling(30, "UniPC", 5.0, 5.0), Sampling(4, "Euler", 1.0, 8.0))
GRID = (
    *(Sampling(steps) for steps in STEP_COUNTS),
    *(replace(SHORT, guidance=guidance) for guidance in (1.0, 5.0)),
    *(replace(SHORT, shift=shift) for shift in (1.0, 5.0, 8.0)),
    *(Sampling(steps, "UniPC") for steps in STEP_COUNTS),
    *CORNERS,
)
QUICK_GRID = (Sampling(4), Sampling(20, "UniPC"))


def converged(sampling: Sampling, others: tuple[Sampling, ...] = ()) -> Sampling:
    """The same with so many steps that more change little: four times the most with which it runs among the others.

    Examples
    --------
    >>> str(converged(Sampling(20), GRID)), converged(SHORT).steps
    ('Euler, 200 steps, guidance 3, shift 3', 80)
    """
    same = [other.steps for other in (sampling, *others) if replace(other, steps=sampling.steps) == sampling]
    return replace(sampling, steps=max(LEAST, CONVERGED * max(same)))
