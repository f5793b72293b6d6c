"""Faster video and image diffusion transformers.

Example
-------
>>> import mmaccel
>>> from mmaccel import video
>>> fast = mmaccel.accelerate(pipe, video.HeterogeneousSteps(budget=0.5))  # doctest: +SKIP
>>> frames = fast("a fox in snow").frames  # doctest: +SKIP
"""

from . import adapter
from .heterogeneous_steps import HeterogeneousSteps
from .sparse_attention import SparseAttention
from .trace import Trace, trace_of

adapter.DiffusionTransformerAdapter.presets = {
    "balanced": (HeterogeneousSteps(budget=0.5),),
    "fast": (HeterogeneousSteps(budget=0.25),),
}

__all__ = ["HeterogeneousSteps", "SparseAttention", "Trace", "trace_of"]
