"""The rivals of the video benchmark: methods of other papers as mmaccel has them, and other packages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from mmaccel import zoo
from mmaccel.stepping.schedule import default_schedule

from ..blocks.block_cache import BlockCache
from ..caches.easy_cache import EasyCache
from ..caches.first_block_cache import FirstBlockCache
from ..caches.taylor_seer import TaylorSeer
from ..caches.tea_cache import calibrate_tea_cache
from . import packages
from .cases import MODEL, VideoCase
from .sampling import Sampling
from .spectrum import spectrum

GROWTH = {0.5: 0.1, 0.25: 3.0}  # of Spectrum's distance between full steps, which comes to these shares of the steps
SEA = 0.25  # diffusers' own threshold
SEA_CACHE, SEA_CACHE_MODULE = "SeaCache of diffusers", "diffusers.hooks.sea_cache"


def rivals(pipe: Any, sampling: Sampling, budget: float) -> Iterator[VideoCase]:
    """All of them for a budget."""
    yield VideoCase("EasyCache", "rival", lambda x: EasyCache(threshold=x), 1e-3, 3.0)
    tea = calibrate_tea_cache(pipe, zoo.prompts(MODEL, 1, seed=901), num_inference_steps=sampling.steps)
    yield VideoCase("TeaCache", "rival", lambda x: type(tea)(threshold=x, coefficients=tea.coefficients), 1e-3, 10.0)
    yield VideoCase("BlockCache", "rival", lambda x: BlockCache(threshold=x), 1e-3, 3.0)
    yield VideoCase("FirstBlockCache", "rival", lambda x: FirstBlockCache(threshold=x), 1e-3, 3.0)
    yield VideoCase("TaylorSeer", "rival", lambda x: TaylorSeer(interval=max(1, round(x))), 1.0, 10.0)
    yield sea_cache(round(1 / budget))
    yield from (_dynamic(name, forecast) for name, forecast in FORECASTS.items())
    yield from (masked(sampling, budget, name) for name in FORECASTS if name)
    yield spectral(budget)


# Calibrators of cache-dit by name.
FORECASTS: dict[str, Callable[[], Any]] = {"": lambda: None, "TaylorSeer": packages.taylor, "DMD": packages.modes}


def sea_cache(longest: int) -> VideoCase:
    """SeaCache, tuned to the time, with so many reused steps in a row at most."""
    return VideoCase(SEA_CACHE, "rival", lambda x: _sea_cache(x, longest), 1e-2, 3.0, package=SEA_CACHE_MODULE)


def sea_cache_as_it_comes() -> VideoCase:
    """SeaCache with diffusers' settings, whatever time it takes."""
    told = f"threshold {SEA:g}"
    return VideoCase(SEA_CACHE, "rival", lambda _: _sea_cache(SEA), told=told, package=SEA_CACHE_MODULE)


def _sea_cache(threshold: float, longest: int = 2) -> Callable[[Any], Any]:
    return functools.partial(packages.sea_cache, threshold, longest=longest)


def masked(sampling: Sampling, budget: float, calibrator: str) -> VideoCase:
    """cache-dit with our full steps, of which it computes the first block in the others too."""

    def setup(pipe: Any) -> Any:
        separate = sampling.guidance > 1
        return packages.masked(computed, pipe, FORECASTS[calibrator](), enable_separate_cfg=separate)

    computed = our_steps(sampling, budget)
    told = f"{computed.count(1.0)} full steps"
    return VideoCase(f"cache-dit, our steps, {calibrator}", "rival", lambda _: setup, told=told, package="cache_dit")


def our_steps(sampling: Sampling, budget: float) -> tuple[float, ...]:
    """What `HeterogeneousSteps` computes of each step."""
    return default_schedule(sampling.steps, budget).fractions


def spectral(budget: float) -> VideoCase:
    """Spectrum, whose full steps come to about the budget."""
    growth = GROWTH[budget]
    told = f"window grows by {growth:g}"
    return VideoCase("Spectrum", "rival", lambda _: functools.partial(spectrum, growth), told=told)


def _dynamic(name: str, forecast: Callable[[], Any]) -> VideoCase:
    def setup(threshold: float) -> Callable[[Any], Any]:
        return lambda pipe: packages.dynamic(threshold, pipe, forecast())

    label = f"cache-dit, {name}" if name else "cache-dit"
    return VideoCase(label, "rival", setup, 1e-3, 3.0, package="cache_dit")
