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
from .sparse_attention import SparseAttention
from .tea_cache import TeaCache, calibrate_tea_cache

__all__ = ["BlockCache", "EasyCache", "SparseAttention", "TeaCache", "calibrate_tea_cache"]
