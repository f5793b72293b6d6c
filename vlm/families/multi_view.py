"""Encoders of many views of a scene, some of whose blocks attend over all views at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.adapter import Adapter, register_adapter
from mmaccel.cache.estimate import free_memory
from mmaccel.errors import MemoryLimitError, UnsupportedTargetError

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


@register_adapter
class MultiViewAdapter(Adapter):
    """VGGT, and Depth Anything 3 with its several views.

    Attributes
    ----------
    encoder
        The module that gets the pictures `[B, S, 3, H, W]` first.
    attention
        The attention modules whose sequence is that of all views. They take tokens `[B, S * N, D]` first, and their
        places as `pos`.
    """

    family = "multi_view"
    classes: ClassVar[tuple[str, ...]] = ("VGGT", "DepthAnything3", "DepthAnything3Net")
    modality = "vlm"
    call_is_run = True
    exclusive = True
    advice = "vlm.FastVGGT works on it"

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.encoder, self.special, self.patch, self.attention = self._parts()
        if not self.attention:
            raise UnsupportedTargetError(
                f"this {type(target).__name__} has no block that attends over several views: there is nothing to merge"
            )

    def _parts(self) -> tuple[Any, int, int, list[torch.nn.Module]]:
        """The encoder, its special tokens of a view, the side of a patch, and the attention over all views."""
        for module in self.target.modules():
            if hasattr(module, "global_blocks"):  # VGGT's aggregator
                attention = [block.attn for block in module.global_blocks]
                return module, module.patch_start_idx, module.patch_size, attention
            vit: Any = getattr(module, "pretrained", None)
            if hasattr(vit, "alt_start"):  # Depth Anything's: from there on every second block
                first = vit.alt_start if vit.alt_start >= 0 else len(vit.blocks)
                chosen = [block.attn for i, block in enumerate(vit.blocks) if i >= first and i % 2]
                return module, 1 + vit.num_register_tokens, vit.patch_size, chosen
        raise UnsupportedTargetError(
            f"this {type(self.target).__name__} has neither the `global_blocks` of VGGT nor the `alt_start` of Depth"
            " Anything 3: pass the model that these packages make"
        )

    def views(self, pictures: torch.Tensor) -> Views:
        """The sequence that these pictures `[B, S, 3, H, W]` become."""
        count, height, width = pictures.shape[1], *pictures.shape[-2:]
        return Views(count, int(self.special), height // self.patch, width // self.patch)

    def check_memory(self, views: Views, pictures: torch.Tensor) -> None:
        """Raise before anything is computed if one block alone takes more memory than is free.

        Raises
        ------
        MemoryLimitError
        """
        width = next(self.attention[0].parameters()).shape[-1]
        needed = len(pictures) * views.tokens * width * BLOCK * pictures.element_size()
        free = free_memory(pictures.device)
        if free is not None and needed > free:
            raise MemoryLimitError(
                f"{views.count} views of {views.rows} x {views.columns} patches need at least {needed / 2**30:.1f} GiB,"
                f" and {free / 2**30:.1f} GiB are free on {pictures.device}: give fewer views, or smaller ones"
            )
