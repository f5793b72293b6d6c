"""S2D2: the same weights, reading word by word, verify what they drafted as a block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_number
from mmaccel.registry import register

from ..method import Block, CommitRule


@register("canvas")
@dataclass(frozen=True)
class S2D2(CommitRule):
    """Drafts the leftmost masked tokens of a block at once, and lets the model verify them word by word in one pass.

    Lossy against the pipeline's own steps: the span that is verified is what the model writes word by word (its
    tokens where decoding is greedy, its distribution where it is sampled). A draft is accepted with the chance
    min(1, p / q), with p of the reading and q of the block; the first that is not is drawn anew, from what p has more
    than q, and ends the span. A pass to verify is made only where it promises more than it costs; else tokens above
    the threshold are committed. For block-causal models whose weights also write word by word, as tiny-canvas.

    Parameters
    ----------
    threshold : float
        Chance above which a token is committed where nothing is verified. Default 0.85, of the paper for SDAR.
    cost : float
        Tokens that a pass to verify costs. Default 1, of the paper for SDAR.
    least : float
        Tokens that it must promise beyond its cost, by the entropy of the drafts. Default 0, of the paper for SDAR.

    Raises
    ------
    SettingError
        If `threshold` is not between 0 and 1, or another setting below 0.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.S2D2(), canvas.PrefixCache())  # doctest: +SKIP
    >>> fast("list all things", gen_length=128, threshold=2).texts  # doctest: +SKIP
    """

    threshold: float = 0.85
    cost: float = 1.0
    least: float = 0.0

    paper: ClassVar[str] = "S2D2: Fast Decoding for Diffusion LLMs via Training-Free Self-Speculation, 2026"
    neutral: ClassVar[dict[str, Any]] = {"threshold": 1.0, "cost": 1e9}
    engaging: ClassVar[dict[str, Any]] = {"threshold": 0.0}
    advice: ClassVar[Advice] = Advice("models that fill blocks and also write word by word", "a pass to verify")

    def __post_init__(self) -> None:
        self._require(is_number(self.threshold, 0, 1), "threshold", "between 0 and 1")
        self._require(is_number(self.cost, 0), "cost", "0 or more")
        self._require(is_number(self.least, 0), "least", "0 or more")

    def choose(self, block: Block) -> torch.Tensor:
        sure = block.masked & (block.chances > self.threshold)
        span = block.leftmost
        entropy = torch.distributions.Categorical(logits=block.logits).entropy() / math.log(block.logits.shape[-1])
        chances = torch.where(span, (-entropy).exp(), span.new_ones((), dtype=entropy.dtype)).cumprod(1)
        promise = (chances * span).sum(1) - self.cost
        if block.read is None or not bool((promise >= self.least).any()):
            return sure
        read = block.read(block.tokens).float()
        taken, instead = _verdict(block, read)
        span = span & (promise >= self.least)[:, None]
        agreed = span & ((~taken & span).cumsum(1) == 0)
        ends = span & ~taken & ((~taken & span).cumsum(1) == 1)
        block.tokens.copy_(torch.where(ends, instead, block.tokens))
        return torch.where((promise >= self.least)[:, None], agreed | ends, sure)


def _verdict(block: Block, read: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether each draft is accepted, and what stands in its place if not, both `[B, L]`."""
    if block.drawn is None:
        best = read.argmax(-1)
        return best == block.tokens, best
    p, q = block.drawn(read), block.drawn(block.logits)
    own = [each.gather(-1, block.tokens[..., None])[..., 0] for each in (p, q)]
    drawn = torch.rand(own[0].shape, generator=block.generator, device=p.device)
    more = (p - q).clamp(min=0)
    more = torch.where(more.sum(-1, keepdim=True) > 0, more, p)
    instead = torch.multinomial(more.flatten(0, 1), 1, generator=block.generator).view_as(block.tokens)
    return drawn < own[0] / own[1].clamp(min=1e-9), instead
