"""Faster language models and vision-language models: fewer visual tokens, sparse prefill, smaller caches, streams.

`SparsePrefill`, `SelectKV` and `CompressKV` work on any transformers decoder that runs in SDPA; the methods that leave
out visual tokens on the vision-language models that have an adapter; `FastVGGT` on encoders of many views.

Example
-------
>>> import mmaccel
>>> from mmaccel import vlm
>>> fast = mmaccel.accelerate(model, vlm.HoliTom(keep=0.15))  # doctest: +SKIP
>>> tokens = fast.generate(**inputs, max_new_tokens=64)  # doctest: +SKIP
"""

if __name__ != "mmaccel.vlm":  # imported from the root of a checkout, every module would be there twice
    raise ImportError("this folder is mmaccel.vlm: write `from mmaccel import vlm`")

from . import adapter, internvl, llava_next_video, llava_onevision, qwen_vl  # noqa: F401  register themselves
from .compress_kv import CompressKV
from .dycoke import DyCoke
from .early_tom import EarlyTom
from .fast_v import FastV
from .fast_vggt import FastVGGT
from .fast_vid import FastVID
from .frame_fusion import FrameFusion
from .holitom import HoliTom
from .id_pruner import IDPruner
from .kept import Kept, kept
from .read_video import VideoFrames, read_video
from .response_gate import ResponseGate
from .select_kv import SelectKV
from .sparse_prefill import SparsePrefill
from .streaming_compression import StreamingCompression
from .vidcom2 import VidCom2
from .video_stream import StreamStats, VideoStream
from .vision_zip import VisionZip

__all__ = [
    "CompressKV",
    "DyCoke",
    "EarlyTom",
    "FastV",
    "FastVGGT",
    "FastVID",
    "FrameFusion",
    "HoliTom",
    "IDPruner",
    "Kept",
    "ResponseGate",
    "SelectKV",
    "SparsePrefill",
    "StreamStats",
    "StreamingCompression",
    "VidCom2",
    "VideoFrames",
    "VideoStream",
    "VisionZip",
    "kept",
    "read_video",
]
