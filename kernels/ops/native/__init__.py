"""The ops in torch's own: fast on a CPU, correct on every device."""

from .block_sparse_attention import block_sparse_attention
from .small import accept_length, residual_sample, segment_mean
from .verify_attention import verify_attention

__all__ = [
    "accept_length",
    "block_sparse_attention",
    "residual_sample",
    "segment_mean",
    "verify_attention",
]
