"""diffusers' pipelines of aMUSEd: pictures as canvases of masked codes, whole or in part."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import Any, ClassVar

from mmaccel.adapter import Adapter, register_adapter
from mmaccel.errors import UnsupportedTargetError
from mmaccel.method import Method
from mmaccel.session import Session

from ..method import PICTURES, CanvasMethod
from ..picture_decoder import PictureDecoder
from .following import refuse_another_scheduler


@register_adapter
class AmusedAdapter(Adapter):
    """A pipeline of aMUSEd with its transformer and its `AmusedScheduler`."""

    family = PICTURES
    classes: ClassVar[tuple[str, ...]] = ("AmusedPipeline", "AmusedImg2ImgPipeline", "AmusedInpaintPipeline")
    modality = "canvas"
    call_is_run = True
    advice = (
        "its codes are drawn at random and stand in rows and columns, with no text before them;"
        " `mmaccel methods --modality canvas` names those that work on pictures"
    )

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.decoder: PictureDecoder | None = None

    def parts(self) -> list[Any]:
        return [self.target, self.target.transformer, self.target.scheduler]

    def check(self, method: Method) -> None:
        scheduler = self.target.scheduler
        if not hasattr(scheduler.config, "mask_token_id"):
            raise UnsupportedTargetError(
                f"{type(scheduler).__name__} has no mask_token_id: {method.name} needs an AmusedScheduler in"
                f" {type(self.target).__name__}"
            )

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take from a call whether it is guided, and the share of the steps that it makes, which no pass shows."""
        call = inspect.signature(self.target.__call__).bind_partial(*args, **kwargs)
        call.apply_defaults()
        if self.decoder is not None:
            refuse_another_scheduler(self.decoder.session, self.decoder.scheduler)
            self.decoder.prepare(call.arguments["guidance_scale"] > 1, call.arguments.get("strength", 1.0))

    def attach(self, method: CanvasMethod, session: Session, stack: ExitStack) -> None:
        """Add a method; the first one installs what follows the pipeline's passes and steps."""
        if self.decoder is None:
            chosen = [m for m in session.plan.methods if isinstance(m, CanvasMethod) and not m.is_neutral]
            self.decoder = PictureDecoder(session, self.target, chosen)
            stack.callback(setattr, self, "decoder", None)
            self.decoder.attach(stack)
