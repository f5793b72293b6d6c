"""FrameFusion: inside the language model, tokens merge with similar ones of the frame before; lossy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn.functional import cosine_similarity

from mmaccel.method import Advice, is_count, is_number
from mmaccel.registry import register

from .clustering import means
from .compressor import CACHE_METHODS, Compressor
from .inner import by_attention
from .row import Cut, Row


@register("vlm")
@dataclass(frozen=True)
class FrameFusion(Compressor):
    """Merge tokens that stay alike from frame to frame, then drop those that the prompt's end attends to least; lossy.

    FrameFusion (Fu et al., 2024). Both happen inside the language model: merging before layer `layer`, dropping before
    the next one. The vision tower and the earlier layers see everything.

    Parameters
    ----------
    keep
        Share of the visual tokens to keep, above 0 and up to 1 (plain), default 0.3 as the paper's; None where
        `tokens` is given.
    tokens
        Number of visual tokens to keep in each prompt instead; None (default) to go by `keep`.
    threshold
        Cosine of hidden states above which two tokens at one place in consecutive frames merge into their mean;
        default 0.6 as the paper's. No more tokens merge than the budget requires.
    layer
        The first layer that has fewer tokens, default 1.

    Notes
    -----
    The kept tokens keep their positions.

    Raises
    ------
    SettingError
        If a setting is out of range, or not exactly one of `keep` and `tokens` is given.

    Examples
    --------
    >>> print(FrameFusion(threshold=0.8))
    vlm.FrameFusion(threshold=0.8)
    """

    keep: float | None = 0.3
    threshold: float = 0.6
    layer: int = 1

    paper: ClassVar[str] = "FrameFusion: Combining Similarity and Importance for Video Token Reduction, 2024"
    advice: ClassVar[Advice] = Advice(
        "Video that stands still, and models whose tower must not be touched.",
        "The layers before see everything, and only the others gain.",
    )
    excludes: ClassVar[frozenset[str]] = CACHE_METHODS
    engaging: ClassVar[dict[str, Any]] = {"keep": 0.25, "layer": 2}
    compares_frames: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_number(self.threshold, -1, 1), "threshold", "a cosine between -1 and 1")
        self._require(is_count(self.layer), "layer", "a whole number of at least 1")

    def cuts(self, layers: int) -> dict[int, Cut]:
        return {self.layer: self._merge, self.layer + 1: by_attention(self.count, merge=False)}

    def _merge(self, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
        if not row.visual.any():  # a prompt of words among others
            return row.keeping(row.visual)
        order, alike = _neighbours(row)
        joins = alike >= self.threshold
        spare = len(order) - self.count(row.total)
        if int(joins.sum()) > spare:
            joins = torch.zeros_like(joins)
            joins[alike.sort(descending=True, stable=True).indices[: max(0, spare)]] = True
        group = (~joins).cumsum(0) - 1
        first = order[~joins]
        hidden = row.hidden.clone()
        hidden[first] = means(row.hidden[order], group, len(first))[0].to(hidden.dtype)
        return row.keeping(first, hidden)


def _neighbours(row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    """Visual tokens sorted by place, each place in the order of time, and the cosine of each with the one before it.

    Returns
    -------
    order : int64 `[V]`, alike : float32 `[V]`, -2 for the first of a place.
    """
    visual = row.visual.nonzero().squeeze(1)
    number, anchor = row.number[visual], row.anchor[visual]
    cells = torch.tensor(row.cells, device=anchor.device)[number]
    place = number * int(max(row.cells)) + anchor % cells
    sorting = (place * (int(anchor.max()) + 1) + anchor).argsort()
    order, place = visual[sorting], place[sorting]
    alike = torch.full((len(order),), -2.0, device=order.device)
    same = place[1:] == place[:-1]
    cosine = cosine_similarity(row.hidden[order[1:]].float(), row.hidden[order[:-1]].float(), dim=-1)
    alike[1:] = torch.where(same, cosine, alike[1:])
    return order, alike
