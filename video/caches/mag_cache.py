"""diffusers' MagCache, with ratios that it measures itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.errors import SettingError
from mmaccel.method import Advice, is_count, is_number
from mmaccel.registry import register
from mmaccel.stepping.ratios import growth, stretched
from mmaccel.stepping.run import SamplerRun

from ..blocks.reuse import BlockStepper, Streams
from ..families.adapter import PipelineSession
from ..private import Hooks
from ..recording import plain_runs
from ..steps import Forward
from .diffusers_cache import DiffusersCache, HookStepper
from .first_block_cache import ALTERNATING, CONTROLLED, NOT_HIDDEN_STATES
from .step_cache import CacheStepper


@register("video")
@dataclass(frozen=True)
class MagCache(DiffusersCache):
    """diffusers' MagCache: all blocks are reused while the known growth of what they add has changed little in sum.

    What the blocks add to the tokens grows or shrinks from step to step by ratios that hardly depend on the prompt.
    They are measured once, by :func:`calibrate_mag_cache` or in the session's first run of enough steps, which is then
    a plain one, and stretched to the steps of other runs. Lossy.

    Parameters
    ----------
    threshold
        Error of the ratios, added up, up to which blocks are reused; 0 is exact. Default 0.06, as in diffusers.
    ratios
        One per step, the first 1; None (default) measures them in the first run.
    max_skips
        Most reused steps in a row; default 3, as in diffusers.
    warmup
        First steps that are always computed, at least 1; default 5. diffusers takes a fifth of the run.
    cooldown
        Last steps that are always computed; default 0.

    Raises
    ------
    SettingError
        If a setting is outside its range.
    UnsupportedTargetError
        If the transformer's family is not known, diffusers' hooks do not work on it, or a ControlNet is given.
    ConflictError
        If a cache of diffusers' own is enabled already.

    Examples
    --------
    >>> str(MagCache(threshold=0.12, max_skips=2))
    'video.MagCache(threshold=0.12, max_skips=2)'
    """

    paper = "MagCache: Fast Video Generation with Magnitude-Aware Cache, 2025"
    advice: ClassVar[Advice] = Advice(
        "Pipelines that are run often with the same number of steps: the first run measures its ratios.",
        "The first run is a plain one, unless ratios are given.",
    )
    needs_all_tokens = True
    neutral = {"threshold": 0.0}
    engaging = {"ratios": (1.0, 1.01), "warmup": 2}
    skips_blocks = True
    advised = "video.BlockCache"
    unfit = {
        "ZImageTransformer2DModel": NOT_HIDDEN_STATES,
        "Cosmos3OmniTransformer": NOT_HIDDEN_STATES,
        "LatteTransformer3DModel": ALTERNATING,
        "WanVACETransformer3DModel": CONTROLLED,
    }

    threshold: float = 0.06
    ratios: tuple[float, ...] | None = None
    max_skips: int = 3
    warmup: int = 5
    cooldown: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_list("ratios", "None or at least two numbers of at least 0", lambda r: is_number(r, 0), least=2)
        self._require(is_count(self.max_skips), "max_skips", "an integer of at least 1")

    @property
    def measures_first(self) -> bool:
        return self.ratios is None and not self.exact

    def stepper(self, session: PipelineSession, run: SamplerRun) -> CacheStepper:
        known = self.exact or self.ratios is not None or self.name in session.memory
        return super().stepper(session, run) if known else Recorder(session, run, self)

    def put_on(self, denoiser: torch.nn.Module, stepper: HookStepper) -> None:
        from diffusers.hooks.mag_cache import MagCacheConfig, apply_mag_cache

        known = stepper.session.memory.get(self.name) or self.ratios or (1.0,)
        ratios = stretched(known, stepper.run.steps) + [1.0]
        config = MagCacheConfig(
            threshold=self.threshold,
            max_skip_steps=self.max_skips,
            retention_ratio=0.0,  # the warm-up is ours
            num_inference_steps=len(ratios),  # one more than can come: there the hook would start over
            mag_ratios=ratios,
        )
        apply_mag_cache(denoiser, config)

    def at_step(self, hooks: Hooks, step: int) -> None:
        for state in hooks.current():  # a branch may begin late, or pause, and the hooks count its own passes
            state.step_index = step


class Recorder(BlockStepper):
    """A plain run that measures the ratios."""

    def __init__(self, session: PipelineSession, run: SamplerRun, method: Any) -> None:
        self.ratios = [1.0] * run.steps
        super().__init__(session, run, method)

    def answer(self, denoiser: torch.nn.Module, forward: Forward, args: Any, kwargs: Any) -> tuple[Any, float]:
        self.method.check_pass(denoiser, args, kwargs)  # before a run for nothing
        return super().answer(denoiser, forward, args, kwargs)

    def remember(self, streams: Streams) -> None:
        old = self.cache.state.residual
        super().remember(streams)
        if self.cache.leads and old is not None:
            new = self.cache.state.residual
            hidden = next(name for name in ("hidden_states", *new) if name in new)
            self.ratios[self.run.step] = growth(old[hidden], new[hidden])

    def finish(self) -> None:
        if self.run.step < self.run.steps - 1:  # some pipelines leave out the sampler's last step
            self.warn(f"MagCache measured no ratios: the run ended after {self.run.step} of {self.run.steps} steps")
            return
        if short := self.cache.too_short():  # as the first call that only warms a server up
            self.warn(f"MagCache measured no ratios: {short}, or let a longer run measure them")
            return
        first = self.cache.first_step or 0
        if first:  # of steps that image-to-image leaves out nothing is known: with 0 they are computed in other runs
            self.ratios[: first + 1] = [0.0] * (first + 1)
        self.session.memory[self.method.name] = tuple(self.ratios)
        self.warn("MagCache measured its ratios in this run and reused nothing; the next runs will")


def calibrate_mag_cache(
    pipe: Any, prompts: Sequence[str] | None = None, threshold: float = 0.06, **call: Any
) -> MagCache:
    """Run a pipeline plainly and return a :class:`MagCache` with the ratios that were measured.

    Parameters
    ----------
    pipe
        A pipeline of a supported family.
    prompts
        One run for each, of which the mean is taken; None makes a single run with the arguments as they are.
    threshold
        Setting of the returned method.
    **call
        Further arguments of the pipeline's call, best those of later use.

    Raises
    ------
    SettingError
        If a run has fewer than 2 steps, or ends early.

    Examples
    --------
    >>> method = calibrate_mag_cache(pipe, ["a fox in snow"], num_inference_steps=50)  # doctest: +SKIP
    """
    method = MagCache(threshold, warmup=1)  # so that all runs are long enough in which a step could be reused
    runs = [
        memory.pop(method.name, None)
        for memory in plain_runs(pipe, method, lambda session, run: Recorder(session, run, method), prompts, call)
    ]
    if None in runs:
        raise SettingError("a run had fewer than 2 steps or ended early, and gives no ratios: take more steps")
    return MagCache(threshold, tuple(sum(step) / len(runs) for step in zip(*runs, strict=True)))
