"""From the patches of a vision tower to the tokens of the language model: what each of these received."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import adaptive_avg_pool2d

from mmaccel import private

from ..input.visual import Visual
from .tower import Probe


def lay_grids(probe: Probe, found: list[Visual], grid_thw: torch.Tensor, tower: Any, order: str) -> None:
    """Give visuals of any size the scores and keys of their patches, which come in one row.

    Parameters
    ----------
    order
        ``"merged"`` if the patches of one token come one after the other, ``"rows"`` if those of one row of a frame do.
    """
    values = torch.cat([torch.cat(probe.received)[:, None], torch.cat(probe.keys).float()], 1)
    patches = grid_thw.prod(1).tolist()
    if order == "rows":
        laid = torch.cat([_pooled(part, tuple(grid), visual) for part, grid, visual in
                          zip(values.split(patches), grid_thw.tolist(), found, strict=True)])  # fmt: skip
    else:
        laid = values.unflatten(0, (sum(len(visual.features) for visual in found), -1)).mean(1)
        if getattr(tower, "window_size", None):
            laid = laid[private.vision_window_index(tower, grid_thw).argsort()]
    _share(laid, found)


def _pooled(values: torch.Tensor, grid: tuple[int, int, int], visual: Visual) -> torch.Tensor:
    planes = values.unflatten(0, grid).permute(0, 3, 1, 2)
    return adaptive_avg_pool2d(planes, visual.grid[1:]).flatten(2).transpose(1, 2).flatten(0, 1)


def lay_tiles(probe: Probe, found: list[Visual], tower: Any) -> None:
    """Give visuals of equal frames the scores and keys of their tiles, of which the tower had one for each frame."""
    values = torch.cat([torch.stack(probe.received)[..., None], torch.stack(probe.keys).float()], 2)
    size = found[0].grid[1:]
    skip = int(_class_token(tower))
    side = round((values.shape[1] - skip) ** 0.5)
    planes = values[:, skip:].transpose(1, 2).unflatten(2, (side, side))
    _share(adaptive_avg_pool2d(planes, size).flatten(2).transpose(1, 2).flatten(0, 1), found)


def _class_token(tower: Any) -> bool:
    """Whether the tower has a token before the patches."""
    embeddings = getattr(getattr(tower, "vision_model", tower), "embeddings", None)
    return hasattr(embeddings, "class_embedding") or getattr(embeddings, "cls_token", None) is not None


def _share(laid: torch.Tensor, found: list[Visual]) -> None:
    """Hand out rows `[L, 1 + E]`, the score and the key of each token."""
    for visual, part in zip(found, laid.split([len(visual.features) for visual in found]), strict=True):
        frames = part.unflatten(0, (visual.grid[0], -1))
        visual.scores, visual.key = frames[..., 0], frames[..., 1:]
