"""LocalLeap: what stands near a sure token needs less certainty itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from mmaccel.method import Advice, is_count, is_number
from mmaccel.registry import register

from ..method import Block, CommitRule


@register("canvas")
@dataclass(frozen=True)
class LocalLeap(CommitRule):
    """Commits sure tokens, and beside each of them its neighbours at a lower threshold.

    Lossy. Sure tokens are anchors: what they say is known to their neighbours.

    Parameters
    ----------
    anchor : float
        Chance above which a token is an anchor. Default 0.9, of the authors' code; at 1 there are none.
    near : float
        Chance above which a neighbour of an anchor is committed. Default 0.75, of the authors' code.
    radius : int
        Positions on each side of an anchor that are its neighbours. Default 4, of the authors' code.

    Raises
    ------
    SettingError
        If a chance is not between 0 and 1, or `radius` below 0.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.LocalLeap())  # doctest: +SKIP
    >>> fast("list all things", gen_length=128, threshold=2).texts  # doctest: +SKIP
    """

    anchor: float = 0.9
    near: float = 0.75
    radius: int = 4

    paper: ClassVar[str] = "LocalLeap: anchors and their neighbours in diffusion language models, 2025"
    neutral: ClassVar[dict[str, Any]] = {"anchor": 1.0}
    engaging: ClassVar[dict[str, Any]] = {"anchor": 0.0, "near": 0.0}
    advice: ClassVar[Advice] = Advice("the same, with a lower threshold where it is safe", "one pooling a step")

    def __post_init__(self) -> None:
        self._require(is_number(self.anchor, 0, 1), "anchor", "between 0 and 1")
        self._require(is_number(self.near, 0, 1), "near", "between 0 and 1")
        self._require(is_count(self.radius, 0), "radius", "a whole number of 0 or more")

    def choose(self, block: Block) -> torch.Tensor:
        anchors = block.masked & (block.chances > self.anchor)
        reach = F.max_pool1d(anchors[:, None].float(), 2 * self.radius + 1, stride=1, padding=self.radius)[:, 0] > 0
        return anchors | (block.masked & reach & (block.chances > self.near))
