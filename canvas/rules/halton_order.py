"""HaltonOrder: codes that are drawn together lie far apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_count
from mmaccel.registry import register

from ..method import PICTURE_EXAMPLE, PICTURES, Block, CommitRule


@register("canvas")
@dataclass(frozen=True)
class HaltonOrder(CommitRule):
    """Commits the codes of a picture in the order of a Halton sequence, evenly spread, in a number of steps of its own.

    Lossy. The surest codes lie side by side, and say nothing of each other when they are drawn in one step; codes far
    apart need to say less. How many of the codes that are to be drawn each step commits follows the cosine of MaskGIT.

    Parameters
    ----------
    steps : int
        Steps until a picture is full, if the call has as many. Default 8; 0 leaves order and steps to the pipeline.

    Raises
    ------
    SettingError
        If `steps` is no whole number of 0 or more.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.HaltonOrder(steps=8))  # doctest: +SKIP
    >>> fast("big red heart on yellow").images[0]  # doctest: +SKIP
    """

    steps: int = 8

    paper: ClassVar[str] = "Halton Scheduler for Masked Generative Image Transformer, Besnier et al., 2025"
    families: ClassVar[frozenset[str] | None] = frozenset({PICTURES})
    replaces: ClassVar[bool] = True
    neutral: ClassVar[dict[str, Any]] = {"steps": 0}
    engaging: ClassVar[dict[str, Any]] = {"steps": 3}
    advice: ClassVar[Advice] = Advice("few steps", "the model's own sense of what is easy", example=PICTURE_EXAMPLE)

    def __post_init__(self) -> None:
        self._require(is_count(self.steps, 0), "steps", "a whole number of 0 or more")

    def takes(self, steps: int) -> int:
        return min(self.steps, steps)

    def choose(self, block: Block) -> torch.Tensor:
        assert block.grid is not None
        now = block.masked.sum(1)
        first = block.memory.setdefault("masked", now)  # codes to draw in all, which may be a part of the picture
        left = math.cos(math.pi / 2 * min((block.step + 1) / self.takes(block.steps), 1))
        counts = (now - (first * left + 1e-6).long()).clamp(min=1)
        ranks = torch.tensor(ranks_of(*block.grid), dtype=torch.float32, device=now.device)
        return block.surest(counts, -ranks.expand(block.masked.shape))


@cache
def ranks_of(rows: int, columns: int) -> tuple[int, ...]:
    """When each cell of a grid, row by row, is first hit by the Halton sequence of bases 2 and 3.

    Examples
    --------
    >>> ranks_of(2, 2)
    (2, 1, 0, 3)
    """
    found: dict[int, int] = {}
    number = 1
    while len(found) < rows * columns:
        place = int(_inverse(number, 2) * rows) * columns + int(_inverse(number, 3) * columns)
        found.setdefault(place, len(found))
        number += 1
    return tuple(found[place] for place in range(rows * columns))


def _inverse(number: int, base: int) -> float:
    """The digits of a number mirrored at the point: van der Corput's sequence."""
    result, share = 0.0, 1.0
    while number:
        share /= base
        number, digit = divmod(number, base)
        result += share * digit
    return result
