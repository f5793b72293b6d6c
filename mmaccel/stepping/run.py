"""Where a sampler is in its run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SamplerRun:
    """One run of a sampler, and where it is; whoever steps the sampler keeps it up to date.

    Attributes
    ----------
    steps
        How many steps the sampler makes.
    levels
        Where each step stands on the way from noise to data, and where the last one ends: noise levels (sigmas), or
        for other samplers than flow matching timesteps as a share of those in training.
    step
        Index of the step that is running, from 0.
    branch
        Index of the forward pass within the step: 0 is the first, with guidance usually the prompt's, 1 the other's.
        A sampler that batches both has branch 0 only.
    expert
        Index of the model that ran last; Wan 2.2 has one for high noise and one for low.
    """

    steps: int
    levels: list[float]
    step: int = 0
    branch: int = -1
    expert: int = 0

    @property
    def is_over(self) -> bool:
        return self.step >= self.steps
