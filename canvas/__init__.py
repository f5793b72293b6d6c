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
    from mmaccel.zoo.block_causal import BlockCausalModel as BlockCausalModel
    from mmaccel.zoo.block_pipeline import BlockDiffusionPipeline as BlockDiffusionPipeline

    from .caches.interval_cache import IntervalCache as IntervalCache
    from .caches.prefix_cache import PrefixCache as PrefixCache
    from .caches.window_diffusion import WindowDiffusion as WindowDiffusion
    from .commits import Commits as Commits
    from .late_guidance import LateGuidance as LateGuidance
    from .outlooks.adaptive_blocks import AdaptiveBlocks as AdaptiveBlocks
    from .outlooks.early_end import EarlyEnd as EarlyEnd
    from .rules.coherent_context import CoherentContext as CoherentContext
    from .rules.credit_decoding import CreditDecoding as CreditDecoding
    from .rules.doubling import Doubling as Doubling
    from .rules.entropy_bound import EntropyBound as EntropyBound
    from .rules.factor_commit import FactorCommit as FactorCommit
    from .rules.halton_order import HaltonOrder as HaltonOrder
    from .rules.local_leap import LocalLeap as LocalLeap
    from .rules.prophet import Prophet as Prophet
    from .rules.sched import SchED as SchED
    from .verifiers.free_dave import FreeDave as FreeDave
    from .verifiers.guided_commit import GuidedCommit as GuidedCommit
    from .verifiers.s2d2 import S2D2 as S2D2
else:
    __getattr__, __dir__, __all__ = on_demand(__name__, __file__)
