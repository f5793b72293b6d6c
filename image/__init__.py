"""Faster autoregressive image models: the same `generate`, fewer forward passes.

Example
-------
>>> import mmaccel
>>> from mmaccel import image, zoo
>>> model, processor = zoo.load("tiny-janus")
>>> fast = mmaccel.accelerate(model, image.ZipAR(window=4))
>>> fast.remove()
"""

if __name__ != "mmaccel.image":  # imported from the root of a checkout, every module would be there twice
    raise ImportError("this folder is mmaccel.image: write `from mmaccel import image`")

from .families import emu3, glm_image, janus  # noqa: F401  their adapters register themselves
from .grouped_speculative import GroupedSpeculative
from .speculative_jacobi import SpeculativeJacobi
from .zipar import ZipAR

__all__ = ["GroupedSpeculative", "SpeculativeJacobi", "ZipAR"]
