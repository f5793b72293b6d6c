"""Skipping the blocks of a transformer while its modulated input has changed little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy
import torch

from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.method import Advice, is_number
from mmaccel.patching import wrap_forward
from mmaccel.registry import register
from mmaccel.stepping.reuse import StepReuse
from mmaccel.stepping.run import SamplerRun
from mmaccel.stepping.tensors import predicted, relative_change, tensors

from ..blocks.reuse import BlockStepper, Reuse, Streams, check_families
from ..families.adapter import DiffusionTransformerAdapter, PipelineSession
from ..families.compiled import refuse_compiled
from ..families.families import Family
from ..recording import plain_runs
from ..steps import Forward
from .step_cache import CacheStepper, StepCache

DEGREE = 4


@register("video")
@dataclass(frozen=True)
class TeaCache(StepCache):
    """All blocks are skipped while the first block's modulated input has changed little since they last ran.

    Every step's relative change of the input of the first self-attention, behind norm and time modulation, goes
    through a polynomial that estimates the change of the output, and adds up until `threshold`; then the blocks run.
    In between, the tokens get the blocks' residual of the last run. Works on every family whose blocks are known, from
    Wan to Flux. Lossy.

    Parameters
    ----------
    threshold
        Estimated relative change, added up, below which the blocks are skipped; 0 is exact. Default 0.1. With fitted
        coefficients of FLUX.1 the authors take 0.25 to 0.8.
    coefficients
        Polynomial from the input's change to the output's, highest power first, as from
        :func:`calibrate_tea_cache`; None (default) takes the input's change itself. Of the authors' those of FLUX.1,
        HunyuanVideo, LTX-Video and Mochi are for this input; those of Wan, SkyReels-V2, CogVideoX and ConsisID are for
        the change of the time embedding, and do not fit.
    warmup
        First steps that are always computed, at least 1; default 1, as in the authors' code.
    cooldown
        Last steps that are always computed; default 1, as in the authors' code.

    Raises
    ------
    SettingError
        If a setting is outside its range.
    UnsupportedTargetError
        If the transformer's family is not supported; lists those that are.

    Examples
    --------
    >>> TeaCache(coefficients=(2.0, 0.0)).rescaled(0.25)
    0.5
    """

    paper = "Timestep Embedding Tells: It's Time to Cache for Video Diffusion Model, 2025"
    advice: ClassVar[Advice] = Advice(
        "FLUX.1, HunyuanVideo, LTX-Video and Mochi with the authors' coefficients, and pipelines calibrated once.",
        "About as much as fewer steps, on the small model.",
        "threshold=0.2",
    )
    needs_all_tokens = True
    neutral = {"threshold": 0.0}
    engaging = {"threshold": 1e6, "warmup": 2}

    threshold: float = 0.1
    coefficients: tuple[float, ...] | None = None
    warmup: int = 1
    cooldown: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "None or the numbers of a polynomial, highest power first"
        self._check_list("coefficients", allowed, lambda c: is_number(c, float("-inf")), least=1)

    def rescaled(self, change: float) -> float:
        """The output's change that is estimated from a change of the modulated input; never below 0.

        Of none that is finite, as where the input has other tokens than before, there is nothing to estimate. An
        estimate below 0 counts by its size: a polynomial is far below 0 where it was not fitted, and a step is then
        computed rather than reused.
        """
        if self.coefficients is None or not math.isfinite(change):
            return change
        return abs(float(numpy.polyval(self.coefficients, change)))

    def check(self, adapter: DiffusionTransformerAdapter) -> None:
        super().check(adapter)
        for denoiser in adapter.denoisers():
            advice = "use video.EasyCache, or video.BlockCache if the blocks alone are compiled"
            refuse_compiled(self.name, advice, *denoiser.modules())
        for family, denoiser in check_families(adapter, self.name):
            if not family.attention:
                raise UnsupportedTargetError(
                    f"{self.name} watches the input of the first self-attention, and none is found in the blocks of"
                    f" {type(denoiser).__name__}: use video.BlockCache"
                )

    def stepper(self, session: PipelineSession, run: SamplerRun) -> CacheStepper:
        return _Stepper(session, run, self)


class _Stepper(BlockStepper):
    change = float("inf")  # of the modulated input since the last step

    def watch(self, denoiser: torch.nn.Module, family: Family) -> None:
        super().watch(denoiser, family)
        attention = getattr(family.block_list(denoiser)[0], family.attention)
        wrap_forward(self.stack, attention, self.look)

    def before(self, streams: Streams, family: Family) -> None:
        self.skips = not self.cache.leads and self.cache.skips

    def look(self, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        """The first block's self-attention: its input is the modulated one."""
        if self.cache.leads:
            modulated = next(tensors([kwargs.get("hidden_states"), *args, *kwargs.values()]))
            self.change = self.cache.accumulate([modulated], self.method.rescaled)
            if self.cache.reuse:
                raise Reuse
        return forward(*args, **kwargs)


class _Recorder(_Stepper):
    """A plain run that records the changes of modulated input and output in every step."""

    last_outputs: Any = None

    def make_cache(self) -> StepReuse:
        return StepReuse(self.run)  # whose threshold of 0 reuses nothing

    def answer(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> tuple[Any, float]:
        output, done = super().answer(denoiser, forward, args, kwargs)
        if self.cache.leads:
            outputs = [x.clone() for x in predicted(output)]
            if self.last_outputs is not None and self.change < float("inf"):
                changes = self.session.memory.setdefault("changes", [])
                changes.append((self.change, relative_change(outputs, self.last_outputs)))
            self.last_outputs = outputs
        return output, done

    def finish(self) -> None:
        """A calibration is not meant to reuse anything."""


def calibrate_tea_cache(
    pipe: Any, prompts: Sequence[str] | None = None, threshold: float = 0.1, **call: Any
) -> TeaCache:
    """Run a pipeline plainly and fit a :class:`TeaCache` to it: a quartic, by least squares over all steps.

    Parameters
    ----------
    pipe
        A pipeline of a supported family.
    prompts
        One run for each; None makes a single run with the arguments as they are, such as `prompt_embeds`.
    threshold
        Setting of the returned method.
    **call
        Further arguments of the pipeline's call, best those of later use: size, steps, guidance.

    Raises
    ------
    SettingError
        If there are too few steps to fit.

    Examples
    --------
    >>> method = calibrate_tea_cache(pipe, ["a fox in snow"], num_inference_steps=50)  # doctest: +SKIP
    """
    method = TeaCache(threshold)
    for memory in plain_runs(pipe, method, lambda session, run: _Recorder(session, run, method), prompts, call):
        changes = memory.get("changes", [])
    if len({x for x, _ in changes}) <= DEGREE:
        raise SettingError(
            f"{len(changes)} changes between steps do not determine a polynomial of degree {DEGREE}:"
            " take more steps or more prompts"
        )
    inputs, outputs = numpy.array(changes).T
    return replace(method, coefficients=tuple(float(c) for c in numpy.polyfit(inputs, outputs, DEGREE)))
