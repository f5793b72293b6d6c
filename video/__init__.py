"""Faster video and image diffusion transformers.

Example
-------
>>> import mmaccel
>>> from mmaccel import video
>>> fast = mmaccel.accelerate(pipe, video.SparseAttention(budget=0.3))  # doctest: +SKIP
>>> frames = fast("a fox in snow").frames  # doctest: +SKIP
"""

from . import adapter  # noqa: F401  registers itself
from .heterogeneous_steps import HeterogeneousSteps
from .sparse_attention import SparseAttention

__all__ = ["HeterogeneousSteps", "SparseAttention"]
