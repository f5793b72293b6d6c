"""Faster language models and vision-language models: sparse prefill, selected and compressed caches.

The methods work on any transformers decoder that runs in SDPA.

Example
-------
>>> import mmaccel
>>> from mmaccel import vlm
>>> fast = mmaccel.accelerate(model, vlm.SparsePrefill(), vlm.CompressKV(budget=0.2))  # doctest: +SKIP
>>> tokens = fast.generate(**inputs, max_new_tokens=64)  # doctest: +SKIP
"""

from . import adapter  # noqa: F401  registers itself
from .compress_kv import CompressKV
from .read_video import VideoFrames, read_video
from .response_gate import ResponseGate
from .select_kv import SelectKV
from .sparse_prefill import SparsePrefill

__all__ = ["CompressKV", "ResponseGate", "SelectKV", "SparsePrefill", "VideoFrames", "read_video"]
