"""Who runs in the video benchmark: our methods, their parts left out, the simple alternative and the rivals."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from diffusers import WanPipeline

from mmaccel import zoo
from mmaccel.comparison.entry import Entry
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

MODEL, STEPS = "tiny-wan", 40
BUDGETS = (0.5, 0.25)
# Partial steps of a twentieth of the tokens cost a fifth of a full step here: with a full step every so many steps they
# fit in the budget.
INTERVALS = {0.5: 3, 0.25: 40}
Setup = Any  # a method, a number of steps, or a function of the pipeline that gives a context manager


class MotionPrompt(NamedTuple):
    """A prompt with its seed, and how much moves in it."""

    seed: int
    prompt: str
    motion: str


def scenes(count: int) -> list[MotionPrompt]:
    """Half of the prompts with one thing that stays, half with two things that move."""
    still = zoo.prompts(MODEL, count // 2, seed=1, things=1, moving=0)
    lively = zoo.prompts(MODEL, count - count // 2, seed=2, things=2, moving=2)
    labelled = [*((prompt, "still") for prompt in still), *((prompt, "lively") for prompt in lively)]
    return [MotionPrompt(seed, prompt, motion) for seed, (prompt, motion) in enumerate(labelled)]


@dataclass(frozen=True)
class VideoCase:
    """One line of the benchmark.

    Attributes
    ----------
    label
        As in the table.
    kind
        ``"ours"``, ``"part"`` (ours with something left out), ``"simple"`` or ``"rival"``.
    make
        The setup at a setting.
    low, high
        Settings between which it is tuned to the time, the higher the faster; equal where it keeps a budget itself.
    """

    label: str
    kind: str
    make: Callable[[float], Setup]
    low: float = 1.0
    high: float = 1.0

    def entry(self, pipe: Any, setting: float) -> Entry:
        """Who runs at a setting; its row says what was tuned, in short."""
        setup = self.make(setting)
        if isinstance(setup, int):
            return Entry(self.label, self.kind, fewer=setup, columns={"label": f"{setup} steps"})
        if not isinstance(setup, Method):
            return Entry(self.label, self.kind, setup=setup, columns={"label": ""})
        told = {k: v for k, v in setup.settings().items() if k in ("threshold", "interval", "fraction") and v}
        made = Entry.of(pipe, setup, self.label, self.kind)
        made.columns["label"] = ", ".join(f"{k} {v:.3g}" for k, v in told.items())
        return made


def cases(pipe: Any, steps: int, budget: float) -> list[VideoCase]:
    """All of them for a budget."""
    simple = VideoCase("fewer steps", "simple", lambda _: round(steps * budget))
    return [*_ours(budget), _calibrated(pipe, steps, budget), simple, *_rivals(pipe, steps)]


def _ours(budget: float) -> Iterator[VideoCase]:
    def fixed(label: str, kind: str, **settings: Any) -> VideoCase:
        return VideoCase(label, kind, lambda _: HeterogeneousSteps(budget, **settings))

    yield fixed("HeterogeneousSteps", "ours")
    yield fixed("without forecast", "part", fraction=0.0, forecast=0.0)
    yield fixed("whole forecast", "part", fraction=0.0, forecast=1.0)
    yield fixed("without correction", "part", fraction=0.0, correct=False)
    yield fixed("cached velocity", "part", fraction=0.0, forecast=0.0, correct=False)
    partial: dict[str, Any] = {"fraction": 0.05, "interval": INTERVALS[budget]}
    yield fixed("hottest tokens", "part", **partial)
    yield fixed("random tokens", "part", **partial, tokens="random")
    yield VideoCase(
        "hottest tokens, fresh keys", "part", lambda _: lambda pipe: accelerate(pipe, FreshKeys(budget, **partial))
    )
    yield fixed("groups", "part", policy="groups")


def _calibrated(pipe: Any, steps: int, budget: float) -> VideoCase:
    """The best choice of steps for the plain velocities of two prompts."""
    method = calibrate_steps(pipe, zoo.prompts(MODEL, 2, seed=902), budget, num_inference_steps=steps)
    return VideoCase("calibrated steps", "part", lambda _: method)


class WholeForward(PartialForward):
    """Computes everything in what should be a partial pass."""

    def only(self, tokens: torch.Tensor, *rest: Any) -> Any:
        return self.keeping(*rest)


class FreshKeys(HeterogeneousSteps):
    """Partial steps that compute all keys and values, which costs as much as a full step: only for its quality."""

    forward: ClassVar[type[PartialForward]] = WholeForward


def _rivals(pipe: Any, steps: int) -> Iterator[VideoCase]:
    yield VideoCase("EasyCache", "rival", lambda x: EasyCache(threshold=x), 1e-3, 3.0)
    tea = calibrate_tea_cache(pipe, zoo.prompts(MODEL, 1, seed=901), num_inference_steps=steps)
    yield VideoCase("TeaCache", "rival", lambda x: type(tea)(threshold=x, coefficients=tea.coefficients), 1e-3, 10.0)
    yield VideoCase("BlockCache", "rival", lambda x: BlockCache(threshold=x), 1e-3, 3.0)
    yield VideoCase("FirstBlockCache", "rival", lambda x: FirstBlockCache(threshold=x), 1e-3, 3.0)
    yield VideoCase("TaylorSeer", "rival", lambda x: TaylorSeer(interval=max(1, round(x))), 1.0, 10.0)
    if importlib.util.find_spec("cache_dit") is not None:
        yield VideoCase("cache-dit", "rival", lambda x: functools.partial(_cache_dit, x), 1e-3, 3.0)
        forecast = functools.partial(_cache_dit, order=1)
        yield VideoCase("cache-dit, TaylorSeer", "rival", lambda x: functools.partial(forecast, x), 1e-3, 3.0)


@contextmanager
def _cache_dit(threshold: float, pipe: Any, order: int = 0) -> Iterator[Any]:
    """The package's own cache, which forecasts with TaylorSeer where `order` is not 0."""
    import cache_dit

    config = cache_dit.DBCacheConfig(
        Fn_compute_blocks=1, Bn_compute_blocks=0, max_warmup_steps=4, residual_diff_threshold=threshold
    )
    # It knows pipelines by the names of their classes, and replaces the call of the class: this one is thrown away.
    plain: Any = type("WanPipeline", (WanPipeline,), {})(**pipe.components)
    plain.set_progress_bar_config(disable=True)
    given = inspect.signature(type(pipe).__call__).parameters.values()
    sizes = {p.name: p.default for p in given if isinstance(p.default, int | float)}
    forecast = cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=order) if order else None
    cache_dit.enable_cache(plain, cache_config=config, calibrator_config=forecast)
    try:
        yield functools.partial(plain, **sizes)
    finally:
        cache_dit.disable_cache(plain)
