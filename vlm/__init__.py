"""Faster language models and vision-language models: sparse prefill, selected and compressed caches, fewer tokens.

The methods on attention and caches work on any transformers decoder that runs in SDPA, those that give it fewer visual
tokens on vision-language models; `fast_vggt` works on encoders of many views.

Example
-------
>>> import mmaccel
>>> from mmaccel import vlm
>>> fast = mmaccel.accelerate(model, vlm.SparsePrefill(), vlm.CompressKV(budget=0.2))  # doctest: +SKIP
>>> tokens = fast.generate(**inputs, max_new_tokens=64)  # doctest: +SKIP
"""

from . import adapter  # noqa: F401  registers itself
from .compress_kv import CompressKV
from .dycoke import DyCoke
from .early_tom import EarlyTom
from .fast_vggt import fast_vggt
from .fastvid import FastVID
from .holitom import HoliTom
from .id_pruner import IDPruner
from .select_kv import SelectKV
from .sparse_prefill import SparsePrefill
from .vidcom2 import VidCom2
from .vision_zip import VisionZip

__all__ = [
    "CompressKV",
    "DyCoke",
    "EarlyTom",
    "FastVID",
    "HoliTom",
    "IDPruner",
    "SelectKV",
    "SparsePrefill",
    "VidCom2",
    "VisionZip",
    "fast_vggt",
]
