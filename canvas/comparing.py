"""How `compare` runs, judges and shows a canvas; its simple alternative is fewer steps a block."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from mmaccel.adapter import Adapter
from mmaccel.comparison.difference import agreement
from mmaccel.comparison.trial import BaseTrial, Metric, Shown, seeded

from .method import MASKS, NOISE

STEPS = {MASKS: 32, NOISE: 48}  # of the pipelines of each family, if the call says nothing
AGREED = Metric("agreed", "same texts", "share of texts that equal those of the plain pipeline, word for word", ".0%")
LIKE = Metric(
    "like", "same words", "words that a text shares with the plain one in order, times two, over those of both", ".0%"
)


class CanvasTrial(BaseTrial):
    """A call of the pipeline with its own arguments."""

    unit: ClassVar[str] = "steps"
    metrics = (AGREED, LIKE)

    def __init__(self, adapter: Adapter, inputs: dict[str, Any], processor: Any = None) -> None:
        super().__init__(adapter, inputs, processor)
        self.count = steps_of_block(adapter, inputs)
        self.draws = adapter.family == NOISE or float(inputs.get("temperature", 0)) > 0
        self.seedless = "" if self.draws else "at temperature 0 nothing is drawn"

    def run(self, target: Any, seed: int, fewer: int | None = None) -> torch.Tensor:
        call = self.arguments(target, self.inputs)
        call.pop("return_dict", None)
        if fewer is not None:
            call["num_inference_steps"] = fewer
        with seeded(seed):
            sequences: torch.Tensor = target(**call).sequences
        return sequences

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        return self.texts(one) == self.texts(other)

    def judge(self, plain: torch.Tensor, other: torch.Tensor) -> dict[str, float]:
        return dict(zip((AGREED.key, LIKE.key), agreement(self.texts(plain), self.texts(other)), strict=True))

    def show(self, output: torch.Tensor) -> Shown:
        return Shown(texts=self.texts(output))

    def texts(self, sequences: torch.Tensor) -> list[str]:
        """Texts up to their end; without a tokenizer the numbers of their tokens."""
        pipe = self.target
        end = self.inputs.get("eos_token_id", pipe.eos_token_id)
        tokenizer = getattr(pipe, "tokenizer", getattr(pipe, "processor", None))
        rows = [until(row, end) for row in sequences.tolist()]
        if tokenizer is None:
            return [" ".join(map(str, row)) for row in rows]
        return [text.strip() for text in tokenizer.batch_decode(rows, skip_special_tokens=True)]


def steps_of_block(adapter: Adapter, inputs: dict[str, Any]) -> int:
    """The most steps that a call makes for a block: of masks no more than there are, whatever it asks for."""
    asked = int(inputs.get("num_inference_steps", STEPS[adapter.family]))
    if adapter.family != MASKS:
        return asked
    length = int(inputs.get("block_length") or adapter.target.scheduler.config.block_length)
    written = int(inputs["gen_length"]) // int(inputs.get("minimal_topk", 1)) if "gen_length" in inputs else asked
    return max(min(asked, length, written), 1)


def until(row: list[int], end: int | None) -> list[int]:
    """The tokens before the end of a text.

    Examples
    --------
    >>> until([5, 6, 2, 7], 2)
    [5, 6]
    """
    return row[: row.index(end)] if end in row else row
