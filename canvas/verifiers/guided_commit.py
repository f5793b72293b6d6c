"""GuidedCommit: what a causal model of the same vocabulary would write, too, is committed."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.errors import SettingError
from mmaccel.method import Advice, is_number
from mmaccel.registry import register
from mmaccel.session import Session

from ..method import Block, CommitRule


@register("canvas")
@dataclass(frozen=True)
class GuidedCommit(CommitRule):
    """Commits the leftmost masked tokens as far as a guide agrees with each, and tokens above a threshold.

    Lossy. The guided diffusion of FreeCache, whose cache is :class:`canvas.PrefixCache` in this pipeline. The guide is
    a causal model of the same vocabulary, given with the call as `guide_model`; it reads the text with all drafts in
    one pass. Without one, block-causal models guide themselves by reading word by word, and others go by the threshold
    alone.

    Parameters
    ----------
    threshold : float
        Chance above which a token is committed though the guide was not asked. Default 0.9; at 1 the guide alone
        decides, beside what the pipeline commits.
    agree : bool
        Whether the guide is asked at all. Default True.

    Raises
    ------
    SettingError
        If `threshold` is not between 0 and 1; from the call, if the guide has another vocabulary.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.GuidedCommit(), canvas.PrefixCache())  # doctest: +SKIP
    >>> fast("Name a river.", gen_length=128, threshold=2, guide_model=small).texts  # doctest: +SKIP
    """

    threshold: float = 0.9
    agree: bool = True

    paper: ClassVar[str] = (
        "Accelerating Diffusion Language Model Inference via Efficient KV Caching and Guided Diffusion, Hu et al., 2025"  # noqa: E501
    )
    neutral: ClassVar[dict[str, Any]] = {"threshold": 1.0, "agree": False}
    engaging: ClassVar[dict[str, Any]] = {"threshold": 0.0}
    call_arguments: ClassVar[frozenset[str]] = frozenset({"guide_model"})
    advice: ClassVar[Advice] = Advice("large models with a small causal one of their tokenizer", "the guide's pass")

    def __post_init__(self) -> None:
        self._require(is_number(self.threshold, 0, 1), "threshold", "between 0 and 1")
        self._require(isinstance(self.agree, bool), "agree", "True or False")

    def prepare(self, session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().prepare(session, args, kwargs)
        guide = kwargs.pop("guide_model", None)
        if guide is not None:
            check_guide(guide, session.target)
        session.adapter.decoder.guide = guide

    def choose(self, block: Block) -> torch.Tensor:
        sure = block.masked & (block.chances > self.threshold)
        if block.read is None or not self.agree or not (block.masked & ~sure).any():
            return sure
        wrong = block.leftmost & (block.read(block.tokens).argmax(-1) != block.tokens)
        return sure | (block.leftmost & (wrong.cumsum(1) == 0))


def vocabulary_of(model: Any) -> int:
    """How many tokens a model knows, with those that only pad its vocabulary."""
    return int(model.config.get_text_config().vocab_size)


def said_by(guide: Any, ids: torch.Tensor, length: int, kwargs: dict[str, Any]) -> torch.Tensor:
    """Logits of a guide, for :func:`of_next`, of tokens `[B, N]`: drafts may be in what only pads its vocabulary."""
    keeps = "logits_to_keep" in inspect.signature(guide.forward).parameters  # else all, of the prompt too
    more = {"logits_to_keep": length + 1} if keeps else {}
    logits: torch.Tensor = guide(input_ids=ids.clamp(max=vocabulary_of(guide) - 1), **kwargs, **more).logits
    return logits


def of_next(logits: torch.Tensor, length: int) -> torch.Tensor:
    """Logits of each of the last tokens, from those that each token gives of the next one; nothing is before a text."""
    own = logits[:, -length - 1 : -1]
    return torch.nn.functional.pad(own, (0, 0, length - own.shape[1], 0))


def check_guide(guide: Any, pipe: Any) -> None:
    """Raise a `SettingError` unless a guide has the vocabulary of a pipeline, whatever pads it."""
    has, tokenizer = vocabulary_of(guide), getattr(pipe, "tokenizer", None)
    whose, wanted = ("model", vocabulary_of(pipe.model)) if tokenizer is None else ("tokenizer", len(tokenizer))
    if has < wanted or (tokenizer is None and has != wanted):
        raise SettingError(
            f"guide_model={type(guide).__name__} has {has} tokens, this {whose} {wanted}: give a causal model of the"
            " same tokenizer"
        )
