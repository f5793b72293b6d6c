"""Caches of other packages as rivals: cache-dit's, and SeaCache as diffusers has it.

Each is a context manager of a pipeline that gives what runs in its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from diffusers import WanPipeline

from mmaccel.bench.benchmark import Row
from mmaccel.comparison import results


def missing_row(package: str, **columns: Any) -> Row:
    """What a rival has whose package is not installed."""
    return results.row(modality="video", exact=False, seeds=[], label=f"{package} is not installed", **columns)


@contextmanager
def sea_cache(threshold: float, pipe: Any, longest: int = 2) -> Iterator[Any]:
    """SeaCache (2026) as diffusers has it, which reuses at most `longest` steps in a row."""
    from diffusers import SeaCacheConfig

    modules = list(pipe.transformer.modules())
    before = [set(vars(module)) for module in modules]
    pipe.transformer.enable_cache(SeaCacheConfig(threshold=threshold, max_consecutive_cached=longest))
    try:
        yield pipe
    finally:
        pipe.transformer.disable_cache()
        for module, names in zip(modules, before, strict=True):  # which leaves its wrappers on every module
            for name in vars(module).keys() - names:
                delattr(module, name)


@contextmanager
def cache_dit(pipe: Any, forecast: Any = None, **settings: Any) -> Iterator[Any]:
    """DBCache of cache-dit, with one of its calibrators or without, and further settings of its configuration."""
    import cache_dit as package

    config = package.DBCacheConfig(Fn_compute_blocks=1, Bn_compute_blocks=0, **settings)
    # It knows pipelines by the names of their classes, and replaces the call of the class: this one is thrown away.
    bare = sharing(type("WanPipeline", (WanPipeline,), {}), pipe)
    package.enable_cache(bare, cache_config=config, calibrator_config=forecast)
    _in_one_process(bare._context_manager)
    given = inspect.signature(type(pipe).__call__).parameters.values()
    sizes = {p.name: p.default for p in given if isinstance(p.default, int | float)}
    try:
        yield lambda *args, **kwargs: bare(*args, **{**sizes, **kwargs})
    finally:
        package.disable_cache(bare)


def _in_one_process(manager: Any) -> None:
    """Processes that share a benchmark have a transformer each, which cache-dit takes for one that is split."""
    can_cache = manager.can_cache
    manager.can_cache = lambda *args, **kwargs: can_cache(*args, **{**kwargs, "parallelized": False})


def dynamic(threshold: float, pipe: Any, forecast: Any = None) -> Any:
    """DBCache as its own measure of change decides, after four full steps."""
    return cache_dit(pipe, forecast, residual_diff_threshold=threshold, max_warmup_steps=4)


def masked(computed: Sequence[float], pipe: Any, forecast: Any = None, **settings: Any) -> Any:
    """DBCache with fixed full steps; the first block is computed in every step all the same."""
    fixed = {"steps_computation_mask": [int(share == 1) for share in computed], "steps_computation_policy": "static"}
    return cache_dit(pipe, forecast, **fixed, max_warmup_steps=1, **settings)


def taylor() -> Any:
    """cache-dit's TaylorSeer calibrator of order 1."""
    import cache_dit as package

    return package.TaylorSeerCalibratorConfig(taylorseer_order=1)


def modes() -> Any:
    """cache-dit's calibrator by dynamic mode decomposition."""
    import cache_dit as package

    return package.DMDCalibratorConfig()


def sharing(cls: Any, pipe: Any, **components: Any) -> Any:
    """A pipeline of a class with the components of another, some of them replaced."""
    made = cls(**{**pipe.components, **components})
    made.set_progress_bar_config(disable=True)
    return made


@contextmanager
def deep_cache(pipe: Any, interval: int) -> Iterator[Any]:
    """DeepCache (Ma and others, 2024) by its authors: most layers of a UNet run only every so many steps."""
    from DeepCache import DeepCacheSDHelper

    helper = DeepCacheSDHelper(pipe=pipe)
    helper.set_params(cache_interval=interval, cache_branch_id=0)
    parts = [pipe.unet, *pipe.unet.modules()]
    helper.enable()
    try:
        yield pipe
    finally:
        helper.disable()
        for part in parts:  # which leaves a bound method on each part that it wrapped
            vars(part).pop("forward", None)
