"""What a caller gave to `generate`, and what is to see the prompt as it was given and not the shortened one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

import torch
from transformers import (
    ExponentialDecayLengthPenalty,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    SuppressTokensAtBeginLogitsProcessor,
)

from mmaccel.decoding.generated_text import copied
from mmaccel.decoding.setting import setting

from .prompt import Prompt

OWN = "transformers."  # modules whose parts keep their types, for which `generate` looks
# Those of them that count tokens from the beginning of the prompt, and where they keep the number.
LENGTHS: dict[type, str] = {
    ExponentialDecayLengthPenalty: "regulation_start",
    ForcedEOSTokenLogitsProcessor: "max_length",
    MaxLengthCriteria: "max_length",
    MinLengthLogitsProcessor: "min_length",
    MinNewTokensLengthLogitsProcessor: "prompt_length_to_skip",
    RepetitionPenaltyLogitsProcessor: "prompt_ignore_length",
    SuppressTokensAtBeginLogitsProcessor: "begin_index",
}


def restore(kwargs: dict[str, Any], prompt: Prompt, target: Any) -> None:
    """Have the caller's streamer, stopping criteria, processors of logits and constraint see the whole prompt."""
    if kwargs.get("streamer") is not None:
        kwargs["streamer"] = WholeStream(kwargs["streamer"], prompt)
    for name, kind, whole in (
        ("stopping_criteria", StoppingCriteriaList, WholeCriterion),
        ("logits_processor", LogitsProcessorList, WholeProcessor),
    ):
        if kwargs.get(name):
            kwargs[name] = kind([_restored(part, whole, prompt) for part in kwargs[name]])
    if kwargs.get("prefix_allowed_tokens_fn") is not None:
        beams = (setting(target, kwargs, "num_beams") or 1) > 1  # which are one row to a constraint
        copies = 1 if beams else setting(target, kwargs, "num_return_sequences") or 1
        kwargs["prefix_allowed_tokens_fn"] = _constraint(kwargs["prefix_allowed_tokens_fn"], prompt, copies)


def _restored(part: Any, whole: Callable[..., Any], prompt: Prompt) -> Any:
    """A criterion or processor for which the shortened prompt is as long as the whole one."""
    if not type(part).__module__.startswith(OWN):
        return whole(part, prompt)
    name = LENGTHS.get(type(part), "")
    counted = getattr(part, name, None)
    if counted is None:
        return part
    moved, length = copy.copy(part), counted + prompt.input_ids.shape[1] - prompt.full_ids.shape[1]
    setattr(moved, name, length.clamp(min=0) if isinstance(length, torch.Tensor) else max(0, length))
    return moved


class WholeStream:
    """A streamer that is given the whole prompt."""

    def __init__(self, streamer: Any, prompt: Prompt) -> None:
        self.streamer = streamer
        self._prompt: Prompt | None = prompt  # until it was streamed, which comes first

    def put(self, value: torch.Tensor) -> None:
        """Pass on tokens as `generate` makes them."""
        if self._prompt is not None:
            value, self._prompt = self._prompt.restored(value.to(self._prompt.full_ids.device)).cpu(), None
        self.streamer.put(value)

    def end(self) -> None:
        """The text is complete."""
        self.streamer.end()


class Whole:
    """What is asked in place of a criterion or processor of the caller, `inner`, which reads the whole prompt."""

    def __init__(self, inner: Callable[..., Any], prompt: Prompt) -> None:
        self.inner, self.prompt = inner, prompt
        self.rowwise = getattr(inner, "rowwise", False)  # for drafts

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(copied([self.inner])[0], self.prompt)


class WholeCriterion(Whole, StoppingCriteria):
    """A criterion for stopping."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> Any:
        """What the criterion says of `[B, L]`."""
        return self.inner(self.prompt.restored(input_ids), scores, **kwargs)


class WholeProcessor(Whole, LogitsProcessor):
    """A processor of logits."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        """What the processor makes of scores `[B, V]` after `[B, L]`."""
        return self.inner(self.prompt.restored(input_ids), scores)


def _constraint(
    allowed: Callable[[int, torch.Tensor], Any], prompt: Prompt, copies: int
) -> Callable[[int, torch.Tensor], Any]:
    """A constraint that reads the whole prompt, of which there are so many rows."""

    def whole(row: int, ids: torch.Tensor) -> Any:
        new = ids[prompt.input_ids.shape[1] :]
        return allowed(row, torch.cat([prompt.full_ids[row // copies], new]))

    return whole
