"""TextDraft: an answer that is known in part is verified instead of written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from mmaccel.decoding.drafters.given_text import GivenText
from mmaccel.decoding.drafters.grown_draft import GrownDrafter
from mmaccel.decoding.drafters.sources import Source
from mmaccel.decoding.generation import Call
from mmaccel.errors import SettingError, shown
from mmaccel.method import Advice
from mmaccel.registry import register
from mmaccel.report import Report

from .fused_draft import FusedDraft

FEW = 0.1  # share of the answer below which a prediction was none
WANTED = "tokenizer(text, add_special_tokens=False).input_ids"


@register("vlm")
@dataclass(frozen=True)
class TextDraft(FusedDraft):
    """Verify a text that the answer is expected to be like, given with the call (Aggressive Decoding, 2022).

    For a page that a lighter reader has read, an earlier version of an answer, a text that is to be corrected:
    ``generate(..., prediction=ids)`` takes the tokens of that text, a list, array or tensor, for a batch one for each
    row or one for all. Where the answer differs the draft realigns, over words that were changed, added or left out;
    beside it stand the guesses of :class:`FusedDraft`, which also serve calls without a prediction, and as there drafts
    are as large as is worth their cost. Exact in float32: the tokens of the model itself, and with sampling those of
    the same random state, in a batch their distribution. With beams, an assistant or another kind of cache the model's
    own loop runs, and the report says so.

    Settings are those of :class:`FusedDraft`.

    Raises
    ------
    SettingError
        If a setting is out of range; from `generate`, if a prediction is text instead of tokens, has tokens that the
        model has not, or does not fit the batch.

    Examples
    --------
    >>> with mmaccel.accelerate(model, TextDraft()) as fast:  # doctest: +SKIP
    ...     expected = tokenizer(old_answer, add_special_tokens=False).input_ids
    ...     tokens = fast.generate(**inputs, prediction=expected, max_new_tokens=200)
    ...     print(fast.report)
    """

    paper: ClassVar[str] = "Lossless Acceleration for Seq2seq Generation with Aggressive Decoding by Ge et al., 2022"
    advice: ClassVar[Advice] = Advice(
        "Answers that are known in part before they are written: pages, corrections, translations that are revised.",
        "Nothing in quality; up to 35 MB for what is learned, and 5 MB for each row of a batch.",
    )
    call_arguments: ClassVar[frozenset[str]] = frozenset({"prediction"})

    def take(self, model: Any, kwargs: dict[str, Any]) -> Prediction | None:
        """Take the prediction out of the arguments of a call."""
        given = kwargs.pop("prediction", None)
        return None if given is None else Prediction(known(given, model))

    def drafters(self, call: Call) -> list[GrownDrafter]:
        """A drafter for each row, with its text."""
        given: Prediction | None = call.given
        if given is not None and call.rows % len(given.texts):
            raise SettingError(
                f"{given.argument} has {len(given.texts)} texts for a batch of {call.rows}: "
                "give one for each row, or one for all"
            )
        if given is not None:
            repeats, forbidden = call.rows // len(given.texts), self._forbidden(call.session)
            given.sources = [GivenText([text], forbidden) for text in given.texts for _ in range(repeats)]
        return super().drafters(call)

    def sources(self, call: Call, row: int) -> list[Source]:
        """The text that is given for a row, and the guesses of :class:`FusedDraft`."""
        found = super().sources(call, row)
        return found if call.given is None else [call.given.sources[row], *found]

    def tell(self, report: Report, given: Prediction | None, memory: dict[str, Any]) -> None:
        """Say how much of the answer was as predicted."""
        if given is None or not given.sources:
            return
        followed = sum(source.followed for source in given.sources)
        report.details["predicted"] = followed
        if not any(given.texts):
            report.warnings.append(f"the {given.argument} is empty")
        elif followed < FEW * report.tokens:
            report.warnings.append(
                f"the answer is not like the {given.argument}: {followed} of its {report.tokens} tokens are as given"
            )


@dataclass
class Prediction:
    """What a call is expected to answer: texts as tokens, and once it runs the source of each row."""

    argument: ClassVar[str] = "prediction"  # as messages name it

    texts: list[list[int]]
    sources: list[GivenText] = field(default_factory=list)


def known(given: Any, model: Any) -> list[list[int]]:
    """The texts of a prediction, whose tokens the model has."""
    texts, size = token_lists(given), model.config.get_text_config(decoder=True).vocab_size
    for token in (token for text in texts for token in text):
        if not 0 <= token < size:
            raise SettingError(
                f"prediction has token {token}, but this model has {size}: "
                "is it of another tokenizer? Give it the tokens of the model's own"
            )
    return texts


def token_lists(given: Any) -> list[list[int]]:
    """A prediction as lists of tokens, one for each text.

    Raises
    ------
    SettingError
        If it is something else than tokens.

    Examples
    --------
    >>> token_lists([5, 6]), token_lists(torch.tensor([[5, 6], [7, 8]]))
    ([[5, 6]], [[5, 6], [7, 8]])
    """
    values = _plain(given)
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        values = [_plain(value) for value in values]
        texts = values if values and all(isinstance(text, Sequence) for text in values) else [values]
        if all(_are_tokens(text) for text in texts):
            return [list(text) for text in texts]
    raise SettingError(f"prediction={shown(given)} must be token ids, such as {WANTED}")


def _plain(values: Any) -> Any:
    """A tensor or array as lists."""
    return values.tolist() if isinstance(values, torch.Tensor | np.ndarray | np.generic) else values


def _are_tokens(text: Any) -> bool:
    return not isinstance(text, str) and all(isinstance(token, int) and not isinstance(token, bool) for token in text)
