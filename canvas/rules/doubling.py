"""Doubling: twice as many tokens in each step, and the end of the text not too early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_number
from mmaccel.registry import register

from ..method import MASKS, PICTURES, Block, CommitRule


@register("canvas")
@dataclass(frozen=True)
class Doubling(CommitRule):
    """Commits 1 token in the first step of a block, then 2, 4, 8: the more is known, the more can be said.

    Lossy. The "ascending step sizes" of EOSER; a block of 32 takes 6 steps, whatever the model says.

    Parameters
    ----------
    base : float
        By which the number of tokens grows each step. Default 2, as in the paper; 1 commits nothing beside what the
        pipeline commits.

    Raises
    ------
    SettingError
        If `base` is below 1.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.Doubling())  # doctest: +SKIP
    >>> fast("list all things", gen_length=128, threshold=2).texts  # doctest: +SKIP
    """

    base: float = 2.0

    paper: ClassVar[str] = "Taming Masked Diffusion Language Models (EOSER and ASS), Yang et al., 2025"
    families: ClassVar[frozenset[str] | None] = frozenset({MASKS, PICTURES})
    neutral: ClassVar[dict[str, Any]] = {"base": 1.0}
    advice: ClassVar[Advice] = Advice("a fixed number of passes for each block", "mistakes wherever little is sure")

    def __post_init__(self) -> None:
        self._require(is_number(self.base, 1), "base", "1 or more")

    def choose(self, block: Block) -> torch.Tensor:
        count = min(int(self.base**block.step), block.masked.shape[1])
        counts = torch.full((len(block.masked),), count, device=block.masked.device)
        return block.surest(counts, block.chances)
