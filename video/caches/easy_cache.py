"""Skipping whole steps where the transformer's output is predicted to change little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice
from mmaccel.registry import register
from mmaccel.stepping.easy_reuse import EasyReuse
from mmaccel.stepping.run import SamplerRun
from mmaccel.stepping.tensors import predicted

from ..families.adapter import WHOLE_STEPS, PipelineSession
from ..families.families import latents_of
from ..steps import Forward
from .step_cache import CacheStepper, StepCache


@register("video")
@dataclass(frozen=True)
class EasyCache(StepCache):
    """Whole steps reuse the output of the last computed one, while its predicted change stays small.

    It needs no calibration: the ratio of output change to input change is measured in the last two computed steps, and
    predicts the output change from every step's input change. Predictions add up until `threshold`; then a step is
    computed. Works on every pipeline with a transformer or UNet, and with guidance in one pass or two. The paper adds
    the input's change to a reused output; measured, that is further from the plain output, of a flow and of noise.
    Lossy.

    Parameters
    ----------
    threshold
        Predicted relative change of the output, added up since the last computed step, below which a step is reused;
        0 is exact. Default 0.05, as in the paper.
    warmup
        First steps that are always computed, at least 1; default 5. The ratio is known after two steps.
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
    advice: ClassVar[Advice] = Advice(
        "Any diffusion pipeline, without calibration: at a quarter of the time it kept most of the step caches on the"
        " mean; at half of it SeaCache of diffusers kept more.",
        "Little at half the time; at a quarter the worst prompt can become another clip.",
    )
    families = WHOLE_STEPS
    neutral = {"threshold": 0.0}
    engaging = {"threshold": 1e6, "warmup": 2}

    threshold: float = 0.05
    warmup: int = 5
    cooldown: int = 1

    def stepper(self, session: PipelineSession, run: SamplerRun) -> CacheStepper:
        return _Stepper(session, run, self)


class _Stepper(CacheStepper):
    cache: EasyReuse

    def make_cache(self) -> EasyReuse:
        return EasyReuse(self.run, self.method.threshold, self.method.warmup, self.method.cooldown)

    def answer(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> tuple[Any, float]:
        return self.cache.answer(latents_of(denoiser, args, kwargs), lambda: forward(*args, **kwargs))

    def held(self) -> list[Any]:
        return [predicted(list(vars(state).values())) for state in super().held()]
