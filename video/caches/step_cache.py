"""Common parts of the caches across steps: their settings, and how their runs follow a pipeline."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

import torch

from mmaccel.method import is_count, is_number
from mmaccel.stepping.reuse import BranchState, StepReuse
from mmaccel.stepping.run import SamplerRun
from mmaccel.stepping.tensors import count_bytes

from ..families.adapter import (
    TRANSFORMERS,
    DiffusionMethod,
    DiffusionTransformerAdapter,
    PipelineSession,
    require_steps,
)
from ..families.context_parallel import agreed
from ..following import follow
from ..steps import Forward, Stepper, count_forwards


class StepCache(DiffusionMethod):
    """Base of the methods that reuse results of earlier steps; only one of them at a time."""

    role: ClassVar[str] = "step cache"
    families: ClassVar[frozenset[str] | None] = TRANSFORMERS
    threshold: float
    warmup: int
    cooldown: int

    def __post_init__(self) -> None:
        self._check_steps()
        self._require(is_number(self.threshold, 0), "threshold", "a number of at least 0")

    def check(self, adapter: DiffusionTransformerAdapter) -> None:
        require_steps(adapter, self.name)

    def attach(self, session: PipelineSession, stack: ExitStack) -> None:
        follow(session, stack, lambda run: self.stepper(session, run))

    def stepper(self, session: PipelineSession, run: SamplerRun) -> CacheStepper:
        """The stepper of one run."""
        raise NotImplementedError  # pragma: no cover

    def _check_steps(self) -> None:
        self._require(is_count(self.warmup), "warmup", "an integer of at least 1: there is nothing to reuse before")
        self._require(is_count(self.cooldown, 0), "cooldown", "an integer of at least 0")

    def _check_list(
        self, name: str, allowed: str, fits: Callable[[Any], bool], least: int = 0, kind: type = float
    ) -> None:
        """Check a setting that is None or several numbers, and make a tuple of it."""
        given = getattr(self, name)
        if given is not None:
            several = isinstance(given, tuple | list) and len(given) >= least
            self._require(several and all(fits(value) for value in given), name, allowed)
            object.__setattr__(self, name, tuple(kind(value) for value in given))

    @property
    def exact(self) -> bool:
        return all(getattr(self, name) == value for name, value in self.neutral.items())


class CacheStepper(Stepper):
    """One run with a cache: `cache` decides which steps are reused; subclasses define what is kept.

    Attributes
    ----------
    branch_state
        State of one branch; see :class:`mmaccel.stepping.reuse.StepReuse`.
    stack
        Removes at the end what this run attached to the denoisers.
    """

    branch_state: ClassVar[Callable[[], Any]] = BranchState

    def __init__(self, session: PipelineSession, run: SamplerRun, method: Any) -> None:
        super().__init__(session, run)
        self.method = method
        self.stack = ExitStack()
        self.cache = self.make_cache()
        self.cache.agree = functools.partial(agreed, session.adapter.denoisers()[0])

    def make_cache(self) -> StepReuse:
        """The rule that decides in this run."""
        method = self.method
        threshold = getattr(method, "threshold", 0.0)
        return StepReuse(self.run, threshold, method.warmup, method.cooldown, type(self).branch_state)

    def answer(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> tuple[Any, float]:
        """The output of a forward pass, and the share of it that was computed."""
        raise NotImplementedError  # pragma: no cover

    def forward(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        self.cache.begin()
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
        return list(self.cache.states.values())

    def held_bytes(self) -> int:
        """Their bytes."""
        return count_bytes(*self.held())

    def finish(self) -> None:
        if not self.report.engaged and not self.method.exact:
            reason = self.cache.too_short() or self.advice()
            self.warn(f"{type(self.method).__name__} reused nothing: {reason}")

    def advice(self) -> str:
        """Why nothing was reused in a long enough run, and what to try."""
        return self.cache.advice()

    def close(self) -> None:
        self.stack.close()
        self.cache.states.clear()
