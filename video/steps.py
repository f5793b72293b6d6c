"""Following a pipeline: the step, guidance branch and denoiser that each forward pass belongs to.

A :class:`Stepper` is a method's part in one run. It sees every forward pass of the denoisers, may answer it without
running it, and may change the velocity with which the sampler steps. :func:`.following.follow` puts it on a pipeline.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from mmaccel.errors import ActiveSessionError
from mmaccel.patching import wrap_forward, wrap_method
from mmaccel.stepping.branches import MOST_BRANCHES, Branches
from mmaccel.stepping.run import SamplerRun
from mmaccel.stepping.tensors import change_of_shapes

from .families.adapter import END, IN_CALLBACK, PipelineSession
from .families.compiled import AGAIN, refuse_compiled_later
from .families.families import arguments, latents_of, text_of
from .samplers import drawn_once, first_step, is_churned, made_levels, step_names

Forward = Callable[..., Any]
IDLE = ("reused nothing: ", "are too few to forecast any")  # in warnings of runs that came to nothing
CONTROLLED = "the ControlNet runs in skipped steps too, for nothing, and is not among the passes counted"
REPEATS = (
    "makes several steps at one noise level, as for the parts of a wide picture: these cannot be followed, so all from"
    " the second on were computed"
)


class Stepper:
    """A method's part in one run; :func:`.following.follow` creates a new one for each. `churns`: steps draw noise."""

    def __init__(self, session: PipelineSession, run: SamplerRun) -> None:
        self.session, self.report, self.run, self.churns = session, session.report, run, False

    def forward(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        """Answer a forward pass; by default it runs."""
        return forward(*args, **kwargs)

    def step(self, make: Forward, output: torch.Tensor, sample: torch.Tensor) -> Any:
        """Let the sampler step: ``make(velocity, sample)``; `output` is the velocity (or noise) after guidance."""
        return make(output, sample)

    def warn(self, text: str) -> None:
        """Put a warning into the report, once for all segments of a call."""
        self.report.warn(text)

    def finish(self) -> None:
        """Called after the last step."""

    def close(self) -> None:
        """Called however the run ends: after :meth:`finish`, after an exception, or when the next run starts."""


class RunFollower:
    """Keeps the run up to date, and hands the calls to its stepper."""

    def __init__(self, session: PipelineSession, make: Callable[[SamplerRun], Stepper]) -> None:
        self.session, self.make = session, make
        self.scheduler = session.target.scheduler
        self.parts = {session.adapter.place(denoiser): denoiser for denoiser in session.adapter.denoisers()}
        self.stepper: Stepper | None = None
        self.shapes: dict[int, list[torch.Size]] = {}  # of the latents, by expert
        self.is_called, self.thread = False, 0  # within a call of the session, in this thread
        self.is_own = False  # whether the target makes this run, and no other pipeline of the same parts
        self.passes = self.steps = self.followed = 0  # in it: forward passes, steps, and those of them behind passes
        self.is_full = False  # whether a step had more passes than are followed
        self.timestep = math.nan  # of the last step
        self.branches = Branches()

    def drop(self) -> None:
        """End the run, finished or not."""
        stepper, self.stepper = self.stepper, None
        self.shapes.clear()
        if stepper is not None:
            stepper.close()

    def refuse_second(self, part: str, in_callback: bool = False) -> None:
        """Refuse a call in the middle of one that another thread makes, before anything of that one is touched."""
        if in_callback or (self.is_called and self.thread != threading.get_ident()):
            raise ActiveSessionError(
                f"{type(self.session.target).__name__} is in the middle of another call, and its {part} serves one at a"
                f" time: wait for that call, or accelerate a second pipeline with a {part} of its own"
            )

    def set_timesteps(self, original: Forward, *args: Any, **kwargs: Any) -> Any:
        self.refuse_second("scheduler")
        self.session.memory.pop(IN_CALLBACK, None)  # of a run that ends here
        self.drop()  # an interrupted run's memory goes before the new one is made
        self.check()
        if not self.is_called:  # the target itself was; a call of the session, begun already, may be several runs
            self.session.report.start()
            self.session.memory.pop("trace", None)
        result = original(*args, **kwargs)
        self.begin()
        return result

    def check(self) -> None:
        """Refuse anew what was refused before: the target may have changed since."""
        adapter = self.session.adapter
        refuse_compiled_later(*adapter.denoisers())
        for method in self.session.plan.methods:
            adapter.check(method)

    def begin(self) -> None:
        """Begin a run of the steps that the scheduler has now."""
        self.timestep, self.branches, self.is_own = math.nan, Branches(), False
        given = self.session.memory.get(END) if self.is_called else None  # to a pipeline that does not keep it
        levels = made_levels(self.scheduler, getattr(self.session.target, END, given), self.session.target)
        self.stepper = None if self.swapped else self.make(SamplerRun(len(levels) - 1, levels))

    def progress_bar(self, original: Forward, *args: Any, **kwargs: Any) -> Any:
        """A pipeline closes its progress bar however its loop ends, and with it the run that was in the middle."""
        self.is_own = True
        bar, stack = original(*args, **kwargs), ExitStack()
        handled = sys.exc_info()[1]  # of the caller
        run = None if self.stepper is None else weakref.ref(self.stepper.run)

        def close(original: Forward) -> None:
            stack.close()
            original()
            if run is not None and self.stepper is not None and self.stepper.run is run():
                self.end(broken=sys.exc_info()[1] is not handled)

        if hasattr(bar, "close"):
            wrap_method(stack, bar, "close", close)
        return bar

    def end(self, broken: bool) -> None:
        """End a run, early where a pipeline makes fewer steps or something breaks it; one without a pass is dropped."""
        if self.stepper is not None and self.shapes and not broken:
            self.stepper.finish()
        self.drop()

    def forward(self, expert: int, denoiser: Any, original: Forward, *args: Any, **kwargs: Any) -> Any:
        if self.stepper is not None:  # a pipeline with a scheduler of its own may share the transformer
            self.refuse_second("transformer", IN_CALLBACK in self.session.memory)
        self.passes += 1
        if self.swapped:
            self.drop()
        if self.session.adapter.ends_run(kwargs):
            self.end(broken=False)
        if self.stepper is None or self.session.adapter.is_of_no_step(denoiser, kwargs):  # of no run or step
            return original(*args, **kwargs)
        run = self.stepper.run
        is_first, given = run.branch < 0, arguments(denoiser, args, kwargs)
        if run.step == 0 and is_first and not run.frames:
            self.start(run, first_step(self.scheduler, given.get("timestep"), self.session.target))
        if not is_first and self.branches.count == MOST_BRANCHES:
            self.is_full = True
            self.drop()
            return original(*args, **kwargs)
        run.branch, run.expert = self.branches.next(expert, text_of(given), is_first), expert
        try:
            if run.branch == 0:
                self.begin_again_if_resized([x.shape for x in latents_of(denoiser, args, kwargs)])
            return self.stepper.forward(denoiser, original, args, kwargs)
        except BaseException:
            self.drop()
            raise

    def start(self, run: SamplerRun, step: int) -> None:
        """Start at a step, further down in image-to-image; of another pipeline's run no `denoising_end` is known."""
        levels = made_levels(self.scheduler)
        if not (self.is_called or self.is_own) and len(run.levels) < len(levels):
            run.steps, run.levels = len(levels) - 1, levels
            self.drop()
            self.stepper = self.make(run)
        run.step = step

    def begin_again_if_resized(self, shapes: list[torch.Size]) -> None:
        """Start over where a callback enlarged the latents, or guidance no longer doubles the batch."""
        assert self.stepper is not None
        run = self.stepper.run
        before = self.shapes.get(run.expert, shapes)
        if before != shapes:
            told = change_of_shapes(before, shapes)
            self.stepper.warn(f"in step {run.step} {told}: nothing that was kept fits them, and the method starts over")
            self.drop()
            self.stepper = self.make(run)
        self.shapes[run.expert] = shapes

    def step(self, original: Forward, *args: Any, **kwargs: Any) -> Any:
        self.steps += 1
        if self.stepper is not None and self.repeats(self.named(args, kwargs)["timestep"]):
            if self.stepper.run.branch < 0:  # without a pass: Cosmos looks where a step leads before it makes it
                return original(*args, **kwargs)
            self.session.report.warn(f"{type(self.session.target).__name__} {REPEATS}")
            self.drop()
        if self.stepper is None:
            return original(*args, **kwargs)
        result = self.stepped(self.stepper, original, args, kwargs)
        self.end_step(self.stepper)
        return result

    def repeats(self, timestep: Any) -> bool:
        """Whether a step is made again where the scheduler goes on, as for the next part of a wide picture."""
        assert self.stepper is not None
        before, self.timestep = self.timestep, float(torch.as_tensor(timestep).max())
        step, times = self.stepper.run.step, self.scheduler.timesteps
        return 0 < step < len(times) and self.timestep == before and bool(times[step] != times[step - 1])

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """What a call of a scheduler's `step` is given, by name."""
        return {**dict(zip(step_names(type(self.scheduler)), args, strict=False)), **kwargs}

    def stepped(self, stepper: Stepper, original: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the stepper makes of a call of a scheduler's `step`."""
        known, given = step_names(type(self.scheduler)), self.named(args, kwargs)
        output, sample = given.pop("model_output"), given.pop("sample")
        names, given = known[: len(args)], drawn_once(known, given, output)
        rest = args[len(names) :]  # a step that may be made again keeps no more than it needs
        stepper.churns = is_churned(self.scheduler, original, given)

        def make(velocity: torch.Tensor, sample: torch.Tensor) -> Any:
            whole = {**given, "model_output": velocity, "sample": sample}
            return original(*[whole.pop(name) for name in names], *rest, **whole)

        return stepper.step(make, output, sample)

    def end_step(self, stepper: Stepper) -> None:
        """Go on to the next step, or end the run."""
        run = stepper.run
        self.followed += run.branch >= 0
        run.step, run.branch = run.step + 1, -1
        if run.is_over:
            self.end(broken=False)

    def attach(self, stack: ExitStack) -> None:
        """Take the place of three methods of instances: the scheduler's `set_timesteps` and `step`, and `forward`."""
        wrap_method(stack, self.scheduler, "step", self.step)
        self.attach_passes(stack)

    def attach_passes(self, stack: ExitStack) -> None:
        """All of them but the scheduler's `step`."""
        wrap_method(stack, self.scheduler, "set_timesteps", self.set_timesteps)
        if hasattr(self.session.target, "progress_bar"):
            wrap_method(stack, self.session.target, "progress_bar", self.progress_bar)
        for expert, denoiser in enumerate(self.session.adapter.denoisers()):
            wrap_forward(stack, denoiser, functools.partial(self.forward, expert, denoiser))

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call of the session: end the run that it leaves, and warn if no step was followed."""
        self.is_called, self.is_full = True, False
        self.passes = self.steps = self.followed = 0
        self.thread = threading.get_ident()
        self.session.memory.pop("trace", None)  # where no step is followed, that of the run before would stay
        try:
            yield
            self.end(broken=False)  # where no progress bar told that the loop ended, as in modular pipelines
        finally:
            self.is_called, self.branches = False, Branches()
            self.drop()
            report = self.session.report
            done = [share for kind in ("computed", "attention") for share in report.details.get(kind, ())]
            if min(done, default=1.0) < 1:  # in another run of the call
                report.warnings[:] = [text for text in report.warnings if not any(mark in text for mark in IDLE)]
        if self.swapped or not self.followed:
            report.warn(f"the sampler's steps could not be followed, so all were computed: {self.reason()}")

    @property
    def swapped(self) -> str:
        """Of what the pipeline has another one now, one of its denoisers too; empty where all is as it was."""
        target, adapter = self.session.target, self.session.adapter
        new = (adapter.place(part) for part in adapter.denoisers() if part not in self.parts.values())
        return next(new, "") if target.scheduler is self.scheduler else "pipe.scheduler"

    def reason(self) -> str:
        """Why steps were not followed."""
        name = type(self.session.target).__name__
        if not self.passes:
            return f"{name} did not run {' or '.join(self.parts)}, unless its transformer was changed {AGAIN}"
        if self.swapped:
            return f"{self.swapped} was changed {AGAIN}"
        if self.is_full and self.steps:
            return f"{name} makes more than {MOST_BRANCHES} passes in a step"
        return f"{name} does not step pipe.scheduler"


def count_forwards(stepper: Stepper, done: float) -> None:
    """Note a forward pass of which a share `done` was computed, in the report."""
    report = stepper.report
    computed = report.details.setdefault("computed", [])  # a new run starts with an empty report
    computed.append(round(done, 4))
    report.plain_forwards = len(computed)
    report.forwards = sum(computed)
    report.engaged = report.engaged or done < 1
    if done == 0 and getattr(stepper.session.target, "controlnet", None) is not None:
        stepper.warn(CONTROLLED)
