"""What to attend to: small pure functions that return a BlockPlan or token numbers."""

from .a_shape import a_shape
from .double_sparsity import double_sparsity, label_channels
from .fasa import dominant_pairs, fasa
from .fast_kv import fast_kv
from .flex_prefill import flex_prefill
from .mac import mac
from .persistent_local import persistent_blocks, persistent_local
from .pooled_top_k import pooled_top_k
from .pooled_top_p import pooled_top_p
from .radial import radial
from .recycled_attention import recycled_attention
from .sliding_tile import sliding_tile, tile_order
from .snap_kv import snap_kv
from .sparge import sparge
from .st_lite import Span, Visual, st_lite
from .streaming import streaming
from .tables import COMPRESS, DECODE, PREFILL
from .token_select import token_select, token_select_cached
from .vertical_slash import vertical_slash

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
    "mac",
    "persistent_blocks",
    "persistent_local",
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
    "token_select_cached",
    "vertical_slash",
]
