"""CoherentContext: what the model said in several steps, and meant each time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_count, is_number
from mmaccel.registry import register

from ..method import MASKS, PICTURES, Block, CommitRule


@register("canvas")
@dataclass(frozen=True)
class CoherentContext(CommitRule):
    """Commits tokens that were likeliest in each of the last steps, and likely on their mean.

    Lossy. A token that is sure in one context and not in the next waits.

    Parameters
    ----------
    threshold : float
        Mean chance above which a token is committed; 1 commits nothing beside what the pipeline commits. Default 0.9.
    steps : int
        Passes of a block over which chances are averaged, this one included. Default 3; of the 2 and 3 that are
        reported, 2 kept as many lists of tiny-canvas in fewer passes.

    Raises
    ------
    SettingError
        If `threshold` is not between 0 and 1, or `steps` no whole number of 1 or more.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.CoherentContext())  # doctest: +SKIP
    >>> fast("list all things", gen_length=128, threshold=2).texts  # doctest: +SKIP
    """

    threshold: float = 0.9
    steps: int = 3

    paper: ClassVar[str] = "Coherent Contextual Decoding of diffusion language models, 2025"
    families: ClassVar[frozenset[str] | None] = frozenset({MASKS, PICTURES})
    neutral: ClassVar[dict[str, Any]] = {"threshold": 1.0}
    engaging: ClassVar[dict[str, Any]] = {"threshold": 0.0}
    advice: ClassVar[Advice] = Advice("models that change their mind", "the distributions of the last steps in memory")

    def __post_init__(self) -> None:
        self._require(is_number(self.threshold, 0, 1), "threshold", "between 0 and 1")
        self._require(is_count(self.steps), "steps", "a whole number of 1 or more")

    def choose(self, block: Block) -> torch.Tensor:
        chances = block.logits.softmax(-1)
        block.memory["past"] = past = [*block.memory.get("past", []), chances][-self.steps :]
        if len(past) < self.steps:
            return torch.zeros_like(block.masked)
        agreed = torch.stack([each.argmax(-1) == block.tokens for each in past]).all(0)
        mean = torch.stack(past).mean(0).gather(-1, block.tokens[..., None])[..., 0]
        return block.masked & agreed & (mean > self.threshold)
