"""AdaptiveBlocks: a block ends where the model puts the end of a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.method import Advice, is_count, is_number
from mmaccel.registry import register

from ..method import UNSURE
from .outlook import Outlook, Seen


@register("canvas")
@dataclass(frozen=True)
class AdaptiveBlocks(Outlook):
    """Fills the pipeline's block in parts that end at line ends, such as the steps of an argument.

    Lossy. AdaBlock. The part begins at the first masked token and looks `span` tokens ahead; it ends at the surest
    `delimiter` there if that has the chance `least`, else after `default` tokens. What stands behind it waits: the
    model seems unsure of it. At a temperature above 0 runs are plain: what waits would be drawn at random.

    Parameters
    ----------
    delimiter : str
        Whose last token ends a part; a backslash and n stand for a line end, the default, as in the paper.
    span : int
        Tokens in which a delimiter is looked for. Default 16.
    default : int
        Tokens of a part without a delimiter. Default 8; a `default` as long as the block waits for nothing.
    least : float
        Chance that a delimiter needs. Default 0.3, of the authors' code; 1 looks for none.

    Raises
    ------
    SettingError
        If a number of tokens is below 1, or `least` not between 0 and 1.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.AdaptiveBlocks(), canvas.FactorCommit())  # doctest: +SKIP
    >>> fast("Name three rivers.", gen_length=128, threshold=2).texts  # doctest: +SKIP
    """

    delimiter: str = r"\n"
    span: int = 16
    default: int = 8
    least: float = 0.3

    paper: ClassVar[str] = "AdaBlock-dLLM: Semantic-Aware Diffusion LLM Inference via Adaptive Block Size, 2025"
    role: ClassVar[str] = "blocks"
    neutral: ClassVar[dict[str, Any]] = {"default": 4096, "least": 1.0}
    engaging: ClassVar[dict[str, Any]] = {"default": 1, "least": 1.0}
    advice: ClassVar[Advice] = Advice("long blocks and reasoning in lines", "steps, where a block has many lines")

    def __post_init__(self) -> None:
        self._require(isinstance(self.delimiter, str) and self.delimiter != "", "delimiter", "a text")
        for name in ("span", "default"):
            self._require(is_count(getattr(self, name)), name, "a whole number of 1 or more")
        self._require(is_number(self.least, 0, 1), "least", "between 0 and 1")

    def adjust(self, seen: Seen) -> torch.Tensor:
        masked = seen.sample == seen.mask
        places = torch.arange(masked.shape[1], device=masked.device)
        first = torch.where(masked, places, masked.shape[1]).amin(1, keepdim=True)
        last = first + self.default - 1
        token = self._end_of_part(seen.tokenizer) if self.least < 1 else None
        if token is not None:
            chances = seen.logits.float().softmax(-1)[..., token]
            chances = torch.where(masked, chances, (seen.sample == token).float())
            near = (places >= first) & (places < first + self.span)
            best = chances.masked_fill(~near, -1).max(1, keepdim=True)
            last = torch.where(best.values >= self.least, best.indices, last)
        waits = masked & (places > last)
        return torch.where(waits[..., None], seen.logits * UNSURE, seen.logits)

    def _end_of_part(self, tokenizer: Any) -> int | None:
        """The last token of the delimiter, where there is one."""
        if tokenizer is None:
            return None
        found = tokenizer.encode(self.delimiter.replace(r"\n", "\n"), add_special_tokens=False)
        return int(found[-1]) if found else None
