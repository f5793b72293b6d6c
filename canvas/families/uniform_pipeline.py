"""diffusers' DiffusionGemmaPipeline: canvases of random tokens, read beside the encoder's cache."""

from __future__ import annotations

from typing import ClassVar

from mmaccel.adapter import register_adapter
from mmaccel.errors import UnsupportedTargetError
from mmaccel.method import Method

from ..method import NOISE, CommitRule
from ..uniform_decoder import UniformDecoder
from .adapter import CanvasAdapter


@register_adapter
class UniformPipelineAdapter(CanvasAdapter[UniformDecoder]):
    """A `DiffusionGemmaPipeline` with any of its schedulers."""

    follows = UniformDecoder
    family = NOISE
    classes: ClassVar[tuple[str, ...]] = ("DiffusionGemmaPipeline", "DiffusionGemmaForBlockDiffusion")
    advice = (
        "it begins with random tokens where this method needs masks; canvas.FreeDave, canvas.EntropyBound and"
        " canvas.FactorCommit work on it, and confidence_threshold= of its own call"
    )

    def check(self, method: Method) -> None:
        target = type(self.target).__name__
        if not hasattr(self.target, "scheduler"):
            raise UnsupportedTargetError(
                f"{target} alone: put it in a pipeline, which brings the steps: diffusers.DiffusionGemmaPipeline(model,"
                " BlockRefinementScheduler(), processor)"
            )
        scheduler = type(self.target.scheduler).__name__
        if isinstance(method, CommitRule) and not hasattr(self.target.scheduler, "get_num_transfer_tokens"):
            raise UnsupportedTargetError(
                f"{scheduler} commits nothing for good, to which {method.name} could add: give the {target} a"
                " BlockRefinementScheduler, or EntropyBoundScheduler's own entropy_bound="
            )
