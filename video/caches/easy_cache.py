"""Skipping whole steps where the transformer's output is predicted to change little."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from mmaccel.registry import register
from mmaccel.session import Session
from mmaccel.stepping.tensors import map_tensors, mean_change, mean_size, plus, tensors

from ..families.families import latents_of
from ..steps import Forward, follow
from .step_cache import CacheStepper, StepCache


@register("video")
@dataclass(frozen=True)
class EasyCache(StepCache):
    """Whole steps reuse what the transformer last added to its input, while its predicted change stays small.

    No calibration: the ratio of output change to input change is measured online in the last two computed steps, and
    with it every step's input change predicts the output change. Predictions add up until `threshold`; then a step is
    computed. Works on every pipeline with a transformer, and with guidance in one pass or two. Lossy.

    Parameters
    ----------
    threshold
        Predicted relative change of the output, added up since the last computed step, below which a step is reused;
        0 is exact. Default 0.05, as in the paper.
    warmup
        First steps that are always computed, at least 1; default 5. The ratio is known after two.
    cooldown
        Last steps that are always computed; default 1.

    Raises
    ------
    SettingError
        If a setting is outside its range.
    UnsupportedTargetError
        If the target is a transformer without its pipeline.

    Examples
    --------
    >>> str(EasyCache(threshold=0.1))
    'video.EasyCache(threshold=0.1)'
    """

    paper = "Less is Enough: Training-Free Video Diffusion Acceleration via Runtime-Adaptive Caching, 2025"
    neutral = {"threshold": 0.0}
    engaging = {"threshold": 1e6, "warmup": 2}

    threshold: float = 0.05
    warmup: int = 5
    cooldown: int = 1

    def attach(self, session: Session, stack: ExitStack) -> None:
        follow(session, stack, lambda run: _Stepper(session, run, self))


@dataclass
class _Branch:
    """What one guidance branch remembers; all but `residual` only in the branch that decides."""

    step: int = -1
    residual: Any = None  # output minus input
    seen: list[torch.Tensor] = field(default_factory=list)  # the input of the last step
    inputs: list[torch.Tensor] = field(default_factory=list)  # and of the last computed one
    outputs: list[torch.Tensor] = field(default_factory=list)
    ratio: float | None = None
    error: float = 0.0


class _Stepper(CacheStepper):
    branch_state = _Branch

    def answer(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> tuple[Any, float]:
        inputs = latents_of(denoiser, args, kwargs)
        if self.leads:
            self.reuse = self._decide(inputs)
        if self.reuse and self.may_reuse:
            bases = iter(inputs)
            return map_tensors(lambda residual: plus(residual, next(bases, None)), self.state.residual), 0.0
        output = forward(*args, **kwargs)
        self._remember(inputs, output)
        return output, 1.0

    def _decide(self, inputs: list[torch.Tensor]) -> bool:
        """Add up the predicted change of this step."""
        state = self.state
        seen, state.seen = state.seen, [x.clone() for x in inputs]
        if not self.may_reuse or state.ratio is None:
            return False
        state.error += state.ratio * mean_change(inputs, seen) / max(mean_size(state.outputs), 1e-12)
        return self.small(state.error)

    def _remember(self, inputs: list[torch.Tensor], output: Any) -> None:
        state, bases = self.state, iter(inputs)
        state.residual = map_tensors(lambda x: plus(x, next(bases, None), -1), output)
        state.step, state.error = self.run.step, 0.0
        if self.leads:
            outputs = [x.clone() for x in tensors(output)]
            if state.outputs:
                moved = mean_change(inputs, state.inputs)
                state.ratio = mean_change(outputs, state.outputs) / moved if moved > 0 else None
            state.inputs, state.outputs = state.seen, outputs
