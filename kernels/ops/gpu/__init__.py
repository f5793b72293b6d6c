"""The ops as Triton kernels. Imported only when a CUDA tensor (or the interpreter) needs it."""

from .accept_length import accept_length
from .block_sparse_attention import block_sparse_attention
from .residual_sample import residual_sample
from .segment_mean import segment_mean
from .verify_attention import verify_attention

__all__ = [
    "accept_length",
    "block_sparse_attention",
    "residual_sample",
    "segment_mean",
    "verify_attention",
]
