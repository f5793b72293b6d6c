"""Encoders of many views of a scene, some of whose blocks attend over all views at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from mmaccel.adapter import Adapter, register_adapter
from mmaccel.cache.estimate import require_memory
from mmaccel.errors import UnsupportedTargetError

BLOCK = 6  # what a block holds of each token at once, in widths: the tokens before and after, and four inside the MLP


@dataclass(frozen=True)
class Views:
    """How a sequence of all views is made up, view after view.

    Attributes
    ----------
    count
        Views, the one that sets the frame of reference first.
    special
        Tokens without a place in the picture at the beginning of each, such as camera and register tokens.
    rows, columns
        Patches of each.
    """

    count: int
    special: int
    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        """Tokens of all views."""
        return self.count * (self.special + self.rows * self.columns)


class Encoder(NamedTuple):
    """Where a model attends over all views.

    Attributes
    ----------
    module
        The module that gets the pictures `[B, S, 3, H, W]` first.
    special
        Special tokens of a view.
    patch
        Side of a patch in pixels.
    attention
        The attention modules whose sequence is that of all views. They take tokens `[B, S * N, D]` first, and their
        places as `pos` or `xpos`.
    """

    module: nn.Module
    special: int
    patch: int
    attention: list[nn.Module]


def _vggt(module: Any) -> Encoder | None:
    """VGGT's aggregator."""
    if not hasattr(module, "global_blocks"):
        return None
    return Encoder(module, module.patch_start_idx, module.patch_size, [block.attn for block in module.global_blocks])


def _depth_anything(module: Any) -> Encoder | None:
    """The backbone of Depth Anything 3: from `alt_start` on every second block; where it is negative, none."""
    vit: Any = getattr(module, "pretrained", None)
    if not hasattr(vit, "alt_start"):
        return None
    first = vit.alt_start if vit.alt_start >= 0 else len(vit.blocks)
    attention = [block.attn for i, block in enumerate(vit.blocks) if i >= first and i % 2]
    return Encoder(module, 1 + vit.num_register_tokens, vit.patch_size, attention)


def _pi3(module: Any) -> Encoder | None:
    """Pi3 itself, every second block of whose decoder attends over all views."""
    if not hasattr(module, "patch_start_idx") or not isinstance(getattr(module, "decoder", None), nn.ModuleList):
        return None
    return Encoder(module, module.patch_start_idx, module.patch_size, [block.attn for block in module.decoder[1::2]])


KINDS: tuple[Callable[[Any], Encoder | None], ...] = (_vggt, _depth_anything, _pi3)


@register_adapter
class MultiViewAdapter(Adapter):
    """VGGT, Pi3, and Depth Anything 3 with its several views.

    Attributes
    ----------
    encoder
        Where the model attends over all views.
    runs
        Methods of the model, other than its call, that are a run.
    """

    family = "multi_view"
    classes: ClassVar[tuple[str, ...]] = (
        "VGGT",
        "DepthAnything3",
        "DepthAnything3Net",
        "NestedDepthAnything3Net",
        "Pi3",
        "Pi3X",
    )
    modality = "vlm"
    call_is_run = True
    exclusive = True
    advice = "vlm.FastVGGT works on it"

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.encoder = self._encoder()
        self.runs = [name for name in ("inference",) if hasattr(target, name)]

    def _encoder(self) -> Encoder:
        """The first that attends over several views: the nested Depth Anything 3 has one more, which does not."""
        name = type(self.target).__name__
        made = [kind(module) for module in self.target.modules() for kind in KINDS]
        found = [encoder for encoder in made if encoder is not None]
        if not found:
            raise UnsupportedTargetError(
                f"this {name} has neither the `global_blocks` of VGGT, nor the `alt_start` of Depth Anything 3, nor the"
                " `decoder` of Pi3: pass the model that these packages make"
            )
        for encoder in found:
            if encoder.attention:
                return encoder
        raise UnsupportedTargetError(
            f"this {name} has no block that attends over several views: there is nothing to merge"
        )

    def parts(self) -> list[Any]:
        """Several instances of `DepthAnything3` may share one network."""
        return list(dict.fromkeys((self.target, self.encoder.module)))

    def views(self, pictures: torch.Tensor) -> Views:
        """The sequence that these pictures `[B, S, 3, H, W]` become."""
        count, height, width = pictures.shape[1], *pictures.shape[-2:]
        return Views(count, self.encoder.special, height // self.encoder.patch, width // self.encoder.patch)

    def check_memory(self, views: Views, pictures: torch.Tensor) -> None:
        """Raise before anything is computed if one block alone takes more memory than is free.

        Raises
        ------
        MemoryLimitError
        """
        width = next(self.encoder.attention[0].parameters()).shape[-1]
        needed = len(pictures) * views.tokens * width * BLOCK * pictures.element_size()
        what = f"one block over {views.count} views of {views.rows} x {views.columns} patches"
        require_memory(needed, pictures.device, what, "give fewer views, or smaller ones")
