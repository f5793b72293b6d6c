"""Following pipelines, also those whose frames have a sampler each (diffusion forcing)."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from mmaccel.patching import Wrapped, wrap_method
from mmaccel.stepping.run import FrameRun, SamplerRun
from mmaccel.stepping.tensors import tensors

from .families.adapter import PipelineSession, has_frame_samplers
from .samplers import levels_of
from .steps import Forward, RunFollower, Stepper


class _Noted(Wrapped):
    """A method of a scheduler, which is as it was and notes the copies of that: all that it has is copied with it."""

    __slots__ = ("copies",)

    def __init__(self, scheduler: Any, copies: list[weakref.ref[Any]]) -> None:
        super().__init__(scheduler, "save_pretrained", lambda original, *args, **kwargs: original(*args, **kwargs))
        self.copies = copies

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self.live and id(self.owner) in memo:
            self.copies.append(weakref.ref(memo[id(self.owner)]))
        return super().__deepcopy__(memo)


class FrameFollower(RunFollower):
    """Follows a pipeline that steps every frame with a copy of its scheduler, as SkyReels-V2's do.

    One run is one call of `generate_timestep_matrix`, which says in which step which frames move; a long video has
    several.
    """

    def __init__(self, session: PipelineSession, make: Callable[[SamplerRun], Stepper]) -> None:
        super().__init__(session, make)
        self.copies: list[weakref.ref[Any]] = []  # made since the last run, whose last ones step the frames of the next
        self.stepping = ExitStack()  # closes when the run ends

    def begin(self) -> None:
        """The run begins with its matrix."""

    def drop(self) -> None:
        super().drop()
        self.stepping.close()
        self.copies.clear()

    def attach(self, stack: ExitStack) -> None:
        stack.callback(_Noted(self.scheduler, self.copies).remove)
        wrap_method(stack, self.session.target, "generate_timestep_matrix", self.matrix)
        self.attach_passes(stack)

    def matrix(self, original: Forward, *args: Any, **kwargs: Any) -> Any:
        """Begin a run: the pipeline has just made a copy for every frame."""
        copies = [made for reference in self.copies if (made := reference()) is not None]
        self.drop()
        times, _, moves, _ = result = original(*args, **kwargs)
        count = kwargs["num_latent_frames"] if "num_latent_frames" in kwargs else args[0]
        if self.swapped or len(copies) < count:
            return result
        levels, frames = levels_of(self.scheduler), list[FrameRun]()
        for number, column in enumerate(moves.T):  # frames beyond whole blocks have none, and never move
            sampler = copies[number - count]
            steps = {step: own for own, step in enumerate(column.nonzero().flatten().tolist())}
            frames.append(FrameRun(levels, steps, sampler))
            wrap_method(self.stepping, sampler, "step", functools.partial(self.step_frame, number))
        self.stepper = self.make(SamplerRun(len(times), mean_levels(frames, len(times)), frames=frames))
        return result

    def step_frame(self, frame: int, original: Forward, *args: Any, **kwargs: Any) -> Any:
        if self.stepper is None:
            return original(*args, **kwargs)
        run = self.stepper.run
        run.frame = frame
        result = self.stepped(self.stepper, functools.partial(overwriting, original), args, kwargs)
        if frame == run.moving[-1]:
            self.end_step(self.stepper)
        return result


def overwriting(
    original: Forward, model_output: torch.Tensor, timestep: Any, sample: torch.Tensor, **given: Any
) -> Any:
    """A step of a frame, which leaves the next sample where it found this one.

    The pipeline writes it there anyway. UniPC, which keeps the tensor of its first sample, then goes by what stands in
    it, and steps that are made again have to do so too.
    """
    result = original(model_output, timestep, sample, **given)
    sample.copy_(next(tensors(result)))
    return result


def mean_levels(frames: list[FrameRun], steps: int) -> list[float]:
    """The mean level of the frames that move in each step, and the end."""
    moving = [[frame.levels[frame.moves[step]] for frame in frames if step in frame.moves] for step in range(steps)]
    return [*(sum(levels) / len(levels) for levels in moving), 0.0]


def follow(session: PipelineSession, stack: ExitStack, make: Callable[[SamplerRun], Stepper]) -> None:
    """Put ``make(run)`` in charge of every run of the session's pipeline, until `stack` closes."""
    session.hold(session.target.scheduler)
    follower = (FrameFollower if has_frame_samplers(session.target) else RunFollower)(session, make)
    follower.attach(stack)
    session.around.append(follower.call)
    stack.callback(session.around.remove, follower.call)
    stack.callback(follower.drop)
