"""diffusers' FasterCache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_count, is_number
from mmaccel.registry import register

from ..families.families import family_of
from ..private import knows_attention
from .diffusers_cache import UNFOUND, DiffusersCache, HookStepper, check_range

OUTSIDE = 1e9  # no timestep: the hooks compute


@register("video")
@dataclass(frozen=True)
class FasterCache(DiffusersCache):
    """diffusers' FasterCache: attention is extrapolated in every other step, and the second guidance branch estimated.

    The second branch is estimated from the first by its frequencies where the pipeline batches both and the hook knows
    the latents' layout, that is in CogVideoX; elsewhere only attention is extrapolated, separately for each branch
    (diffusers' hook would mistake halves of a batch for guidance branches). Lossy.

    Parameters
    ----------
    spatial
        Self-attention is computed every so many steps; 1 is never reused. Default 2, as in diffusers.
    unconditional
        Distance between steps that compute the second branch; default 5, as in diffusers.
    weight
        Share of the last change that is added to the last output; default 0.5, as in diffusers.
    timesteps
        Timesteps between which attention is extrapolated; default (-1, 681), as in diffusers. The second branch has
        diffusers' own range, (-1, 641).
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
    >>> str(FasterCache(weight=0.3))
    'video.FasterCache(weight=0.3)'
    """

    paper = "FasterCache: Training-Free Video Diffusion Model Acceleration with High Quality, 2024"
    advice: ClassVar[Advice] = Advice(
        "CogVideoX, where it estimates the second guidance branch too; elsewhere attention alone.",
        "Attention outputs of two past steps are kept in memory.",
    )
    neutral = {"spatial": 1, "unconditional": 1}
    engaging = {"timesteps": (-1, 1000)}

    spatial: int = 2
    unconditional: int = 5
    weight: float = 0.5
    timesteps: tuple[float, float] = (-1, 681)
    warmup: int = 1
    cooldown: int = 0

    def __post_init__(self) -> None:
        self._check_steps()
        self._require(is_count(self.spatial), "spatial", "an integer of at least 1")
        self._require(is_count(self.unconditional), "unconditional", "an integer of at least 1")
        self._require(is_number(self.weight, 0, 1), "weight", "a number from 0 to 1")
        check_range(self, "timesteps")

    def lacks(self, denoiser: torch.nn.Module) -> str:
        from diffusers.hooks.faster_cache import FasterCacheConfig

        return "" if knows_attention(denoiser, FasterCacheConfig.spatial_attention_block_identifiers) else UNFOUND

    def put_on(self, denoiser: torch.nn.Module, stepper: HookStepper) -> None:
        from diffusers.hooks.faster_cache import FasterCacheConfig, apply_faster_cache

        layout = family_of(denoiser, self.name).layout
        batched = layout and _guides(stepper.session.target)
        settings: dict[str, Any] = {
            "spatial_attention_block_skip_range": self.spatial,
            "spatial_attention_timestep_skip_range": self.timesteps,
            "unconditional_batch_skip_range": self.unconditional,
            "attention_weight_callback": lambda _: self.weight,
            "tensor_format": layout or "BCFHW",
            "is_guidance_distilled": not batched,
            # a hook that has seen nothing yet would extrapolate from nothing
            "current_timestep_callback": lambda: OUTSIDE if stepper.is_first else stepper.timestep,
        }
        apply_faster_cache(denoiser, FasterCacheConfig(**settings))


def _guides(pipe: Any) -> bool:
    """Whether a pipeline is guided in this call; CogVideoX's tell no more than the scale."""
    guides = getattr(pipe, "do_classifier_free_guidance", None)
    return bool((getattr(pipe, "guidance_scale", None) or 0) > 1 if guides is None else guides)
