"""Faster video and image diffusion transformers.

Example
-------
>>> import mmaccel
>>> from mmaccel import video
>>> fast = mmaccel.accelerate(pipe, video.SparseAttention(budget=0.3))  # doctest: +SKIP
>>> frames = fast("a fox in snow").frames  # doctest: +SKIP
"""

from . import adapter  # noqa: F401  registers itself
from .block_cache import BlockCache
from .easy_cache import EasyCache
from .faster_cache import FasterCache
from .first_block_cache import FirstBlockCache
from .mag_cache import MagCache, calibrate_mag_cache
from .pyramid_attention_broadcast import PyramidAttentionBroadcast
from .sparse_attention import SparseAttention
from .taylor_seer import TaylorSeer
from .tea_cache import TeaCache, calibrate_tea_cache

__all__ = [
    "BlockCache",
    "EasyCache",
    "FasterCache",
    "FirstBlockCache",
    "MagCache",
    "PyramidAttentionBroadcast",
    "SparseAttention",
    "TaylorSeer",
    "TeaCache",
    "calibrate_mag_cache",
    "calibrate_tea_cache",
]
