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
    from mmaccel.stepping.solver import best_steps as best_steps

    from .autoregressive.block_router import BlockRouter as BlockRouter
    from .autoregressive.rolling_context import RollingContext as RollingContext
    from .blocks.block_cache import BlockCache as BlockCache
    from .blocks.sparse_attention import SparseAttention as SparseAttention
    from .blocks.token_cache import TokenCache as TokenCache
    from .caches.easy_cache import EasyCache as EasyCache
    from .caches.easy_cache_hook import EasyCacheHook as EasyCacheHook
    from .caches.encoder_reuse import EncoderReuse as EncoderReuse
    from .caches.faster_cache import FasterCache as FasterCache
    from .caches.first_block_cache import FirstBlockCache as FirstBlockCache
    from .caches.mag_cache import MagCache as MagCache
    from .caches.mag_cache import calibrate_mag_cache as calibrate_mag_cache
    from .caches.pyramid_attention_broadcast import PyramidAttentionBroadcast as PyramidAttentionBroadcast
    from .caches.taylor_seer import TaylorSeer as TaylorSeer
    from .caches.tea_cache import TeaCache as TeaCache
    from .caches.tea_cache import calibrate_tea_cache as calibrate_tea_cache
    from .heterogeneous.auto import Auto as Auto
    from .heterogeneous.auto import auto as auto
    from .heterogeneous.heterogeneous_steps import HeterogeneousSteps as HeterogeneousSteps
    from .heterogeneous.step_solver import calibrate_steps as calibrate_steps
    from .trace import Trace as Trace
    from .trace import trace_of as trace_of
else:
    __getattr__, __dir__, __all__ = on_demand(__name__, __file__)
