"""Who runs in the video benchmark: our methods, their parts left out, the simple alternative and the rivals."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import WanPipeline

from mmaccel import zoo
from mmaccel.method import Method
from mmaccel.session import accelerate

from ..blocks.block_cache import BlockCache
from ..caches.easy_cache import EasyCache
from ..caches.first_block_cache import FirstBlockCache
from ..caches.taylor_seer import TaylorSeer
from ..caches.tea_cache import calibrate_tea_cache
from ..heterogeneous.heterogeneous_steps import HeterogeneousSteps
from ..heterogeneous.partial import PartialForward
from ..heterogeneous.step_solver import calibrate_steps

# Partial steps of a twentieth of the tokens cost a fifth of a full step here: with a full step every so many steps they
# fit in the budget.
INTERVALS = {0.5: 3, 0.25: 40}


@dataclass(frozen=True)
class Contestant:
    """One line of the benchmark.

    Attributes
    ----------
    label
        As in the table.
    kind
        ``"ours"``, ``"part"`` (ours with something left out), ``"simple"`` or ``"rival"``.
    make
        The setup at a setting: a method, a number of steps, or a function of the pipeline that gives a context
        manager.
    low, high
        Settings between which it is tuned to the time, the higher the faster; equal where it keeps a budget itself.
    """

    label: str
    kind: str
    make: Callable[[float], Any]
    low: float = 1.0
    high: float = 1.0

    def describe(self, setup: Any) -> str:
        """What was tuned, in short."""
        if isinstance(setup, int):
            return f"{setup} steps"
        if not isinstance(setup, Method):
            return ""
        settings = {k: v for k, v in setup.settings().items() if k in ("threshold", "interval", "fraction") and v}
        return ", ".join(f"{k} {v:.3g}" for k, v in settings.items())


def contestants(studio: Any, budget: float) -> list[Contestant]:
    """All of them for a budget."""
    return [*_ours(budget), _calibrated(studio, budget), *_simple(studio.steps, budget), *_rivals(studio)]


def _ours(budget: float) -> Iterator[Contestant]:
    def fixed(label: str, kind: str, **settings: Any) -> Contestant:
        return Contestant(label, kind, lambda _: HeterogeneousSteps(budget, **settings))

    yield fixed("HeterogeneousSteps", "ours")
    yield fixed("without forecast", "part", fraction=0.0, forecast=0.0)
    yield fixed("whole forecast", "part", fraction=0.0, forecast=1.0)
    yield fixed("without correction", "part", fraction=0.0, correct=False)
    yield fixed("cached velocity", "part", fraction=0.0, forecast=0.0, correct=False)
    yield fixed("hottest tokens", "part", **_partial(budget))
    yield fixed("random tokens", "part", **_partial(budget), tokens="random")
    yield Contestant("hottest tokens, fresh keys", "part", lambda _: _fresh_keys(budget))
    yield fixed("groups", "part", policy="groups")


def _partial(budget: float) -> dict[str, Any]:
    return {"fraction": 0.05, "interval": INTERVALS[budget]}


def _calibrated(studio: Any, budget: float) -> Contestant:
    """The best choice of steps for the plain velocities of two prompts."""
    prompts = zoo.prompts(studio.model, 2, seed=902)
    method = calibrate_steps(studio.pipe, prompts, budget, num_inference_steps=studio.steps)
    return Contestant("calibrated steps", "part", lambda _: method)


def _fresh_keys(budget: float) -> Any:
    """Partial steps that compute all keys and values, which costs as much as a full step: only for its quality."""

    @contextmanager
    def setup(pipe: Any) -> Iterator[Any]:
        def whole(self: PartialForward, tokens: torch.Tensor, *rest: Any) -> Any:
            return self.keeping(*rest)

        only = PartialForward.only
        PartialForward.only = whole  # type: ignore[assignment]
        try:
            with accelerate(pipe, HeterogeneousSteps(budget, **_partial(budget))) as session:
                yield session
        finally:
            PartialForward.only = only  # type: ignore[method-assign]

    return setup


def _simple(steps: int, budget: float) -> Iterator[Contestant]:
    yield Contestant("fewer steps", "simple", lambda _: round(steps * budget))


def _rivals(studio: Any) -> Iterator[Contestant]:
    yield Contestant("EasyCache", "rival", lambda x: EasyCache(threshold=x), 1e-3, 3.0)
    tea = calibrate_tea_cache(studio.pipe, zoo.prompts(studio.model, 1, seed=901), num_inference_steps=studio.steps)
    yield Contestant("TeaCache", "rival", lambda x: type(tea)(threshold=x, coefficients=tea.coefficients), 1e-3, 10.0)
    yield Contestant("BlockCache", "rival", lambda x: BlockCache(threshold=x), 1e-3, 3.0)
    yield Contestant("FirstBlockCache", "rival", lambda x: FirstBlockCache(threshold=x), 1e-3, 3.0)
    yield Contestant("TaylorSeer", "rival", lambda x: TaylorSeer(interval=max(1, round(x))), 1.0, 10.0)
    if importlib.util.find_spec("cache_dit") is not None:
        yield Contestant("cache-dit", "rival", _cache_dit, 1e-3, 3.0)
        forecast = functools.partial(_cache_dit, order=1)
        yield Contestant("cache-dit, TaylorSeer", "rival", forecast, 1e-3, 3.0)


def _cache_dit(threshold: float, order: int = 0) -> Any:
    """The package's own cache, which forecasts with TaylorSeer where `order` is not 0."""

    @contextmanager
    def setup(pipe: Any) -> Iterator[Any]:
        import cache_dit

        config = cache_dit.DBCacheConfig(
            Fn_compute_blocks=1, Bn_compute_blocks=0, max_warmup_steps=4, residual_diff_threshold=threshold
        )
        plain: Any = WanPipeline(**pipe.components)  # it knows pipelines by the names of their classes
        plain.set_progress_bar_config(disable=True)
        given = inspect.signature(type(pipe).__call__).parameters.values()
        sizes = {p.name: p.default for p in given if isinstance(p.default, int | float)}
        before = WanPipeline.__call__
        forecast = cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=order) if order else None
        cache_dit.enable_cache(plain, cache_config=config, calibrator_config=forecast)
        try:
            yield functools.partial(plain, **sizes)
        finally:
            cache_dit.disable_cache(plain)
            WanPipeline.__call__ = before  # type: ignore[method-assign]  # it replaces that of the class

    return setup
