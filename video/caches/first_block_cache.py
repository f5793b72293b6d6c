"""diffusers' First Block Cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mmaccel.method import Advice
from mmaccel.registry import register

from ..private import shared_groups
from .diffusers_cache import DiffusersCache, HookStepper

NOT_HIDDEN_STATES = "its blocks' argument is not called `hidden_states`"
ALTERNATING = "its blocks of space and time alternate, and lay the tokens out in two ways"
APART = "the processes that run it together would each decide for themselves, and wait for each other"
CONTROLLED = "what its control adds between the blocks is lost where the hook skips them"


@register("video")
@dataclass(frozen=True)
class FirstBlockCache(DiffusersCache):
    """diffusers' First Block Cache: all blocks but the first are reused while the first one's residual hardly changes.

    The same idea as :class:`mmaccel.video.BlockCache`, which has more settings, decides once per step for all guidance
    branches, and works on more families; this is diffusers' own implementation, with a warm-up and a cool-down, and
    with complete removal. Each guidance branch decides for itself. Lossy.

    Parameters
    ----------
    threshold
        Relative change of the first block's residual up to which the others are reused; 0 is exact. Default 0.05, as in
        diffusers.
    warmup
        First steps that are always computed, at least 1; default 1, as in diffusers.
    cooldown
        Last steps that are always computed; default 0, as in diffusers.

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
    >>> str(FirstBlockCache(threshold=0.1))
    'video.FirstBlockCache(threshold=0.1)'
    """

    paper = "First Block Cache in ParaAttention, as implemented in diffusers, 2024"
    advice: ClassVar[Advice] = Advice(
        "Those who want diffusers' own implementation; BlockCache has more settings and knows more families.",
        "At half the time it is a little ahead of fewer steps, and at a quarter far behind.",
        "threshold=0.15",
    )
    needs_all_tokens = True
    neutral = {"threshold": 0.0}
    engaging = {"threshold": 1e6}
    skips_blocks = True
    advised = "video.BlockCache"
    unfit = {
        "SD3Transformer2DModel": "its last block returns no text, of which the hook wants a difference",
        "ZImageTransformer2DModel": NOT_HIDDEN_STATES,
        "Kandinsky5Transformer3DModel": NOT_HIDDEN_STATES,
        "Cosmos3OmniTransformer": NOT_HIDDEN_STATES,
        "Flux2Transformer2DModel": "its last blocks have no stream of text, of which the hook wants a difference",
        "LatteTransformer3DModel": ALTERNATING,
        "WanVACETransformer3DModel": CONTROLLED,
    }

    threshold: float = 0.05
    warmup: int = 1
    cooldown: int = 0

    def lacks(self, denoiser: torch.nn.Module) -> str:
        return APART if shared_groups(denoiser) else super().lacks(denoiser)

    def put_on(self, denoiser: torch.nn.Module, stepper: HookStepper) -> None:
        from diffusers.hooks.first_block_cache import FirstBlockCacheConfig, apply_first_block_cache

        apply_first_block_cache(denoiser, FirstBlockCacheConfig(threshold=self.threshold))
