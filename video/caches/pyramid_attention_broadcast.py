"""diffusers' Pyramid Attention Broadcast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_count
from mmaccel.registry import register

from ..private import knows_attention
from .diffusers_cache import UNFOUND, DiffusersCache, HookStepper, check_range


@register("video")
@dataclass(frozen=True)
class PyramidAttentionBroadcast(DiffusersCache):
    """diffusers' Pyramid Attention Broadcast: outputs of attention are reused for a few steps in the middle of a run.

    diffusers keeps one output per module, which mixes the guidance branches of pipelines that run the transformer
    twice a step; here each branch has its own. Lossy.

    Parameters
    ----------
    spatial
        Distance between steps that compute self-attention; with 1 nothing is reused. Default 2, as in diffusers and the
        paper.
    temporal
        The same of attention over frames, in models with a separate one. Default 1, as in diffusers; the paper takes 4.
    cross
        The same of cross-attention. Default 1, as in diffusers; the paper takes 6.
    timesteps
        Timesteps between which outputs are reused, of 1000; default (100, 800), as in diffusers.
    warmup
        First steps that are always computed, at least 1; default 1.
    cooldown
        Last steps that are always computed; default 0.

    Raises
    ------
    SettingError
        If a setting is outside its range.
    UnsupportedTargetError
        If the transformer's family is not known, or diffusers' hooks do not work on it.
    ConflictError
        If a cache of diffusers' own is enabled already.

    Examples
    --------
    >>> str(PyramidAttentionBroadcast(cross=6))
    'video.PyramidAttentionBroadcast(cross=6)'
    """

    paper = "Real-Time Video Generation with Pyramid Attention Broadcast, 2024"
    advice: ClassVar[Advice] = Advice(
        "Long runs, whose attention changes little in the middle.",
        "Every layer's attention output is kept in memory.",
    )
    neutral = {"spatial": 1, "temporal": 1, "cross": 1}
    engaging = {"timesteps": (0, 1000)}

    spatial: int = 2
    temporal: int = 1
    cross: int = 1
    timesteps: tuple[float, float] = (100, 800)
    warmup: int = 1
    cooldown: int = 0

    def __post_init__(self) -> None:
        self._check_steps()
        for name in ("spatial", "temporal", "cross"):
            self._require(is_count(getattr(self, name)), name, "an integer of at least 1")
        check_range(self, "timesteps")

    def lacks(self, denoiser: torch.nn.Module) -> str:
        from diffusers.hooks.pyramid_attention_broadcast import PyramidAttentionBroadcastConfig as Config

        return "" if knows_attention(denoiser, Config.spatial_attention_block_identifiers) else UNFOUND

    def put_on(self, denoiser: torch.nn.Module, stepper: HookStepper) -> None:
        from diffusers.hooks.pyramid_attention_broadcast import (
            PyramidAttentionBroadcastConfig,
            apply_pyramid_attention_broadcast,
        )

        every = {"spatial": self.spatial, "temporal": self.temporal, "cross": self.cross}
        settings: dict[str, Any] = {f"{kind}_attention_block_skip_range": steps for kind, steps in every.items()}
        settings |= {f"{kind}_attention_timestep_skip_range": self.timesteps for kind in every}
        settings["current_timestep_callback"] = lambda: stepper.timestep
        apply_pyramid_attention_broadcast(denoiser, PyramidAttentionBroadcastConfig(**settings))
