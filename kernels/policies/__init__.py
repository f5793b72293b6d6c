"""What to attend to: small pure functions that return a BlockPlan or token numbers."""

from .compress.fast_kv import fast_kv
from .compress.snap_kv import snap_kv
from .compress.st_lite import Span, Visual, st_lite
from .compress.streaming import streaming
from .decode.double_sparsity import double_sparsity, label_channels
from .decode.fasa import dominant_pairs, fasa
from .decode.recycled_attention import recycled_attention
from .decode.token_select import token_select
from .prefill.a_shape import a_shape
from .prefill.flex_prefill import flex_prefill
from .prefill.pooled_top_k import pooled_top_k
from .prefill.pooled_top_p import pooled_top_p
from .prefill.radial import radial
from .prefill.sliding_tile import sliding_tile, tile_order
from .prefill.sparge import sparge
from .prefill.vertical_slash import vertical_slash
from .tables import COMPRESS, DECODE, PREFILL

__all__ = [
    "COMPRESS",
    "DECODE",
    "PREFILL",
    "Span",
    "Visual",
    "a_shape",
    "dominant_pairs",
    "double_sparsity",
    "fasa",
    "fast_kv",
    "flex_prefill",
    "label_channels",
    "pooled_top_k",
    "pooled_top_p",
    "radial",
    "recycled_attention",
    "sliding_tile",
    "snap_kv",
    "sparge",
    "st_lite",
    "streaming",
    "tile_order",
    "token_select",
    "vertical_slash",
]
