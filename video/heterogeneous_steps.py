"""Heterogeneous step allocation: the steps and tokens that matter are computed, the others forecast."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from mmaccel.cache import require_memory
from mmaccel.method import Method, is_count, is_number
from mmaccel.registry import register
from mmaccel.session import Session

from .adapter import DiffusionTransformerAdapter, patch_size
from .forecast import Velocities, from_tokens, to_tokens
from .partial import BLOCKS, PartialForward
from .schedule import Schedule, groups, refresh
from .steps import Forward, Run, Stepper, count_forwards, follow

POLICIES = ("refresh", "groups")
CHOICES = ("hottest", "random")
# A partial step that costs more than this beyond its tokens buys less than a share of a full step: measured.
MOST_OVERHEAD = 0.03


@register("video")
@dataclass(frozen=True)
class HeterogeneousSteps(Method):
    """Spends a budget of computation on the steps and tokens whose velocity changes most, and forecasts the rest.

    At both ends of a run and at intervals between, all tokens are computed. In the other steps only the hottest are,
    against the kept keys and values of all; or none, where this machine's cost of a partial pass says that it does
    not pay. Every token that is not computed moves with its last velocity and half its slope, so that all tokens are
    always at the sampler's noise level. Lossy below a budget of 1.

    Parameters
    ----------
    budget
        Share of the denoising time to spend, above 0 and at most 1 (exact); default 0.5.
    policy
        ``"refresh"`` (default, measured to be better), or ``"groups"``: the paper's step divisors 1, 2, 4 and 8 for
        groups of tokens by the heat of their velocity.
    forecast
        Share of the velocity's slope to trust, 0 to 1; default 0.5, measured to be better than 0 and 1.
    warmup, cooldown
        Full steps at the beginning and the end; None (default) to solve from the budget.
    interval
        A full step every so many steps between; None (default) to spread what the budget pays for.
    fraction
        Share of the tokens in partial steps, 0 for none; None (default) to solve from the budget and a cost measured
        in the first run of each shape.
    tokens
        ``"hottest"`` (default), or ``"random"`` to see what the choice is worth.

    Raises
    ------
    SettingError
        If a setting is outside its range, or a run is too short for its warm-up and cool-down.
    MemoryLimitError
        Before the run, if its keys and values do not fit.
    UnsupportedTargetError
        If the target is no pipeline, or tokens are to be chosen in a family whose blocks are not known.

    Examples
    --------
    >>> str(HeterogeneousSteps(budget=0.25))
    'video.HeterogeneousSteps(budget=0.25)'
    """

    paper = "Heterogeneous Step Allocation (HSA), 2026"
    neutral = {"budget": 1.0}
    engaging = {"budget": 0.5, "fraction": 0.2}

    budget: float = 0.5
    policy: str = "refresh"
    forecast: float = 0.5
    warmup: int | None = None
    cooldown: int | None = None
    interval: int | None = None
    fraction: float | None = None
    tokens: str = "hottest"

    def __post_init__(self) -> None:
        self._require(is_number(self.budget, 0, 1) and self.budget > 0, "budget", "above 0 and at most 1")
        self._require(self.policy in POLICIES, "policy", "one of " + ", ".join(POLICIES))
        self._require(is_number(self.forecast, 0, 1), "forecast", "between 0 and 1")
        for name, low in (("warmup", 1), ("cooldown", 0), ("interval", 1)):
            value = getattr(self, name)
            self._require(value is None or is_count(value, low), name, f"None or an integer of at least {low}")
        self._require(
            self.fraction is None or is_number(self.fraction, 0, 1), "fraction", "None or between 0 and 1"
        )
        self._require(self.tokens in CHOICES, "tokens", "one of " + ", ".join(CHOICES))

    @property
    def exact(self) -> bool:
        return self.budget == 1

    @property
    def may_be_partial(self) -> bool:
        """Whether some steps may compute some of the tokens."""
        return self.fraction is None or self.fraction > 0

    def attach(self, session: Session, stack: ExitStack) -> None:
        adapter: DiffusionTransformerAdapter = session.adapter  # type: ignore[assignment]
        parts: dict[int, PartialForward] = {}
        if not self.exact and self.may_be_partial:
            for denoiser in adapter.denoisers():
                if type(denoiser).__name__ in BLOCKS or self.fraction or self.policy == "groups":
                    parts[id(denoiser)] = PartialForward(denoiser, stack)
        if not self.exact:
            follow(session, stack, lambda run: _Steps(self, session, run, parts))


class _Steps(Stepper):
    """One run."""

    def __init__(
        self, method: HeterogeneousSteps, session: Session, run: Run, parts: dict[int, PartialForward]
    ) -> None:
        super().__init__(session, run)
        self.method, self.parts = method, parts
        self.velocities = Velocities(method.forecast)
        self.outputs: dict[int, Any] = {}
        self.patch: tuple[int, ...] = ()
        self.expert: int | None = None
        self.shares: list[float] = []
        self.active: torch.Tensor | None = None  # of a partial step
        self.generator = torch.Generator().manual_seed(0)
        self.schedule = self._solve(None)
        self.may_keep = bool(parts)

    # which steps

    def _solve(self, overhead: float | None) -> Schedule:
        method, steps = self.method, self.run.steps
        ends = (method.warmup, method.cooldown, method.interval)
        if method.policy == "groups":
            return groups(steps, method.budget, *ends)
        return refresh(steps, method.budget, *ends, overhead=overhead, fraction=method.fraction)

    def _share(self) -> float:
        run = self.run
        if self.velocities.velocity is None or run.expert != self.expert:
            return 1.0  # nothing to forecast from, or kept by another transformer
        return self.schedule.fractions[run.step]

    # forward passes

    def forward(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        run = self.run
        if run.branch == 0:
            self.share = self._share()
            self.expert, self.patch = run.expert, patch_size(denoiser)
        part = self.parts.get(id(denoiser)) if self.may_keep else None
        if self.share == 0:
            output, done = self.outputs[run.branch], 0.0
        elif self.share == 1:
            output, done = self._full(part, forward, args, kwargs), 1.0
        else:
            assert part is not None
            if run.branch == 0:
                self.active = self._choose(self.share)
            assert self.active is not None
            output = part.only(self.active, run.branch, forward, args, kwargs)
            done = len(self.active) / part.total
        count_forwards(self, done)
        return output

    def _full(self, part: PartialForward | None, forward: Forward, args: Any, kwargs: Any) -> Any:
        run = self.run
        if part is None:
            output = forward(*args, **kwargs)
        else:
            output = part.keeping(run.branch, forward, args, kwargs)
        self.outputs[run.branch] = output
        return output

    def _choose(self, share: float) -> torch.Tensor:
        heat = self.velocities.heat()
        count = active_count(share, len(heat))
        if self.method.tokens == "random":
            return torch.randperm(len(heat), generator=self.generator)[:count].sort().values.to(heat.device)
        return heat.topk(count).indices.sort().values

    # velocities

    def velocity(self, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        run = self.run
        level = run.levels[run.step]
        self.shares.append(self.share)
        computed = to_tokens(output, self.patch)
        if self.share == 0:
            merged = self.velocities.at(level)
        else:
            merged = self.velocities.update(computed, level, None if self.share == 1 else self.active)
        return output if self.share == 1 else from_tokens(merged, self.patch, output).to(output.dtype)

    def finish(self) -> None:
        self.report.details["steps"] = self.shares


def active_count(share: float, tokens: int) -> int:
    """Tokens of a partial step: whole tiles of the attention kernels, where there are many."""
    multiple = 128 if tokens >= 4096 else 16
    return min(tokens, max(multiple, round(share * tokens / multiple) * multiple))
