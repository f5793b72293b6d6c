"""EarlyEnd: the end of a text is committed when the text is there, and not before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_share
from mmaccel.registry import register

from .outlook import Outlook, Seen


@register("canvas")
@dataclass(frozen=True)
class EarlyEnd(Outlook):
    """Makes the model less sure of the end of the text while a block is empty, so that words are committed first.

    Lossy. EOSER, "early rejection of the end". As the pipeline stops at an end before which nothing is masked, no
    steps go to what stands behind it, and no text is cut by an end that was committed early. The chance of the end
    is multiplied by a factor that rises from `first` to 1 with the share of the block that is filled; it stays just
    above that of every other token. At a temperature above 0 runs are plain: other tokens would be drawn.

    Parameters
    ----------
    first : float
        The factor in an empty block. Default 0.4, of the authors' code; 1 changes nothing.

    Raises
    ------
    SettingError
        If `first` is not above 0, or above 1.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.EarlyEnd(), canvas.FactorCommit())  # doctest: +SKIP
    >>> fast("list all things", gen_length=128, threshold=2).texts  # doctest: +SKIP
    """

    first: float = 0.4

    paper: ClassVar[str] = "Taming Masked Diffusion Language Models (EOSER and ASS), Yang et al., 2025"
    role: ClassVar[str] = "end of the text"
    neutral: ClassVar[dict[str, Any]] = {"first": 1.0}
    engaging: ClassVar[dict[str, Any]] = {"first": 1e-6}
    advice: ClassVar[Advice] = Advice("texts shorter than their canvas", "more steps where a text fills its canvas")

    def __post_init__(self) -> None:
        self._require(is_share(self.first), "first", "above 0 and at most 1")

    def adjust(self, seen: Seen) -> torch.Tensor:
        if seen.end is None:
            return seen.logits
        logits = seen.logits.clone()
        filled = (seen.sample != seen.mask).float().mean(1, keepdim=True)
        factor = self.first + (1 - self.first) * filled
        chance = logits.float().softmax(-1)[..., seen.end]
        lower = logits[..., seen.end] + (factor * (1 - chance) / (1 - factor * chance).clamp(min=1e-9)).log()
        own, logits[..., seen.end] = logits[..., seen.end].clone(), -torch.inf
        others = logits.amax(-1)
        above = torch.nextafter(others, others.new_full((), torch.inf))
        logits[..., seen.end] = torch.where(own > others, torch.maximum(lower, above), own).to(logits.dtype)
        return logits
