"""diffusers' DiffusionGemmaPipeline: canvases of random tokens, read beside the encoder's cache."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, ClassVar

from mmaccel.adapter import Adapter, register_adapter
from mmaccel.errors import UnsupportedTargetError
from mmaccel.method import Method
from mmaccel.session import Session

from ..method import CanvasMethod, CommitRule
from ..uniform_decoder import UniformDecoder
from .following import refuse_another_scheduler


@register_adapter
class UniformPipelineAdapter(Adapter):
    """A `DiffusionGemmaPipeline` with any of its schedulers."""

    family = "uniform block diffusion"
    classes: ClassVar[tuple[str, ...]] = ("DiffusionGemmaPipeline", "DiffusionGemmaForBlockDiffusion")
    modality = "canvas"
    call_is_run = True
    advice = (
        "it begins with random tokens where this method needs masks; canvas.FreeDave, canvas.EntropyBound and"
        " canvas.FactorCommit work on it, and confidence_threshold= of its own call"
    )

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.decoder: UniformDecoder | None = None

    def parts(self) -> list[Any]:
        return [self.target, self.target.model, self.target.scheduler]

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

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a run; nothing has to be known of its arguments."""
        if self.decoder is not None:
            refuse_another_scheduler(self.decoder.session, self.decoder.scheduler)

    def attach(self, method: CanvasMethod, session: Session, stack: ExitStack) -> None:
        """Add a method; the first one installs what follows the pipeline's passes and steps."""
        if self.decoder is None:
            chosen = [m for m in session.plan.methods if isinstance(m, CanvasMethod) and not m.is_neutral]
            self.decoder = UniformDecoder(session, self.target, chosen)
            stack.callback(setattr, self, "decoder", None)
            self.decoder.attach(stack)
