"""One run of heterogeneous steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from mmaccel.bench import synchronize
from mmaccel.cache import require_memory
from mmaccel.session import Session

from .adapter import token_grid
from .families import bound
from .forecast import Velocities
from .layout import Layout
from .partial import PartialForward
from .schedule import Schedule, chosen, groups, refresh
from .steps import Forward, Run, Stepper, count_forwards
from .tensors import count_bytes, tensors
from .trace import Trace

if TYPE_CHECKING:
    from .heterogeneous_steps import HeterogeneousSteps

# A partial step that costs more than this beyond its tokens buys less than a share of a full step: measured.
MOST_OVERHEAD = 0.03
# Errors of the first steps stay, where nothing can correct them. Measured with UniPC on a small Wan model.
UNCORRECTED_WARMUP = 3


class HeterogeneousRun(Stepper):
    """One run: which tokens each step computes, and the velocities with which all of them go on."""

    def __init__(
        self, method: HeterogeneousSteps, session: Session, run: Run, parts: dict[int, PartialForward]
    ) -> None:
        super().__init__(session, run)
        self.method, self.parts = method, parts
        self.velocities = Velocities(method.forecast)
        self.layout = Layout()
        self.outputs: dict[int, Any] = {}
        self.expert: int | None = None
        self.share = 1.0
        self.order: torch.Tensor | None = None  # tokens, the hottest first
        self.active: torch.Tensor | None = None
        self.pinned: torch.Tensor | None = None
        self.trace = Trace(run.levels[run.step : -1])
        self.generator = torch.Generator().manual_seed(0)
        self.overheads: dict[Any, float] = session.memory.setdefault("overhead of a partial pass", {})
        self.schedule = self._solve(None)
        self.keeps = bool(parts)
        self.is_solved = not parts or method.policy == "groups"  # others wait for the cost of a partial pass
        scheduler = session.target.scheduler
        if method.correct and not run.is_euler and scheduler.config.get("prediction_type") == "flow_prediction":
            shift = scheduler.config.get("flow_shift", 1.0)
            self.report.warnings.append(
                f"{type(scheduler).__name__} makes no Euler steps, so that forecasts are not corrected: with"
                f" pipe.scheduler = FlowMatchEulerDiscreteScheduler(shift={shift:g}) they are"
            )
        least = self.schedule.cost(0.0) / run.steps
        if least >= method.budget + 0.5 / run.steps and not any((method.warmup, method.cooldown, method.interval)):
            self.report.warnings.append(
                f"{run.steps} steps leave no room for a budget of {method.budget:g}: {least:.0%} of them are computed"
            )

    def _solve(self, overhead: float | None) -> Schedule:
        method, steps = self.method, self.run.steps
        if method.steps is not None:
            return chosen(steps, method.steps)
        warmup = method.warmup
        if warmup is None and not self.run.is_euler:
            warmup = max(1, min(UNCORRECTED_WARMUP, round(method.budget * steps) - 1))
        given = (warmup, method.cooldown, method.interval)
        if method.policy == "groups":
            return groups(steps, method.budget, *given)
        if method.fraction is None and overhead is not None and overhead > MOST_OVERHEAD:
            overhead = None
        if method.fraction and overhead is None:
            overhead = 0.0  # until it is measured
        return refresh(steps, method.budget, *given, overhead=overhead, fraction=method.fraction)

    def forward(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        run = self.run
        if run.branch == 0:
            self.pinned = pinned_tokens(bound(denoiser, args, kwargs).arguments)
            self._begin_step()
            self.trace.grid = token_grid(denoiser, args, kwargs)
        part = self.parts.get(id(denoiser)) if self.keeps else None
        done = self.share
        is_new = run.branch not in self.outputs  # guidance that begins in the middle
        if self.share == 0 and not is_new:
            output = self.outputs[run.branch]
        elif self.active is None or part is None or is_new:
            self._reserve(part, denoiser, args, kwargs)
            output, done = self._full(part, forward, args, kwargs), 1.0
        else:
            output = part.only(self.active, run.branch, forward, args, kwargs)
            done = len(self.active) / part.total
        count_forwards(self, done)
        return output

    def _begin_step(self) -> None:
        run = self.run
        if run.expert != self.expert:
            self.expert, self.velocities = run.expert, Velocities(self.method.forecast)
        is_known = self.velocities.velocity is not None  # something to forecast from
        self.share = self.schedule.fractions[run.step] if is_known else 1.0
        self.active = None
        if 0 < self.share < 1:
            assert self.order is not None
            if self.method.policy == "refresh":
                self._rank()
            self.active = self.order[: active_count(self.share, len(self.order))].sort().values

    def _rank(self) -> None:
        heat = self.velocities.heat(relative=self.method.policy == "groups")
        if self.method.tokens == "random":
            heat = torch.rand(len(heat), generator=self.generator).to(heat.device)
        if self.pinned is not None:
            heat = heat.masked_fill(self.pinned, -1.0)  # they do not move
        self.order = heat.argsort(descending=True, stable=True)

    def _full(self, part: PartialForward | None, forward: Forward, args: Any, kwargs: Any) -> Any:
        run = self.run
        began = time.perf_counter()
        output = forward(*args, **kwargs) if part is None else part.keeping(run.branch, forward, args, kwargs)
        self.outputs[run.branch] = output
        # the first pass of a process is slow
        if part is not None and not self.is_solved and run.branch == 0 and self.velocities.velocity is not None:
            sample = next(tensors(output))
            key = str(sample.shape), str(sample.device)
            if key not in self.overheads:
                synchronize()
                self.overheads[key] = _overhead(part, time.perf_counter() - began, forward, args, kwargs)
            self.schedule, self.is_solved = self._solve(self.overheads[key]), True
            self.report.details["overhead of a partial pass"] = self.overheads[key]
        return output

    def _reserve(self, part: PartialForward | None, denoiser: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Refuse a run whose keys and values do not fit, when it begins."""
        if part is not None and self.run.branch not in self.outputs:
            needed = part.estimate_bytes(denoiser, args, kwargs) + self._latents_bytes(denoiser, args, kwargs)
            device = "cpu" if self.method.kv == "cpu" else next(denoiser.parameters()).device
            require_memory(needed, device, str(self.method))
            details = self.report.details
            details["estimated_bytes"] = details.get("estimated_bytes", 0) + needed

    def _latents_bytes(self, denoiser: torch.nn.Module, args: Any, kwargs: Any) -> int:
        """The branch's output, and with the first branch velocities and slopes."""
        latents = bound(denoiser, args, kwargs).arguments["hidden_states"]
        return int(latents.numel() * latents.element_size() * (3 if self.run.branch == 0 else 1))

    def velocity(self, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        run = self.run
        if run.branch < 0:
            return output
        if self.velocities.velocity is None:
            self.layout = Layout.of(self.session.adapter.denoisers()[run.expert], output)  # type: ignore[attr-defined]
        computed = self.layout.tokens(output) if self.share else None
        level, following = run.levels[run.step], run.levels[run.step + 1]
        self.velocities.corrects = self.method.correct and run.is_euler  # which the step before may have shown
        merged = self.velocities.step(level, following, computed, self.active)
        self.trace.add(self.share if self.active is None else self.active, merged.shape[1])
        if self.share == 1:
            self._rank()
            self._count_memory()
            if self.keeps and self.is_solved and not self.schedule.is_partial:
                self._release()
        return self.layout.latents(merged, output).to(output.dtype)

    def _count_memory(self) -> None:
        kept = sum(part.cache.nbytes() for part in self.parts.values())
        kept += self.velocities.nbytes() + count_bytes(*self.outputs.values())
        self.report.peak_extra_bytes = max(self.report.peak_extra_bytes, kept)

    def finish(self) -> None:
        self.report.details["steps"] = self.trace.shares()
        self.session.memory["trace"] = self.trace

    def close(self) -> None:
        self._release()

    def _release(self) -> None:
        self.keeps = False
        for part in self.parts.values():
            part.keys.reset()


def _overhead(part: PartialForward, full_seconds: float, forward: Forward, args: Any, kwargs: Any) -> float:
    """Measured cost of a pass over a few tokens beyond their share, in full passes; writes what is there already."""
    tokens = torch.arange(active_count(0.05, part.total), device=part.device)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        part.only(tokens, 0, forward, args, kwargs)
        synchronize()
        seconds.append(time.perf_counter() - began)
    return round(max(0.0, min(seconds) / full_seconds - len(tokens) / part.total), 2)


def pinned_tokens(call: dict[str, Any]) -> torch.Tensor | None:
    """Tokens `[S]` that image-to-video holds at the given picture: their own timestep is 0 where others' is not."""
    timestep = call.get("timestep")
    if not isinstance(timestep, torch.Tensor) or timestep.ndim != 2:
        return None
    pinned = (timestep == 0).all(0)
    return pinned if bool(pinned.any()) and not bool(pinned.all()) else None


def active_count(share: float, tokens: int) -> int:
    """Tokens of a partial step: whole tiles of the attention kernels, where there are many."""
    multiple = 128 if tokens >= 4096 else 16
    return min(tokens, max(multiple, round(share * tokens / multiple) * multiple))
