"""EasyCache without a session: a hook of diffusers for one transformer."""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import torch
from diffusers.hooks.hooks import ModelHook

from mmaccel.errors import ConflictError, SettingError
from mmaccel.method import is_count
from mmaccel.stepping.branches import Branches
from mmaccel.stepping.easy_reuse import EasyReuse
from mmaccel.stepping.run import SamplerRun

from ..families.context_parallel import agreed
from ..families.families import arguments, latents_of, text_of
from ..steps import Forward
from .easy_cache import EasyCache

TIMESTEPS = ("timestep", "timesteps", "t")  # as `forward` calls it, most often the first; Z-Image's the last


class EasyCacheHook(ModelHook):
    """Whole steps of a transformer reuse the last computed output, as :class:`EasyCache` has them; lossy.

    For who wants no session: diffusers puts it on, and takes it off. It sees the transformer alone, so it is told how
    many steps a run has, and begins anew when the timestep turns back. There is no report, and it is put on anything.

    Parameters
    ----------
    steps
        Of a run, as `num_inference_steps`.
    threshold, warmup, cooldown
        As of :class:`EasyCache`.

    Attributes
    ----------
    computed
        For each pass of the run, two a step with guidance: whether the transformer ran.

    Raises
    ------
    SettingError
        If a setting is out of range; when the transformer runs, if its `forward` is not told the timestep.
    ConflictError
        When it is put on, if `enable_model_cpu_offload()` was called before, which takes it off again after one call.

    Examples
    --------
    >>> from diffusers.hooks import HookRegistry
    >>> registry = HookRegistry.check_if_exists_or_initialize(pipe.transformer)  # doctest: +SKIP
    >>> registry.register_hook(EasyCacheHook(steps=50, threshold=0.1), "easy_cache")  # doctest: +SKIP
    >>> frames = pipe("a fox in snow", num_inference_steps=50).frames  # doctest: +SKIP
    >>> registry.remove_hook("easy_cache")  # doctest: +SKIP
    """

    _is_stateful = True

    def __init__(self, steps: int, threshold: float = 0.05, warmup: int = 5, cooldown: int = 1) -> None:
        super().__init__()
        if not is_count(steps):
            raise SettingError(f"steps={steps!r}: it must be an integer of at least 1, as num_inference_steps")
        self.method = EasyCache(threshold=threshold, warmup=warmup, cooldown=cooldown)
        self.steps, self.computed = steps, list[bool]()
        self._begin()

    def initialize_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """Refuse a transformer that would lose this hook after one call."""
        from accelerate.hooks import CpuOffload

        if isinstance(getattr(module, "_hf_hook", None), CpuOffload):
            raise ConflictError(
                f"{type(module).__name__} is off-loaded by enable_model_cpu_offload(), which takes off after each call"
                " what was put on top of it: put EasyCacheHook on first, and off-load after it"
            )
        return module

    def new_forward(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The transformer's output, computed or from memory."""
        self._follow(arguments(module, args, kwargs), type(module).__name__)
        self.cache.agree = functools.partial(agreed, module)
        latents, forward = latents_of(module, args, kwargs), cast(Forward, self.fn_ref.original_forward)
        output, share = self.cache.answer(latents, lambda: forward(*args, **kwargs))
        self.computed.append(share > 0)
        return output

    def reset_state(self, module: torch.nn.Module) -> torch.nn.Module:
        """Forget the run, as diffusers asks for between calls."""
        self._begin()
        return module

    def _begin(self) -> None:
        method = self.method
        self.run, self.level, self.moved = SamplerRun(self.steps, []), math.nan, math.nan
        self.run.step, self.branches = -1, Branches()
        self.cache = EasyReuse(self.run, method.threshold, method.warmup, method.cooldown)

    def _follow(self, given: dict[str, Any], name: str) -> None:
        """Find out which step and branch a call with these arguments is of."""
        timestep, text = next((given[name] for name in TIMESTEPS if name in given), None), text_of(given)
        if timestep is None:
            raise SettingError(f"{name} is not told the timestep: use mmaccel.accelerate(pipe, video.EasyCache())")
        level = float(torch.as_tensor(timestep).float().mean())  # a first frame that is held has one of its own
        turns = (level - self.level) * self.moved < 0  # it rises in models that are told how much of a run is done
        if turns or self.run.step < 0 or self.steps == 1:  # a run of one step has one level
            self._begin()
            self.computed.clear()
        if level != self.level:
            self.moved, self.level = level - self.level, level
            self.run.step, self.run.branch = self.run.step + 1, -1
        self.run.branch = self.branches.next(0, text, is_first=self.run.branch < 0)
