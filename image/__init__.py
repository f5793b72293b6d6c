"""Faster autoregressive image models: the same `generate`, fewer forward passes.

Diffusion pipelines of pictures, such as Flux, take the methods of `mmaccel.video`, which have a second name here:
`image.HeterogeneousSteps` is `video.HeterogeneousSteps`.

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

from typing import TYPE_CHECKING

from mmaccel.lazy import on_demand

if TYPE_CHECKING:
    from mmaccel.video import *  # noqa: F403  the diffusion methods, for those who make pictures with them

    from .grouped_speculative import GroupedSpeculative as GroupedSpeculative
    from .speculative_jacobi import SpeculativeJacobi as SpeculativeJacobi
    from .zipar import ZipAR as ZipAR
else:
    __getattr__, __dir__, __all__ = on_demand(__name__, __file__)
