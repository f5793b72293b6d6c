"""Faster language models and vision-language models: sparse prefill, selected and compressed caches.

The methods work on any transformers decoder that runs in SDPA.

Example
-------
>>> import mmaccel
>>> from mmaccel import vlm
>>> fast = mmaccel.accelerate(model, vlm.SparsePrefill(), vlm.CompressKV(budget=0.2))  # doctest: +SKIP
>>> tokens = fast.generate(**inputs, max_new_tokens=64)  # doctest: +SKIP
"""

from . import adapter, internvl, llava_next_video, llava_onevision, qwen_vl  # noqa: F401  register themselves
from .compress_kv import CompressKV
from .fast_v import FastV
from .frame_fusion import FrameFusion
from .select_kv import SelectKV
from .sparse_prefill import SparsePrefill

__all__ = ["CompressKV", "FastV", "FrameFusion", "SelectKV", "SparsePrefill"]
