"""Where a sampler is in its run."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class FrameRun:
    """The run of one frame, where every frame has a sampler of its own.

    Attributes
    ----------
    levels
        As those of a :class:`SamplerRun`, for the steps of this frame.
    moves
        The frame's own steps by the steps of the whole run in which they are made; empty for a frame that is given.
    sampler
        What steps the frame.
    """

    levels: list[float]
    moves: dict[int, int]
    sampler: object


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
        Of guidance, which the running forward pass belongs to: 0 is the first of a step, usually the prompt's, 1 the
        other's; -1 before the first. A sampler that batches both has branch 0 only.
    expert
        Index of the model that ran last; Wan 2.2 has one for high noise and one for low.
    frames
        The runs of the frames, where each has a sampler of its own; empty (default) where one steps them all.
    frame
        Index of the frame that steps now, of those `frames`.
    began
        The sample that the run began with, where a method keeps it.
    """

    steps: int
    levels: list[float]
    step: int = 0
    branch: int = -1
    expert: int = 0
    frames: list[FrameRun] = field(default_factory=list)
    frame: int = 0
    began: torch.Tensor | None = None

    @property
    def moving(self) -> list[int]:
        """The frames that this step moves; one stands for all where they have no samplers of their own."""
        return [i for i, frame in enumerate(self.frames) if self.step in frame.moves] if self.frames else [0]

    @property
    def is_over(self) -> bool:
        return self.step >= self.steps
