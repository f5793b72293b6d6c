"""Faster video and image diffusion transformers.

Example
-------
>>> import mmaccel
>>> from mmaccel import video
>>> fast = mmaccel.accelerate(pipe, video.HeterogeneousSteps(budget=0.5))  # doctest: +SKIP
>>> frames = fast("a fox in snow").frames  # doctest: +SKIP
"""

if __name__ != "mmaccel.video":  # imported from the root of a checkout, every module would be there twice
    raise ImportError("this folder is mmaccel.video: write `from mmaccel import video`")

from typing import TYPE_CHECKING

from mmaccel.lazy import on_demand

if TYPE_CHECKING:
    from mmaccel.stepping.solver import best_steps

    from .autoregressive.block_router import BlockRouter
    from .autoregressive.rolling_context import RollingContext
    from .blocks.block_cache import BlockCache
    from .blocks.share_solver import best_shares, calibrate_token_cache
    from .blocks.sparse_attention import SparseAttention
    from .blocks.token_cache import TokenCache
    from .caches.easy_cache import EasyCache
    from .caches.easy_cache_hook import EasyCacheHook
    from .caches.encoder_reuse import EncoderReuse
    from .caches.faster_cache import FasterCache
    from .caches.first_block_cache import FirstBlockCache
    from .caches.mag_cache import MagCache, calibrate_mag_cache
    from .caches.pyramid_attention_broadcast import PyramidAttentionBroadcast
    from .caches.taylor_seer import TaylorSeer
    from .caches.tea_cache import TeaCache, calibrate_tea_cache
    from .heterogeneous.auto import Auto, auto
    from .heterogeneous.heterogeneous_steps import HeterogeneousSteps
    from .heterogeneous.step_solver import calibrate_steps
    from .trace import Trace, trace_of
else:
    __getattr__, __dir__ = on_demand(__name__, __file__)

__all__ = [
    "Auto",
    "BlockCache",
    "BlockRouter",
    "EasyCache",
    "EasyCacheHook",
    "EncoderReuse",
    "FasterCache",
    "FirstBlockCache",
    "HeterogeneousSteps",
    "MagCache",
    "PyramidAttentionBroadcast",
    "RollingContext",
    "SparseAttention",
    "TaylorSeer",
    "TeaCache",
    "TokenCache",
    "Trace",
    "auto",
    "best_shares",
    "best_steps",
    "calibrate_mag_cache",
    "calibrate_steps",
    "calibrate_tea_cache",
    "calibrate_token_cache",
    "trace_of",
]
