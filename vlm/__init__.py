"""Faster language models and vision-language models: fewer visual tokens, sparse prefill, smaller caches, streams.

`StoredContext`, `JoinedContext`, `PrefillDrop`, `SparsePrefill`, `SelectKV` and `CompressKV` work on decoders of
transformers that run in SDPA by its attention interface, drafts (`FusedDraft`) on most others too; the methods that
leave out visual tokens on the vision-language models that have an adapter; `TCA` on CLIP; `FastVGGT` on encoders of
many views of a scene.

Example
-------
>>> import mmaccel
>>> from mmaccel import vlm
>>> fast = mmaccel.accelerate(model, vlm.HoliTom(keep=0.15))  # doctest: +SKIP
>>> tokens = fast.generate(**inputs, max_new_tokens=64)  # doctest: +SKIP
"""

if __name__ != "mmaccel.vlm":  # imported from the root of a checkout, every module would be there twice
    raise ImportError("this folder is mmaccel.vlm: write `from mmaccel import vlm`")

from typing import TYPE_CHECKING

from mmaccel.lazy import on_demand

if TYPE_CHECKING:
    from .context.joined_context import JoinedContext
    from .context.marking import mark_contexts
    from .context.stored_context import StoredContext
    from .decoder.compress_kv import CompressKV
    from .decoder.prefill_drop import PrefillDrop
    from .decoder.select_kv import SelectKV
    from .decoder.sparse_prefill import SparsePrefill
    from .drafts.dflash_draft import DFlashDraft
    from .drafts.document_draft import DocumentDraft
    from .drafts.eagle_draft import EagleDraft
    from .drafts.fused_draft import FusedDraft
    from .drafts.model_draft import ModelDraft
    from .drafts.mtp_draft import MTPDraft
    from .drafts.suffix_decoding import SuffixDecoding
    from .drafts.text_draft import TextDraft
    from .drafts.token_recycling import TokenRecycling
    from .encoders.fast_vggt import FastVGGT
    from .encoders.tca import TCA
    from .input.light_pipeline import LightPipeline
    from .input.read_video import VideoFrames, read_video
    from .pruning.dycoke import DyCoke
    from .pruning.early_tom import EarlyTom
    from .pruning.fast_v import FastV
    from .pruning.fast_vid import FastVID
    from .pruning.frame_fusion import FrameFusion
    from .pruning.holitom import HoliTom
    from .pruning.id_pruner import IDPruner
    from .pruning.kept import Kept, kept
    from .pruning.vidcom2 import VidCom2
    from .pruning.vision_zip import VisionZip
    from .stream.response_gate import ResponseGate
    from .stream.stats import VideoStreamStats
    from .stream.streaming_compression import StreamingCompression
    from .stream.video_stream import VideoStream
    from .stream.watching import Watched, watch
else:
    __getattr__, __dir__ = on_demand(__name__, __file__)

__all__ = [
    "CompressKV",
    "DFlashDraft",
    "DocumentDraft",
    "DyCoke",
    "EagleDraft",
    "EarlyTom",
    "FastV",
    "FastVGGT",
    "FastVID",
    "FrameFusion",
    "FusedDraft",
    "HoliTom",
    "IDPruner",
    "JoinedContext",
    "Kept",
    "LightPipeline",
    "MTPDraft",
    "ModelDraft",
    "ResponseGate",
    "PrefillDrop",
    "SelectKV",
    "SparsePrefill",
    "VideoStreamStats",
    "StoredContext",
    "StreamingCompression",
    "SuffixDecoding",
    "TCA",
    "TextDraft",
    "TokenRecycling",
    "VidCom2",
    "VideoFrames",
    "VideoStream",
    "VisionZip",
    "Watched",
    "kept",
    "mark_contexts",
    "read_video",
    "watch",
]
