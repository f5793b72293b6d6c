"""One run of heterogeneous steps on a pipeline."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from mmaccel.cache import require_memory
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.stepping.allocation import TARGETS, StepAllocation
from mmaccel.stepping.run import FrameRun, SamplerRun
from mmaccel.stepping.schedule import (
    FEW_STEPS,
    Schedule,
    chosen,
    default_schedule,
    default_warmup,
    groups,
    refresh,
)
from mmaccel.stepping.tensors import count_bytes, predicted

from ..families.adapter import PipelineSession, token_grid
from ..families.context_parallel import agreed
from ..families.families import bound, layout_of
from ..samplers import is_one_step, is_repeatable, straight
from ..steps import Forward, Stepper, count_forwards
from ..trace import Trace
from .clean_samples import by_clean, mixtures
from .limits import leave_uncorrected, warn_of_limits
from .partial import PartialForward, pinned_tokens

if TYPE_CHECKING:
    from .heterogeneous_steps import HeterogeneousSteps

ASTRAY = "further astray than the tolerance"


class HeterogeneousRun(Stepper):
    """One run: has the transformers compute the steps and tokens that a :class:`StepAllocation` asks for."""

    def __init__(
        self, method: HeterogeneousSteps, session: PipelineSession, run: SamplerRun, parts: dict[int, PartialForward]
    ) -> None:
        super().__init__(session, run)
        self.method, self.parts = method, parts
        self.outputs: dict[int, Any] = {}  # of the branches, in the last step that computed any
        self.expert: int | None = None
        self.passes, self.passes_before = set[int](), set[int]()  # branches of this step and the last, if there was one
        self.is_stale = False  # whether velocities are of other branches than the last step's
        self.goes_on = run.step > 0  # after a run that had to start over
        self.trace = Trace(run.levels[:-1])
        self.frames = run.frames or [FrameRun(run.levels, {k: k for k in range(run.steps)}, session.target.scheduler)]
        self.longest = max(len(frame.moves) for frame in self.frames)  # steps of a frame
        self.mixtures = [] if run.frames else mixtures(session.target.scheduler)
        schedule = self._solve(run.steps, method.budget)
        self.agree = functools.partial(agreed, session.adapter.denoisers()[0])
        self.allocations = [self._allocate(frame.levels, schedule, frame.sampler) for frame in self.frames]
        for allocation in self.allocations:
            allocation.agree = self.agree
        self._share_out(schedule)

    @property
    def allocation(self) -> StepAllocation:
        """That of the frame that steps, or of all."""
        return self.allocations[self.run.frame]

    @property
    def missed(self) -> float:
        """Root mean square of all corrections so far, of the frames that move."""
        pairs = zip(self.allocations, self.frames, strict=True)
        return fmean(allocation.missed**2 for allocation, frame in pairs if frame.moves) ** 0.5

    def _share_out(self, schedule: Schedule) -> None:
        """Give every frame the part of its own steps in the schedule of the whole run."""
        firsts = {min(frame.moves) for frame in self.frames if frame.moves}
        if len(firsts) > 1 and self.method.steps is None:
            schedule = schedule.computing(firsts)
        self.schedule = schedule
        for allocation, frame in zip(self.allocations, self.frames, strict=True):
            allocation.schedule = replace(schedule, fractions=tuple(schedule.fractions[step] for step in frame.moves))

    def _allocate(self, levels: list[float], schedule: Schedule, sampler: Any) -> StepAllocation:
        method = self.method
        # lines where the steps were solved for lines, and where a sampler bends them itself
        one_step = method.target == "converged" or (is_one_step(sampler) and method.steps is None)
        return StepAllocation(
            levels,
            schedule,
            method.forecast,
            method.correct and is_repeatable(sampler),
            sampler,
            method.tokens,
            by_groups=method.policy == "groups",
            target=method.target,
            tolerance=None if self.run.frames else method.tolerance,  # which frames keep together
            one_step=one_step,
            curved=one_step and not self.mixtures,
        )

    def _solve(self, steps: int, budget: float) -> Schedule:
        method = self.method
        if method.steps is not None:
            return chosen(steps, method.steps)
        if self.is_short(steps):
            return Schedule((1.0,) * steps)
        if method.policy == "groups":
            return groups(steps, budget, method.warmup, method.cooldown, method.interval)
        if self._is_usual:
            scheduler = self.session.target.scheduler
            bends = bool(self.mixtures) and is_repeatable(scheduler) and not is_one_step(scheduler)
            return default_schedule(steps, budget, bends)
        warmup = method.warmup
        if warmup is None and method.interval is None and self.expert is None:  # not where another expert goes on
            warmup = default_warmup(steps, budget)
        return refresh(steps, budget, warmup, method.cooldown, method.interval, fraction=method.fraction or 0.0)

    def _rest(self, steps: int, budget: float) -> Schedule:
        """What is left of a run that goes on: all of it is computed where warm-up and cool-down do not fit in it."""
        try:
            return self._solve(steps, budget)
        except SettingError:
            return Schedule((1.0,) * steps)

    @property
    def _is_asked(self) -> bool:
        """Whether settings say which steps to compute."""
        method = self.method
        given = (method.steps, method.warmup, method.cooldown, method.interval)
        return any(setting is not None for setting in given)

    @property
    def _is_usual(self) -> bool:
        """Whether a run is one of those on which the default schedule was measured: whole, by one transformer."""
        other = self._is_asked or self.method.fraction or self.run.frames
        goes_on = self.run.step > 0 or self.expert is not None
        return not (other or goes_on) and len(self.session.adapter.denoisers()) == 1

    def is_short(self, steps: int) -> bool:
        """Whether a run of so many steps is better computed than forecast; what a second expert has left is none."""
        return min(steps, self.longest) < FEW_STEPS and self.expert is None and not self._is_asked

    def forward(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        run, allocation = self.run, self.allocations[self.run.moving[0]]
        if run.branch == 0:
            if self.parts:
                allocation.pinned = pinned_tokens(bound(denoiser, args, kwargs).arguments)
            self._begin_step()
            self.trace.grid = token_grid(denoiser, args, kwargs)
        part, active, done = self.parts.get(id(denoiser)), allocation.active, allocation.share
        is_new = run.branch not in self.outputs  # guidance that begins in the middle
        self.passes.add(run.branch)
        if done == 0 and not is_new:
            output = self.outputs[run.branch]
        elif active is None or part is None or is_new:
            self._reserve(part, denoiser, args, kwargs)
            output = forward(*args, **kwargs) if part is None else part.keeping(run.branch, forward, args, kwargs)
            self.outputs[run.branch], done = output, 1.0
        else:
            output = part.only(active, run.branch, forward, args, kwargs)
            done = len(active) / part.total
        count_forwards(self, done)
        return output

    def _begin_step(self) -> None:
        """Let the allocation decide; another expert begins with a full step, and shares the remaining budget."""
        run, method = self.run, self.method
        self.passes_before, self.passes = self.passes, set()
        run.frame = run.moving[0]
        allocation = self.allocation
        for stale in self.allocations if self.is_stale else ():
            stale.restart()
        if not allocation.velocities.is_known and self.expert is None:
            self._begin_run()
        if self.expert not in (None, run.expert):
            allocation.restart()
            if method.steps is None:
                allocation.schedule = allocation.schedule.resolved(run.step, method.budget, self._rest)
        self.expert = run.expert
        if not run.frames:
            allocation.begin(run.step)
            return
        moving = [(self.allocations[i], self.frames[i].moves[run.step]) for i in run.moving]
        share = max(allocation.begin(own) for allocation, own in moving)
        if method.tolerance is not None and self.agree(self.missed > method.tolerance):
            share = 1.0
        for allocation, _ in moving:  # what one frame needs, all get
            allocation.share = share

    def _begin_run(self) -> None:
        """Spread the budget over the steps that are made: image-to-image starts further down."""
        run, left = self.run, self.run.steps - self.run.step
        if self.method.steps is not None:
            chosen(run.steps, self.method.steps, run.step)
        elif run.step:
            rest = (self._rest if self.goes_on else self._solve)(left, self.method.budget)
            self._share_out(Schedule((0.0,) * run.step + rest.fractions))
        if self.is_short(left):
            for allocation in self.allocations:
                allocation.target = TARGETS[0]
        self.trace.levels = run.levels[run.step : -1]
        warn_of_limits(self, left)

    def _reserve(self, part: PartialForward | None, denoiser: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Refuse a run whose keys and values do not fit, when it begins."""
        if part is not None and self.run.branch not in self.outputs:
            latents = bound(denoiser, args, kwargs).arguments["hidden_states"]
            needed = part.estimate_bytes(denoiser, args, kwargs) + self._latents_bytes(latents)
            # parameters of an off-loaded transformer wait elsewhere
            require_memory(needed, "cpu" if self.method.kv == "cpu" else latents.device, str(self.method))
            details = self.report.details
            details["estimated_bytes"] = details.get("estimated_bytes", 0) + needed

    def _latents_bytes(self, latents: torch.Tensor) -> int:
        """The branch's output; the first also has velocities, slopes, bends and steps to make again."""
        again = 0 if self.allocation.replay is None else self.allocation.schedule.longest_gap + 4
        wide = 4 * latents.numel() if self.mixtures else latents.nbytes
        return latents.nbytes + (wide * (3 + again) if self.run.branch == 0 else 0)

    def step(self, make: Forward, output: torch.Tensor, sample: torch.Tensor) -> Any:
        run, allocation = self.run, self.allocation
        if run.branch < 0:
            return make(output, sample)
        if self.churns and allocation.replay is not None:
            leave_uncorrected(self)
        is_first = not allocation.velocities.is_known
        if is_first:
            denoiser = self.session.adapter.denoisers()[run.expert]
            allocation.layout = layout_of(denoiser, output)
            self._check_tokens(self.parts.get(id(denoiser)), output)
        if allocation.target == "converged":
            self.report.engaged = True  # also where all steps are computed
            if not is_one_step(self.session.target.scheduler):
                begin, end = allocation.levels[allocation.index :][:2]
                make = straight(make, end - begin)
        is_still = is_first and not output.any()  # CFG-Zero* stands still at first: no later velocity follows from that
        if self.mixtures and output.shape == sample.shape:  # else with a variance beside it
            make, output = by_clean(self.mixtures[run.step], make, output, sample, allocation.share == 1)
        # guidance that begins or ends: no slope leads from what it gave before to what it gives now
        is_other = self.passes_before not in (set(), self.passes)
        self.is_stale = is_other and allocation.share < 1
        if is_other and not self.is_stale:
            allocation.restart()
        result = allocation.step(make, output, sample)
        if run.frame == run.moving[-1]:
            self._note_step()
        if is_still:
            allocation.restart()
        return result

    def _check_tokens(self, part: PartialForward | None, output: torch.Tensor) -> None:
        """Refuse to choose tokens where the pipeline steps others than its transformer has.

        Packed latents are stepped from the first token on, with references to look at behind them.
        """
        count = self.allocation.layout.tokens(output).shape[1]
        if part is not None and output.ndim > 3 and count != part.total:
            raise UnsupportedTargetError(
                f"{type(self.session.target).__name__} steps {count} of the {part.total} tokens of its transformer, so"
                f" that {self.method.name} cannot choose among them: leave fraction= and policy= out"
            )

    def _note_step(self) -> None:
        """Note what the step computed and what is kept."""
        allocation = self.allocation
        active = allocation.share if allocation.active is None else allocation.active
        self.trace.add(active, len(allocation.velocities.level))
        self.report.details.setdefault("steps", []).append(self.trace.shares()[-1])
        kept = sum(part.cache.nbytes() for part in self.parts.values())
        kept += sum(allocation.nbytes() for allocation in self.allocations)
        kept += count_bytes(*(predicted(output) for output in self.outputs.values()))
        self.report.peak_extra_bytes = max(self.report.peak_extra_bytes, kept)

    def finish(self) -> None:
        tolerance, details = self.method.tolerance, self.report.details
        missed = max(details.get("missed", 0.0), self.missed)  # a long video has several runs
        if self.allocation.replay is not None:  # else nothing tells
            details["missed"] = missed
        if tolerance is not None and missed > tolerance:
            over = 20 * math.log10(missed / tolerance) if tolerance else math.inf
            self.report.warnings[:] = [text for text in self.report.warnings if ASTRAY not in text]
            self.warn(f"forecasts led {over:.1f} dB {ASTRAY}, and all steps after that were computed")
        velocities = [allocation.velocities.velocity for allocation in self.allocations]
        if not all(bool(velocity.isfinite().all()) for velocity in velocities if velocity is not None):
            self.warn(
                "velocities became NaN or infinite: see whether the pipeline alone does so too, and load it with"
                " dtype=torch.bfloat16 or float32"
            )
        self.session.memory["trace"] = self.trace

    def close(self) -> None:
        for part in self.parts.values():
            part.keys.reset()
