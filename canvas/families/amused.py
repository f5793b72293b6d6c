"""diffusers' pipelines of aMUSEd: pictures as canvases of masked codes, whole or in part."""

from __future__ import annotations

from typing import ClassVar

from mmaccel.adapter import register_adapter
from mmaccel.errors import UnsupportedTargetError
from mmaccel.method import Method

from ..method import PICTURES
from ..picture_decoder import PictureDecoder
from .adapter import CanvasAdapter


@register_adapter
class AmusedAdapter(CanvasAdapter[PictureDecoder]):
    """A pipeline of aMUSEd with its transformer and its `AmusedScheduler`."""

    follows = PictureDecoder
    family = PICTURES
    classes: ClassVar[tuple[str, ...]] = ("AmusedPipeline", "AmusedImg2ImgPipeline", "AmusedInpaintPipeline")
    advice = (
        "its codes are drawn at random and stand in rows and columns, with no text before them;"
        " `mmaccel methods --modality canvas` names those that work on pictures"
    )

    def check(self, method: Method) -> None:
        scheduler = self.target.scheduler
        if not hasattr(scheduler.config, "mask_token_id"):
            raise UnsupportedTargetError(
                f"{type(scheduler).__name__} has no mask_token_id: {method.name} needs an AmusedScheduler in"
                f" {type(self.target).__name__}"
            )
