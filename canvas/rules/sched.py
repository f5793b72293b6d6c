"""SchED: all that is left at once, by a threshold that falls smoothly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_number
from mmaccel.registry import register

from ..method import Block, CommitRule


@register("canvas")
@dataclass(frozen=True)
class SchED(CommitRule):
    """Commits all masked tokens of a block when the mean gap of their two best logits passes a falling threshold.

    Lossy. As `Prophet`, with a threshold that falls in a half cosine from `first` to `last` over the schedule of a
    block instead of in three stages.

    Parameters
    ----------
    first : float
        Mean gap of logits at the beginning of a block. Default 12, by trial on tiny-canvas, where less loses lists.
    last : float
        The same at its end. Default 2.5, that of `Prophet`.

    Raises
    ------
    SettingError
        If a gap is below 0.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.SchED())  # doctest: +SKIP
    >>> fast("list all things", gen_length=128, threshold=2).texts  # doctest: +SKIP
    """

    first: float = 12.0
    last: float = 2.5

    paper: ClassVar[str] = "SchED: progress-aware confidence schedules for diffusion language models, 2025"
    neutral: ClassVar[dict[str, Any]] = {"first": 1e9, "last": 1e9}
    engaging: ClassVar[dict[str, Any]] = {"first": 0.0, "last": 0.0}
    advice: ClassVar[Advice] = Advice("short answers that are sure as a whole", "one unsure token among many sure ones")

    def __post_init__(self) -> None:
        for name in ("first", "last"):
            self._require(is_number(getattr(self, name), 0), name, "0 or more")

    def choose(self, block: Block) -> torch.Tensor:
        progress = torch.tensor(min(block.step / max(block.steps - 1, 1), 1.0))
        threshold = self.last + (self.first - self.last) * (1 + torch.cos(torch.pi * progress)) / 2
        return block.masked & (block.mean_gap >= float(threshold))[:, None]
