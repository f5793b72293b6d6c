"""Prophet: all that is left at once, as soon as the model has made up its mind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_number
from mmaccel.registry import register

from ..method import Block, CommitRule


@register("canvas")
@dataclass(frozen=True)
class Prophet(CommitRule):
    """Commits all masked tokens of a block when the gap between their two best logits is wide enough on the mean.

    Lossy. What counts as wide falls in the thirds of a block's schedule.

    Parameters
    ----------
    first : float
        Mean gap of logits at which the rest is committed, in the first third. Default 7.5, of the authors' code.
    middle : float
        The same in the second third. Default 5.
    last : float
        The same in the last third. Default 2.5.

    Raises
    ------
    SettingError
        If a gap is below 0.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.Prophet())  # doctest: +SKIP
    >>> fast("list all things", gen_length=128, threshold=2).texts  # doctest: +SKIP
    """

    first: float = 7.5
    middle: float = 5.0
    last: float = 2.5

    paper: ClassVar[str] = "Diffusion Language Models Know the Answer Before Decoding, Li et al., 2025"
    neutral: ClassVar[dict[str, Any]] = {"first": 1e9, "middle": 1e9, "last": 1e9}
    engaging: ClassVar[dict[str, Any]] = {"first": 0.0}
    advice: ClassVar[Advice] = Advice("short answers that are sure as a whole", "one unsure token among many sure ones")

    def __post_init__(self) -> None:
        for name in ("first", "middle", "last"):
            self._require(is_number(getattr(self, name), 0), name, "0 or more")

    def choose(self, block: Block) -> torch.Tensor:
        wide = (self.first, self.middle, self.last)[min(3 * block.step // block.steps, 2)]
        return block.masked & (block.mean_gap >= wide)[:, None]
