"""transformers' CLIP: a tower whose class token says what a picture shows, alone or beside a tower of texts."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from mmaccel import private
from mmaccel.adapter import Adapter, register_adapter
from mmaccel.errors import UnsupportedTargetError
from mmaccel.method import Method


@register_adapter
class ImageTextAdapter(Adapter):
    """A CLIP model, or its image tower alone. Nothing is generated: a call is a pass of each tower."""

    family = "clip"
    classes: ClassVar[tuple[str, ...]] = ("CLIPModel", "CLIPVisionModel", "CLIPVisionModelWithProjection")
    modality = "vlm"
    exclusive = True
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

    def check(self, method: Method) -> None:
        compiled = (module for layer in self.layers for module in layer.modules() if private.runs_compiled(module))
        if (found := next(compiled, None)) is not None:
            raise UnsupportedTargetError(
                f"{method.name} changes what {type(found).__name__} does inside, and this one is compiled:"
                " load it again without compile(), or compile the whole model with model.compile()"
            )
