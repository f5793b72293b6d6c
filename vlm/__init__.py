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
    from .context.joined_context import JoinedContext as JoinedContext
    from .context.marking import mark_contexts as mark_contexts
    from .context.stored_context import StoredContext as StoredContext
    from .decoder.compress_kv import CompressKV as CompressKV
    from .decoder.prefill_drop import PrefillDrop as PrefillDrop
    from .decoder.select_kv import SelectKV as SelectKV
    from .decoder.sparse_prefill import SparsePrefill as SparsePrefill
    from .drafts.dflash_draft import DFlashDraft as DFlashDraft
    from .drafts.document_draft import DocumentDraft as DocumentDraft
    from .drafts.eagle_draft import EagleDraft as EagleDraft
    from .drafts.fused_draft import FusedDraft as FusedDraft
    from .drafts.model_draft import ModelDraft as ModelDraft
    from .drafts.mtp_draft import MTPDraft as MTPDraft
    from .drafts.suffix_decoding import SuffixDecoding as SuffixDecoding
    from .drafts.text_draft import TextDraft as TextDraft
    from .drafts.token_recycling import TokenRecycling as TokenRecycling
    from .encoders.fast_vggt import FastVGGT as FastVGGT
    from .encoders.tca import TCA as TCA
    from .input.light_pipeline import LightPipeline as LightPipeline
    from .input.read_video import VideoFrames as VideoFrames
    from .input.read_video import read_video as read_video
    from .pruning.dycoke import DyCoke as DyCoke
    from .pruning.early_tom import EarlyTom as EarlyTom
    from .pruning.fast_v import FastV as FastV
    from .pruning.fast_vid import FastVID as FastVID
    from .pruning.frame_fusion import FrameFusion as FrameFusion
    from .pruning.holitom import HoliTom as HoliTom
    from .pruning.id_pruner import IDPruner as IDPruner
    from .pruning.kept import Kept as Kept
    from .pruning.kept import kept as kept
    from .pruning.vidcom2 import VidCom2 as VidCom2
    from .pruning.vision_zip import VisionZip as VisionZip
    from .stream.response_gate import ResponseGate as ResponseGate
    from .stream.stats import VideoStreamStats as VideoStreamStats
    from .stream.streaming_compression import StreamingCompression as StreamingCompression
    from .stream.video_stream import VideoStream as VideoStream
    from .stream.watching import Watched as Watched
    from .stream.watching import watch as watch
else:
    __getattr__, __dir__, __all__ = on_demand(__name__, __file__)
