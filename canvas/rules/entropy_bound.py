"""EntropyBound: as many tokens as can be committed for a bounded error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_number
from mmaccel.registry import register

from ..method import MASKS, NOISE, PICTURES, Block, CommitRule


@register("canvas")
@dataclass(frozen=True)
class EntropyBound(CommitRule):
    """Commits the tokens of lowest entropy while the sum of entropies less the largest stays within a bound.

    Lossy. That difference bounds what the committed tokens can say of each other, and so the error of committing them
    independently.

    Parameters
    ----------
    bound : float
        In nats; 0 commits nothing beside what the pipeline commits. Default 0.1, as in the paper's smallest setting.

    Raises
    ------
    SettingError
        If `bound` is below 0.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.EntropyBound(0.1))  # doctest: +SKIP
    >>> fast("list all things", gen_length=128, threshold=2).texts  # doctest: +SKIP
    """

    bound: float = 0.1

    paper: ClassVar[str] = "EB-Sampler: Accelerated Sampling from Masked Diffusion Models, Ben-Hamu et al., 2025"
    families: ClassVar[frozenset[str] | None] = frozenset({MASKS, NOISE, PICTURES})
    neutral: ClassVar[dict[str, Any]] = {"bound": 0.0}
    engaging: ClassVar[dict[str, Any]] = {"bound": 30.0}
    advice: ClassVar[Advice] = Advice("the same, where a bound on the error is wanted", "the entropy of each position")

    def __post_init__(self) -> None:
        self._require(is_number(self.bound, 0), "bound", "0 or more")

    def choose(self, block: Block) -> torch.Tensor:
        entropies = torch.distributions.Categorical(logits=block.logits).entropy()
        rising = entropies.masked_fill(~block.masked, torch.inf).sort(1).values
        before = rising.cumsum(1) - rising  # of rising numbers the largest is the last
        counts = ((before <= self.bound) & rising.isfinite()).sum(1)
        return block.surest(counts, -entropies)
