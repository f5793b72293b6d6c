"""diffusers' TaylorSeer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_count
from mmaccel.registry import register

from ..families.families import family_of
from .diffusers_cache import UNFOUND, DiffusersCache, HookStepper


@register("video")
@dataclass(frozen=True)
class TaylorSeer(DiffusersCache):
    """diffusers' TaylorSeer: between computed steps, the output of every attention is extrapolated from earlier ones.

    diffusers' own list of modules misses attention named `attn1` or `attn2`, as in Wan, LTX and CogVideoX; here the
    family's blocks are searched. Forecasts are kept in the model's precision. Lossy.

    Parameters
    ----------
    interval
        Distance between computed steps; 1 is exact. Default 5, as in diffusers.
    order
        Order of the expansion; 0 reuses as it is. Default 1, as in diffusers.
    warmup
        First steps that are always computed; default 3, as in diffusers, and at least `order + 1`.
    cooldown
        Last steps that are always computed; default 1.

    Raises
    ------
    SettingError
        If a setting is outside its range.
    UnsupportedTargetError
        If the transformer's family is not known.
    ConflictError
        If a cache of diffusers' own is enabled already.

    Examples
    --------
    >>> str(TaylorSeer(interval=4, order=2))
    'video.TaylorSeer(interval=4, order=2)'
    """

    paper = "From Reusing to Forecasting: Accelerating Diffusion Models with TaylorSeers, 2025"
    advice: ClassVar[Advice] = Advice(
        "Short intervals on models whose attention moves smoothly from step to step.",
        "At long intervals its extrapolation goes astray; twice the memory of other caches.",
        "interval=2, warmup=2",
    )
    advised = "video.BlockCache"
    neutral = {"interval": 1}
    engaging = {"interval": 3, "warmup": 2}

    interval: int = 5
    order: int = 1
    warmup: int = 3
    cooldown: int = 1

    def __post_init__(self) -> None:
        self._check_steps()
        self._require(is_count(self.interval), "interval", "an integer of at least 1")
        self._require(is_count(self.order, 0, 4), "order", "an integer from 0 to 4")
        self._require(self.warmup > self.order, "warmup", f"at least order + 1, that is {self.order + 1}")

    @property
    def lead(self) -> int:
        return self.order + 1

    def lacks(self, denoiser: torch.nn.Module) -> str:
        return (
            "" if any(re.fullmatch(self._places(denoiser), name) for name, _ in denoiser.named_modules()) else UNFOUND
        )

    def _places(self, denoiser: torch.nn.Module) -> str:
        """Names of the attention modules, as a regular expression."""
        names = "|".join(family_of(denoiser, self.name).structure.blocks)
        return rf"({names})\.\d+\.\w*att(n|ention)\d?"  # and not `attention_norm`

    def put_on(self, denoiser: torch.nn.Module, stepper: HookStepper) -> None:
        from diffusers.hooks.taylorseer_cache import TaylorSeerCacheConfig, apply_taylorseer_cache

        precision: Any = denoiser.dtype  # in which it computes: parameters may be kept in bytes, or in float32
        config = TaylorSeerCacheConfig(
            cache_interval=self.interval,
            disable_cache_before_step=self.lead,
            max_order=self.order,
            taylor_factors_dtype=precision,
            cache_identifiers=[self._places(denoiser)],
        )
        apply_taylorseer_cache(denoiser, config)
