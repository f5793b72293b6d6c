"""What the caches across steps have in common: which steps may be reused, one decision per step, one state per branch.

The first forward pass of a step decides, and the step's other guidance branches follow, so that guidance never
mixes a computed prediction with a remembered one. What is remembered is kept for each branch and each expert.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from mmaccel.method import is_count, is_number
from mmaccel.session import Session
from mmaccel.stepping.tensors import count_bytes

from ..families.adapter import TRANSFORMERS, DiffusionMethod, DiffusionTransformerAdapter, require_steps
from ..steps import Forward, Run, Stepper, count_forwards

NAMES = (
    "BlockCache",
    "EasyCache",
    "EncoderReuse",
    "FasterCache",
    "FirstBlockCache",
    "HeterogeneousSteps",
    "MagCache",
    "PyramidAttentionBroadcast",
    "TaylorSeer",
    "TeaCache",
    "TokenCache",
)
STEP_CACHES = frozenset(f"video.{name}" for name in NAMES)


class StepCache(DiffusionMethod):
    """Base of the methods that reuse results of earlier steps; only one of them at a time."""

    excludes: ClassVar[frozenset[str]] = STEP_CACHES
    families: ClassVar[frozenset[str] | None] = TRANSFORMERS
    threshold: float
    warmup: int
    cooldown: int

    def __post_init__(self) -> None:
        self._check_steps()
        self._require(is_number(self.threshold, 0), "threshold", "a number of at least 0")

    def check(self, adapter: DiffusionTransformerAdapter) -> None:
        require_steps(adapter, self.name)

    def _check_steps(self) -> None:
        self._require(is_count(self.warmup), "warmup", "an integer of at least 1: there is nothing to reuse before")
        self._require(is_count(self.cooldown, 0), "cooldown", "an integer of at least 0")

    @property
    def exact(self) -> bool:
        return self.threshold == 0


class CacheStepper(Stepper):
    """One run with a cache; subclasses say what is remembered and what a step would cost in error.

    Attributes
    ----------
    branch_state
        What one branch remembers: a class with an attribute `step`, when it was last computed, at first -1.
    reuse
        What the first branch of the current step decided.
    smallest
        The smallest error that was too large, for the advice in the report.
    """

    branch_state: ClassVar[type]

    def __init__(self, session: Session, run: Run, method: Any) -> None:
        super().__init__(session, run)
        self.method = method
        self.first_step: int | None = None
        self.reuse = False
        self.smallest = float("inf")
        self.states: dict[tuple[int, int], Any] = {}

    def answer(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> tuple[Any, float]:
        """The output of a forward pass, and the share of it that was computed."""
        raise NotImplementedError  # pragma: no cover

    def forward(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        if self.first_step is None:
            self.first_step = self.run.step
        if self.run.branch == 0:
            self.reuse = False
        if self.method.exact:
            output, done = forward(*args, **kwargs), 1.0
        else:
            output, done = self.answer(denoiser, forward, args, kwargs)
        self.note(done)
        self.report.peak_extra_bytes = max(self.report.peak_extra_bytes, self.held_bytes())
        return output

    def note(self, done: float) -> None:
        """Report a forward pass of which a share `done` was computed."""
        count_forwards(self, done)

    def held(self) -> list[Any]:
        """The objects whose tensors are kept for later steps."""
        return list(self.states.values())

    def held_bytes(self) -> int:
        """Their bytes."""
        return count_bytes(*self.held())

    @property
    def state(self) -> Any:
        """What the current branch of the current expert remembers."""
        return self.states.setdefault((self.run.expert, self.run.branch), self.branch_state())

    @property
    def leads(self) -> bool:
        """Whether the current branch decides for the step."""
        return self.run.branch == 0

    @property
    def may_reuse(self) -> bool:
        """Whether this step is behind the warm-up and before the cool-down, and its branch remembers enough.

        A branch that was not there in the last computed step (guidance for a part of the steps) is computed.
        """
        since = self.run.step - (self.first_step or 0)
        free = since >= self.method.warmup and self.run.step < self.run.steps - self.method.cooldown
        leader = self.states.get((self.run.expert, 0))
        return free and leader is not None and 0 <= leader.step <= self.state.step

    def small(self, error: float) -> bool:
        """Whether an error allows to reuse this step."""
        if not error < self.method.threshold:  # so that NaN computes
            self.smallest = min(self.smallest, error)
            return False
        return True

    def finish(self) -> None:
        if self.report.engaged or self.method.exact:
            return
        window, steps = self.method.warmup + self.method.cooldown, self.run.steps - (self.first_step or 0)
        reason = self.advice()
        if window >= steps:
            reason = f"warmup and cooldown are {window} steps and the run has {steps}: lower them"
        self.report.warnings.append(f"{type(self.method).__name__} reused nothing: {reason}")

    def advice(self) -> str:
        """Why nothing was reused, and what to try."""
        if self.smallest < float("inf"):
            return f"the smallest change was {self.smallest:.2g}: try threshold={1.2 * self.smallest:.2g}"
        return "no step had a finite change"

    def close(self) -> None:
        self.states.clear()
