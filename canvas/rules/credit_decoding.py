"""CreditDecoding: tokens that were likely again and again are committed sooner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_number
from mmaccel.registry import register

from ..method import MASKS, PICTURES, Block, CommitRule


@register("canvas")
@dataclass(frozen=True)
class CreditDecoding(CommitRule):
    """Gives credit to what was likeliest at a position in earlier steps, and commits above a threshold.

    Lossy. Credit falls by `decay` each step, grows by the chance to the `power` of the likeliest token, and adds
    `weight` times the logarithm of 1 + credit to that token's logit. It begins anew in each block.

    Parameters
    ----------
    threshold : float
        Chance, with credit, above which a token is committed. Default 0.9.
    decay : float
        Share of the credit that is left after a step, from 0 to 1. Default 0.65; the other set of the paper has 0.8.
    power : float
        Of the chance that a step adds as credit, 0 or more: less counts small chances like large ones. Default 0.5;
        the other set has 0.2.
    weight : float
        How much credit adds to a logit, 0 or more. Default 0.7; 0 commits nothing beside what the pipeline commits.

    Raises
    ------
    SettingError
        If `threshold` or `decay` is not between 0 and 1, or another is below 0.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.CreditDecoding())  # doctest: +SKIP
    >>> fast("list all things", gen_length=128, threshold=2).texts  # doctest: +SKIP
    """

    threshold: float = 0.9
    decay: float = 0.65
    power: float = 0.5
    weight: float = 0.7

    paper: ClassVar[str] = "CreditDecoding: Accelerating Parallel Decoding with Trace Credits, arXiv 2510.06133, 2025"
    families: ClassVar[frozenset[str] | None] = frozenset({MASKS, PICTURES})
    neutral: ClassVar[dict[str, Any]] = {"weight": 0.0}
    engaging: ClassVar[dict[str, Any]] = {"threshold": 0.0}
    advice: ClassVar[Advice] = Advice("texts that are sure early and committed late", "a second look at all logits")

    def __post_init__(self) -> None:
        self._require(is_number(self.threshold, 0, 1), "threshold", "between 0 and 1")
        self._require(is_number(self.decay, 0, 1), "decay", "between 0 and 1")
        self._require(is_number(self.power, 0), "power", "0 or more")
        self._require(is_number(self.weight, 0), "weight", "0 or more")

    def adjust(self, logits: torch.Tensor, masked: torch.Tensor, memory: dict[str, Any]) -> torch.Tensor:
        chances, tokens = logits.float().softmax(-1).max(-1, keepdim=True)
        credit = memory.get("credit", torch.zeros_like(logits, dtype=torch.float32)) * self.decay
        memory["credit"] = credit = credit.scatter_add(2, tokens, chances**self.power)
        return logits + self.weight * (1 + credit).log().to(logits.dtype)

    def choose(self, block: Block) -> torch.Tensor:
        return block.masked & (block.chances > self.threshold)
