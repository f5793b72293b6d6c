"""What a run of heterogeneous steps says about the limits of its sampler and its number of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmaccel.stepping.schedule import FEWEST

from ..families.adapter import TRANSFORMERS
from ..samplers import is_one_step

if TYPE_CHECKING:
    from .run import HeterogeneousRun

UNCORRECTED = (
    "forecasts are not corrected with {}, whose steps cannot be repeated: mmaccel.compare() shows what that costs,"
    " beside fewer steps"
)


def leave_uncorrected(run: HeterogeneousRun) -> None:
    """Correct nothing in this run, as of samplers that draw: its steps are given `s_churn`, and draw noise inside.

    All further steps are computed where a tolerance is to be kept, since only corrections tell whether it is.
    """
    for allocation in run.allocations:
        allocation.replay = None
        if allocation.tolerance is not None:
            allocation.tolerance = -1.0
    if run.allocation.tolerance is not None:
        run.warn("s_churn draws noise within steps, so nothing tells whether tolerance= is kept: all are computed")
    elif min(run.schedule.fractions[run.run.step :]) < 1:
        run.warn(UNCORRECTED.format(f"s_churn of {type(run.session.target.scheduler).__name__}"))


def warn_of_limits(run: HeterogeneousRun, steps: int) -> None:
    """Warn about the limits of this sampler, or of the `steps` that the run makes."""
    method, scheduler = run.method, run.session.target.scheduler
    sampler = type(scheduler).__name__
    least = 0.0 if method.steps is not None else sum(run.schedule.fractions[-steps:]) / steps
    steps = min(steps, run.longest)
    if run.is_short(steps):
        adapter = run.session.adapter
        place = adapter.place(adapter.denoisers()[0])
        sparse = ", or take video.SparseAttention(budget=0.1) for long clips" if adapter.family in TRANSFORMERS else ""
        run.warn(
            f"{steps} steps are too few to forecast any, so all are computed: to save time within a step, remove()"
            f" the session and call {place}.compile() before accelerate(){sparse} (warmup=1 forecasts all the same)"
        )
        return
    if method.correct and run.allocation.replay is None:
        run.warn(UNCORRECTED.format(sampler))
    fewer = max(1, round(method.budget * steps))
    if not is_one_step(scheduler) and method.budget * steps < FEWEST:
        run.warn(
            f"{fewer} computed steps are few to forecast from with {sampler}: a plain run with"
            f" num_inference_steps={fewer} may do as well"
        )
    if (least - method.budget) * steps > 0.5 + 1e-9 and not any((method.warmup, method.cooldown, method.interval)):
        run.warn(f"a budget of {method.budget:g} is too small for {steps} steps: {least:.0%} of them are computed")
