"""Masked and block-diffusion decoders: text that is filled in, block by block, in place of written word by word.

Works on diffusers' `LLaDA2Pipeline` with any model of its contract (LLaDA2, or a transformers decoder wrapped in
:class:`BlockCausalModel`): rules that commit more tokens a step, a verifier that commits only what the pipeline
would have, and a cache for what stands before the block.

Example
-------
>>> import mmaccel
>>> from mmaccel import canvas
>>> with mmaccel.accelerate(pipe, canvas.FreeDave(), canvas.PrefixCache()) as fast:  # doctest: +SKIP
...     text = fast("Where does the sun rise?", gen_length=128).texts[0]
"""

if __name__ != "mmaccel.canvas":  # imported from the root of a checkout, every module would be there twice
    raise ImportError("this folder is mmaccel.canvas: write `from mmaccel import canvas`")

from typing import TYPE_CHECKING

from mmaccel.lazy import on_demand

if TYPE_CHECKING:
    from mmaccel.zoo.block_causal import BlockCausalModel
    from mmaccel.zoo.block_pipeline import BlockDiffusionPipeline

    from .caches.interval_cache import IntervalCache
    from .caches.prefix_cache import PrefixCache
    from .caches.window_diffusion import WindowDiffusion
    from .commits import Commits
    from .late_guidance import LateGuidance
    from .outlooks.adaptive_blocks import AdaptiveBlocks
    from .outlooks.early_end import EarlyEnd
    from .rules.coherent_context import CoherentContext
    from .rules.credit_decoding import CreditDecoding
    from .rules.doubling import Doubling
    from .rules.entropy_bound import EntropyBound
    from .rules.factor_commit import FactorCommit
    from .rules.halton_order import HaltonOrder
    from .rules.local_leap import LocalLeap
    from .rules.prophet import Prophet
    from .rules.sched import SchED
    from .verifiers.free_dave import FreeDave
    from .verifiers.guided_commit import GuidedCommit
    from .verifiers.s2d2 import S2D2
else:
    __getattr__, __dir__ = on_demand(__name__, __file__)

__all__ = [
    "S2D2",
    "AdaptiveBlocks",
    "BlockCausalModel",
    "BlockDiffusionPipeline",
    "CoherentContext",
    "Commits",
    "CreditDecoding",
    "Doubling",
    "EarlyEnd",
    "EntropyBound",
    "FactorCommit",
    "FreeDave",
    "GuidedCommit",
    "HaltonOrder",
    "IntervalCache",
    "LateGuidance",
    "LocalLeap",
    "PrefixCache",
    "Prophet",
    "SchED",
    "WindowDiffusion",
]
