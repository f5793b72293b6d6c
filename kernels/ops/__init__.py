"""Attention, merging and sampling ops: a naive reference, a fast torch path and a Triton kernel behind one signature.

They have no gradients: backward through one of them is an error.

Example
-------
>>> import torch
>>> from mmaccel import kernels
>>> q = k = v = torch.randn(1, 2, 128, 64)
>>> output, lse = kernels.block_sparse_attention(q, k, v, causal=True)
>>> with kernels.backend("reference"):
...     expected, _ = kernels.block_sparse_attention(q, k, v, causal=True)
>>> torch.allclose(output, expected, atol=1e-5)
True
"""

from .accept_length import accept_length
from .block_sparse_attention import block_sparse_attention
from .calibration import Calibration, calibrate, should_use_sparse
from .dispatch import backend, choose
from .plan import BlockPlan
from .residual_sample import residual_sample
from .segment_mean import segment_mean
from .skinny_linear import skinny_linear
from .verify_attention import verify_attention

__all__ = [
    "BlockPlan",
    "Calibration",
    "accept_length",
    "backend",
    "block_sparse_attention",
    "calibrate",
    "choose",
    "residual_sample",
    "segment_mean",
    "should_use_sparse",
    "skinny_linear",
    "verify_attention",
]
