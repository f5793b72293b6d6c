"""FactorCommit: as many tokens as their confidence allows together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_number
from mmaccel.registry import register

from ..method import MASKS, NOISE, PICTURES, Block, CommitRule


@register("canvas")
@dataclass(frozen=True)
class FactorCommit(CommitRule):
    """Commits the n surest tokens for the largest n with (n + 1)(1 - c) < factor, where c is the last one's chance.

    Lossy. Where a threshold looks at each token alone, this asks for more certainty the more tokens are committed
    together.

    Parameters
    ----------
    factor : float
        Larger commits more; 0 nothing beside what the pipeline commits. Default 0.25, the most that kept all lists of
        tiny-canvas.

    Raises
    ------
    SettingError
        If `factor` is below 0.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.FactorCommit())  # doctest: +SKIP
    >>> fast("list all things", gen_length=128, threshold=2).texts  # doctest: +SKIP
    """

    factor: float = 0.25

    paper: ClassVar[str] = "Fast-dLLM, Wu et al., 2025"
    families: ClassVar[frozenset[str] | None] = frozenset({MASKS, NOISE, PICTURES})
    neutral: ClassVar[dict[str, Any]] = {"factor": 0.0}
    engaging: ClassVar[dict[str, Any]] = {"factor": 8.0}
    advice: ClassVar[Advice] = Advice("texts of which much is sure at once", "words that contradict each other, rarely")

    def __post_init__(self) -> None:
        self._require(is_number(self.factor, 0), "factor", "0 or more")

    def choose(self, block: Block) -> torch.Tensor:
        chances = block.chances.masked_fill(~block.masked, 0)
        falling = chances.sort(1, descending=True).values
        numbers = torch.arange(2, falling.shape[1] + 2, device=falling.device)
        fits = (numbers * (1 - falling) < self.factor) & (falling > 0)
        counts = torch.where(fits, numbers - 1, 0).amax(1)
        return block.surest(counts, chances)
