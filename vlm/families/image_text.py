"""transformers' CLIP: a tower whose class token says what a picture shows, alone or beside a tower of texts."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from mmaccel.adapter import Adapter, register_adapter


@register_adapter
class ImageTextAdapter(Adapter):
    """A CLIP model, or its image tower alone. Nothing is generated: a call is a pass of each tower."""

    family = "clip"
    classes: ClassVar[tuple[str, ...]] = ("CLIPModel", "CLIPVisionModel", "CLIPVisionModelWithProjection")
    modality = "vlm"
    apart = True
    advice = "vlm.TCA works on it"

    @property
    def tower(self) -> Any:
        """The image tower, which the target is or has."""
        return getattr(self.target, "vision_model", self.target)

    @property
    def layers(self) -> list[torch.nn.Module]:
        """The layers of the image tower, in order."""
        return list(self.tower.encoder.layers)

    @property
    def has_texts(self) -> bool:
        """Whether it compares pictures with texts."""
        return hasattr(self.target, "text_model")

    def parts(self) -> list[Any]:
        return [self.target] if self.tower is self.target else [self.target, self.tower]
