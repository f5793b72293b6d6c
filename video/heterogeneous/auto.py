"""One setting: how much faster, or how faithful."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from tqdm import tqdm

from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.machine import forked_rng, synchronize
from mmaccel.method import Advice, Method, is_number
from mmaccel.patching import wrap_method
from mmaccel.registry import register
from mmaccel.tuning.curve import Goal, Point, point, quality_of

from ..caches.easy_cache import EasyCache
from ..families.adapter import (
    WHOLE_STEPS,
    DiffusionMethod,
    DiffusionTransformerAdapter,
    PipelineSession,
    require_steps,
)
from ..private import execution_device, shared_groups
from ..quality import NAME_IT, as_tensor, tensor_psnr
from ..samplers import asked_steps, given_to
from .first_call import IDLE, UNPICKED, PlainRuns, compare_once, is_idle
from .heterogeneous_steps import HeterogeneousSteps

ROUNDS = 4  # measured budgets
SMALLEST_BUDGET = 0.1
THRESHOLDS = (0.05, 0.1, 0.2)  # of EasyCache
# By how much a budget is larger than the smallest that keeps a floor on the measured prompt, and what it is at least,
# but at most half-way to the whole: with smaller ones other prompts were up to 11 dB below the floor.
SAFETY, SAFE = 1.5, 0.4
CHOSEN, MEASURED = "chosen", "measured"  # what a session remembers: the picked method or None, and the measured points


@register("video")
@dataclass(frozen=True)
class Auto(DiffusionMethod):
    """Measures the pipeline on the first prompt, and picks the method that reaches a speed-up or keeps a quality.

    The first call runs the prompt plainly and with some settings of HeterogeneousSteps and EasyCache, together with the
    plan's other methods, which takes about six times the plain time; its callbacks are called in each of these runs.
    From then on every call uses the picked setting; where no step can be left out, the next call of more steps is
    measured instead. Only calls of the session are measured: those of the pipeline itself are plain until then.
    `session.plan` holds the setting with the measured curve; a saved plan repeats it in another process without
    measuring, and stays plain where nothing was picked. Lossy.

    Parameters
    ----------
    target_speedup
        Measured speed-up to reach, above 1; the most faithful setting that reaches it is picked.
    min_psnr
        PSNR in dB to the plain output to keep, above 0, or nothing is picked. Of HeterogeneousSteps it is half as large
        a budget again as the smallest that keeps it on the first prompt, and at least 0.4, since others need more; a
        run whose forecasts miss more than those of that smallest one computes all its further steps, and says so in its
        report. That margin is for samplers whose forecasts are corrected: with others nothing tells what they miss, and
        the smallest that keeps it is picked itself. EasyCache is picked only where no budget keeps it. With
        `target_speedup` nothing is to spare. How often the floor is kept on other prompts is measured
        (docs/benchmarks/long/kept_floors.md). If neither is given, the goal is a speed-up of 2.

    Raises
    ------
    SettingError
        If a setting is outside its range.

    Examples
    --------
    >>> str(Auto(min_psnr=30))
    'video.Auto(min_psnr=30)'
    """

    paper = "no paper: a search over the measured curve of speed-up and quality, 2026"
    advice: ClassVar[Advice] = Advice(
        "A pipeline of your own, when you know the speed-up or the quality that you want and not the settings.",
        "The first call takes about six times the plain time; a saved plan spares that.",
    )
    role = "step cache"
    repeatable = False
    families = WHOLE_STEPS
    neutral = {"min_psnr": 1000.0}
    engaging = {"target_speedup": 1.5}

    target_speedup: float | None = None
    min_psnr: float | None = None

    def __post_init__(self) -> None:
        speedup, psnr = self.target_speedup, self.min_psnr
        self._require(speedup is None or (is_number(speedup, 1) and speedup > 1), "target_speedup", "None or above 1")
        self._require(psnr is None or (is_number(psnr, 0) and psnr > 0), "min_psnr", "None or above 0 dB")

    @property
    def measures_first(self) -> bool:
        return True

    def check(self, adapter: DiffusionTransformerAdapter) -> None:
        require_steps(adapter, self.name)
        if any(shared_groups(denoiser) for denoiser in adapter.denoisers()):
            raise UnsupportedTargetError(
                f"{self.name} picks by time, and the devices that run the transformer together may each pick another"
                " setting: measure in one process, save session.plan, and accelerate with that plan"
            )

    def attach(self, session: PipelineSession, stack: ExitStack) -> None:
        """Nothing but warnings of runs that stay plain: what is picked takes this method's place in the plan."""
        told = PlainRuns(session, self.name)
        session.hold(session.target.scheduler)
        wrap_method(stack, session.target.scheduler, "set_timesteps", told.set_timesteps)
        session.around.append(told.call)
        stack.callback(session.around.remove, told.call)

    def prepare(self, session: PipelineSession, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().prepare(session, args, kwargs)
        memory, plan = session.memory, session.plan
        if MEASURED not in memory and self._is_of_candidates(plan.measured):  # as in a saved plan that picked nothing
            memory.update({CHOSEN: None, MEASURED: plan.measured, UNPICKED: self._unpicked(plan.measured)})
        if memory.get(CHOSEN) is None and MEASURED in memory:
            session.plan = replace(plan, measured=memory[MEASURED])
            return
        if MEASURED not in memory and is_idle(memory, asked_steps(session.target, args, kwargs)):
            return
        if MEASURED not in memory and given_to(session.target, args, kwargs).get("output", "") is None:
            raise SettingError(f"{self.name} would measure a call that returns the pipeline's whole state: {NAME_IT}")
        with session.detached():
            if MEASURED not in memory:
                self._measure(session, args, kwargs)
            picked = memory.get(CHOSEN) or self
            methods = tuple(picked if method is self else method for method in plan.methods)
            session.plan = replace(plan, methods=methods, measured=memory.get(MEASURED, []))

    def _measure(self, session: PipelineSession, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Measure the call, and remember what to run from now on, or None; nothing where no setting had an effect."""
        curve, memory = _Curve(session, args, kwargs), session.memory
        try:
            curve.measure(self)
        except _InterruptedCall:
            memory[UNPICKED] = f"{self.name} was interrupted while it measured: the next fast(...) is measured instead"
            return
        finally:
            curve.restore()
            memory.pop("trace", None)  # of a measured run, which is not the user's
        compare_once(session, curve.plain_seconds)
        memory.pop(UNPICKED, None)
        if not curve.points:
            memory[IDLE] = (*memory.get(IDLE, ()), asked_steps(session.target, args, kwargs))
            memory[UNPICKED] = (
                f"{self.name} changed nothing: no setting left out a step of the call that was measured; the next"
                " fast(...) that makes more of them is measured"
            )
            return
        memory[CHOSEN], memory[MEASURED] = self._pick(curve), curve.points
        if memory[CHOSEN] is None:
            memory[UNPICKED] = self._unpicked(curve.points)

    def _is_of_candidates(self, points: list[Point]) -> bool:
        """Whether a plan's curve was measured here, and not by `tune`, whose points are settings of this method."""
        return bool(points) and self.min_psnr is not None and all(point["name"] != self.name for point in points)

    def _unpicked(self, points: list[Point]) -> str:
        """Why none of these settings was picked."""
        best = max(quality_of(point) or 0.0 for point in points)
        wanted = f"{self.min_psnr:g} dB" + (f" at {self.target_speedup:g}x" if self.target_speedup else "")
        return (
            f"{self.name} changes nothing: no setting kept {wanted} on the call that was measured, and the nearest to"
            f" the plain output had {best:.1f} dB; session.plan has all that were measured"
        )

    def _pick(self, curve: _Curve) -> Method | None:
        wanted = self.target_speedup or (None if self.min_psnr else 2.0)
        number = self._picked(Goal(wanted, self.min_psnr), curve)
        if number is not None:
            return self._kept(curve.methods[number], curve.missed[number])
        if self.min_psnr:
            return None
        pairs = zip(curve.methods, curve.points, strict=True)
        return max(pairs, key=lambda pair: float(pair[1]["speedup"]))[0]

    def _picked(self, goal: Goal, curve: _Curve) -> int | None:
        """The number of the point that is best for the goal; for a floor first of those whose runs can be watched."""
        watched = [number for number, missed in enumerate(curve.missed) if missed and self.min_psnr is not None]
        best = goal.pick([curve.points[number] for number in watched])
        return goal.pick(curve.points) if best is None else watched[best]

    def _kept(self, method: Method, missed: float) -> Method:
        """The method with something to spare for other prompts, of which some lose 20 dB more.

        It computes more steps, and no run may miss more than the measured one did with fewer.
        """
        if self.min_psnr is None or not isinstance(method, HeterogeneousSteps) or not missed:
            return method
        budget = method.budget
        spare = budget if self.target_speedup else min(max(SAFE, SAFETY * budget), (1 + budget) / 2)
        return replace(method, budget=round(spare, 3), tolerance=float(f"{missed:.4g}"))


class _InterruptedCall(Exception):
    """A measured run was interrupted, as diffusers' pipelines can be."""


class _Curve:
    """Speed-up and quality of settings, measured on one call."""

    def __init__(self, session: PipelineSession, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.session, self.args, self.kwargs = session, args, kwargs
        generators = kwargs.get("generator")
        self.generators = generators if isinstance(generators, list) else [generators] if generators else []
        self.states = [generator.get_state() for generator in self.generators]
        self.methods: list[Method] = []
        self.points: list[dict[str, Any]] = []
        self.missed: list[float] = []  # what forecasts missed, where a method tells that

    def restore(self) -> None:
        """The user's generators as they were."""
        for generator, state in zip(self.generators, self.states, strict=True):
            generator.set_state(state)

    def measure(self, method: Auto) -> None:
        torch.empty(1, device=execution_device(self.session.target))  # in use, so that its random state is put back
        self._run()  # the first call of a process is slower
        reference, self.plain_seconds = self._run()
        self.reference = as_tensor(reference)
        companions = [other for other in self.session.plan.methods if other is not method]
        for candidate in tqdm(
            self._candidates(method), total=ROUNDS + len(THRESHOLDS), desc="video.Auto measures", leave=False
        ):
            with ExitStack() as stack:
                self.session.attach([candidate, *companions], stack)
                output, seconds = self._run()
            report = self.session.report
            if not report.forwards < report.plain_forwards:  # no step was left out, whatever the clock says
                continue
            quality = tensor_psnr(self.reference, as_tensor(output))
            self.methods.append(candidate)
            self.missed.append(self.session.report.details.get("missed", 0.0))
            self.points.append(point(candidate, self.plain_seconds / seconds, "psnr", "PSNR dB", quality))

    def _candidates(self, method: Auto) -> Iterator[Method]:
        """Settings by bisection: each depends on the last result."""
        low, high = SMALLEST_BUDGET, 1.0
        budget = 1 / (method.target_speedup or 2.0)
        for _ in range(ROUNDS):
            yield HeterogeneousSteps(budget=round(budget, 3))
            low, high = (low, budget) if self._may_be_faster(method) else (budget, high)
            budget = (low + high) / 2
        for threshold in THRESHOLDS:
            yield EasyCache(threshold=threshold)

    def _may_be_faster(self, method: Auto) -> bool:
        """Whether a faster setting may still meet the goal: the last one kept the quality, or was too slow."""
        if not self.points:
            return False
        last = self.points[-1]
        if method.min_psnr is not None:
            return bool(last["psnr"] >= method.min_psnr)
        return bool(last["speedup"] < (method.target_speedup or 2.0))

    def _run(self) -> tuple[Any, float]:
        self.restore()
        with forked_rng():
            synchronize()
            began = time.perf_counter()
            with self.session.run():  # of which a call that begins its steps several times is one
                output = self.session.target(*self.args, **self.kwargs)
            synchronize()
            seconds = time.perf_counter() - began
        if getattr(self.session.target, "_interrupt", False):  # in a callback or by another thread
            raise _InterruptedCall
        return output, seconds


auto = Auto
