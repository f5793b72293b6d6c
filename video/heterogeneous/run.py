"""One run of heterogeneous steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mmaccel.cache import require_memory
from mmaccel.session import Session
from mmaccel.stepping.forecast import Velocities
from mmaccel.stepping.layout import Layout
from mmaccel.stepping.replay import Replay, is_one_step, is_repeatable
from mmaccel.stepping.schedule import Schedule, chosen, groups, refresh
from mmaccel.stepping.tensors import count_bytes

from ..families.adapter import token_grid
from ..families.families import bound, layout_of
from ..steps import Forward, Run, Stepper, count_forwards
from ..trace import Trace
from .partial import PartialForward

if TYPE_CHECKING:
    from .heterogeneous_steps import HeterogeneousSteps


# Share of the computed steps that lies at the beginning where a sampler goes by several past steps, of which a forecast
# spoils more than one. Measured with UniPC on a small Wan model: fewer, and some prompts tip over into another clip.
WARMUP = 0.4
FEWEST = 8  # computed steps, below which such samplers do as well with fewer steps: measured with 5 of 20, and 10 of 40


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
        scheduler = session.target.scheduler
        self.replay = Replay(scheduler) if method.correct and is_repeatable(scheduler) else None
        self.schedule = self._solve(run.steps, method.budget)
        if method.correct and self.replay is None:
            self.warn(
                f"what forecasts missed is not made up for with {type(scheduler).__name__}: fewer steps may do better,"
                " mmaccel.compare() tells"
            )
        if not is_one_step(scheduler) and not method.exact and method.budget * run.steps < FEWEST:
            fewer = max(1, round(method.budget * run.steps))
            self.warn(
                f"{fewer} computed steps are few to forecast from with {type(scheduler).__name__}:"
                f" num_inference_steps={fewer} may do as well"
            )
        least = self.schedule.cost / run.steps
        if least >= method.budget + 0.5 / run.steps and not any((method.warmup, method.cooldown, method.interval)):
            self.warn(
                f"{run.steps} steps leave no room for a budget of {method.budget:g}: {least:.0%} of them are computed"
            )

    def _solve(self, steps: int, budget: float) -> Schedule:
        method = self.method
        if method.steps is not None:
            return chosen(steps, method.steps)
        warmup = method.warmup
        if warmup is None and not is_one_step(self.session.target.scheduler) and budget * steps >= FEWEST:
            warmup = round(WARMUP * budget * steps)
        given = (warmup, method.cooldown, method.interval)
        if method.policy == "groups":
            return groups(steps, budget, *given)
        return refresh(steps, budget, *given, fraction=method.fraction or 0.0)

    def forward(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        run = self.run
        if run.branch == 0:
            self.pinned = pinned_tokens(bound(denoiser, args, kwargs).arguments)
            self._begin_step()
            self.trace.grid = token_grid(denoiser, args, kwargs)
        part = self.parts.get(id(denoiser))
        done = self.share
        is_new = run.branch not in self.outputs  # guidance that begins in the middle
        if self.share == 0 and not is_new:
            output = self.outputs[run.branch]
        elif self.active is None or part is None or is_new:
            self._reserve(part, denoiser, args, kwargs)
            output = forward(*args, **kwargs) if part is None else part.keeping(run.branch, forward, args, kwargs)
            self.outputs[run.branch], done = output, 1.0
        else:
            output = part.only(self.active, run.branch, forward, args, kwargs)
            done = len(self.active) / part.total
        count_forwards(self, done)
        return output

    def _begin_step(self) -> None:
        run = self.run
        if run.expert != self.expert:
            if self.expert is not None:
                self._begin_expert()
            self.expert = run.expert
        is_known = self.velocities.velocity is not None  # something to forecast from
        self.share = self.schedule.fractions[run.step] if is_known else 1.0
        self.active = None
        if 0 < self.share < 1:
            assert self.order is not None
            if self.method.policy == "refresh":
                self._rank()
            self.active = self.order[: active_count(self.share, len(self.order))].sort().values

    def _begin_expert(self) -> None:
        """Nothing crosses over from the expert before; this one begins with a full step, and shares what is left."""
        method, step = self.method, self.run.step
        self.velocities = Velocities(method.forecast)
        if self.replay is not None:
            self.replay = Replay(self.session.target.scheduler)
        if method.steps is None:
            done, left = self.schedule.fractions[:step], self.run.steps - step
            rest = max(0.0, method.budget * self.run.steps - sum(done)) / left
            self.schedule = Schedule(done + self._solve(left, rest).fractions)

    def _rank(self) -> None:
        heat = self.velocities.heat(relative=self.method.policy == "groups")
        if self.method.tokens == "random":
            heat = torch.rand(len(heat), generator=self.generator).to(heat.device)
        if self.pinned is not None:
            heat = heat.masked_fill(self.pinned, -1.0)  # they do not move
        self.order = heat.argsort(descending=True, stable=True)

    def _reserve(self, part: PartialForward | None, denoiser: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Refuse a run whose keys and values do not fit, when it begins."""
        if part is not None and self.run.branch not in self.outputs:
            needed = part.estimate_bytes(denoiser, args, kwargs) + self._latents_bytes(denoiser, args, kwargs)
            device = "cpu" if self.method.kv == "cpu" else next(denoiser.parameters()).device
            require_memory(needed, device, str(self.method))
            details = self.report.details
            details["estimated_bytes"] = details.get("estimated_bytes", 0) + needed

    def _latents_bytes(self, denoiser: torch.nn.Module, args: Any, kwargs: Any) -> int:
        """The branch's output; with the first branch velocities and slopes, and the steps that may be made again."""
        latents = bound(denoiser, args, kwargs).arguments["hidden_states"]
        again = 0 if self.replay is None else self.schedule.longest_gap + 3
        return int(latents.numel() * latents.element_size() * (3 + again if self.run.branch == 0 else 1))

    def step(self, make: Forward, output: torch.Tensor, sample: torch.Tensor) -> Any:
        run, replay = self.run, self.replay
        if run.branch < 0:
            return make(output, sample)
        if self.velocities.velocity is None:
            self.layout = layout_of(self.session.adapter.denoisers()[run.expert], output)
        level, computed = run.levels[run.step], self.layout.tokens(output) if self.share else None
        before = None if self.velocities.velocity is None else self.velocities.level.clone()
        merged = self.velocities.step(level, computed, self.active)
        if replay is not None and before is not None and computed is not None:
            sample = replay.correct(sample, self.velocities, before, self.layout)
        if replay is not None and self.share == 1:
            replay.begin(sample)
        result = make(self.layout.latents(merged, output).to(output.dtype), sample)
        if replay is not None:
            replay.note(level, merged, make, result)
        self.trace.add(self.share if self.active is None else self.active, merged.shape[1])
        if self.share == 1:
            self._rank()
        self._count_memory()
        return result

    def _count_memory(self) -> None:
        kept = sum(part.cache.nbytes() for part in self.parts.values())
        kept += self.velocities.nbytes() + count_bytes(*self.outputs.values())
        kept += self.replay.nbytes() if self.replay is not None else 0
        self.report.peak_extra_bytes = max(self.report.peak_extra_bytes, kept)

    def finish(self) -> None:
        self.report.details.setdefault("steps", []).extend(self.trace.shares())
        self.session.memory["trace"] = self.trace

    def close(self) -> None:
        for part in self.parts.values():
            part.keys.reset()


def pinned_tokens(call: dict[str, Any]) -> torch.Tensor | None:
    """Tokens `[S]` that image-to-video holds at the given picture: their own timestep is 0 where others' is not."""
    timestep = call.get("timestep")
    if not isinstance(timestep, torch.Tensor) or timestep.ndim != 2:
        return None
    pinned = (timestep == 0).all(0)
    return pinned if bool(pinned.any()) and not bool(pinned.all()) else None


def active_count(share: float, tokens: int) -> int:
    """Tokens of a partial step, at least one: whole tiles of the attention kernels, where there are many."""
    multiple = 128 if tokens >= 4096 else 1
    return min(tokens, max(multiple, round(share * tokens / multiple) * multiple))
