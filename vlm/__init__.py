"""Faster language models and vision-language models: fewer visual tokens, sparse prefill, smaller caches, streams.

`SparsePrefill`, `SelectKV` and `CompressKV` work on any transformers decoder that runs in SDPA, the methods that leave
out visual tokens on the vision-language models that have an adapter.

Example
-------
>>> import mmaccel
>>> from mmaccel import vlm
>>> fast = mmaccel.accelerate(model, vlm.HoliTom(keep=0.15))  # doctest: +SKIP
>>> tokens = fast.generate(**inputs, max_new_tokens=64)  # doctest: +SKIP
"""

from . import adapter, internvl, llava_next_video, llava_onevision, qwen_vl  # noqa: F401  register themselves
from .compress_kv import CompressKV
from .fast_v import FastV
from .frame_fusion import FrameFusion
from .kept import Kept, kept
from .select_kv import SelectKV
from .sparse_prefill import SparsePrefill
from .streaming_compression import StreamingCompression
from .video_stream import StreamStats, VideoStream

__all__ = [
    "CompressKV",
    "FastV",
    "FrameFusion",
    "Kept",
    "SelectKV",
    "SparsePrefill",
    "StreamStats",
    "StreamingCompression",
    "VideoStream",
    "kept",
]
