"""Drafts for vLLM: a class of its experimental custom proposers (`method="custom_class"`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from mmaccel.decoding.drafters.draft_method import DraftMethod
from mmaccel.decoding.matching import Draft, Verdict
from mmaccel.decoding.row_drafters import TextDrafter

from .drafts.suffix_decoding import SuffixDecoding

Tokens = list[int]


@dataclass
class _Text:
    """A text that vLLM writes: its tokens so far, what drafts it, in a row of its own, and its last draft."""

    row: int
    drafter: TextDrafter
    tokens: Tokens
    draft: tuple[int, ...] = field(default=())

    def grow(self, tokens: Tokens) -> None:
        """Tell the drafter which tokens of its draft were kept, and what came behind them."""
        kept = next((n for n, (one, other) in enumerate(zip(self.draft, tokens, strict=False)) if one != other), None)
        kept = min(len(self.draft), len(tokens) - 1) if kept is None else kept
        self.drafter.observe(Verdict(tuple(range(kept)), tuple(tokens)))
        self.tokens = [*self.tokens, *tokens]

    def propose(self, most: int) -> Tokens:
        found = (self.drafter.propose(most) if most > 0 else None) or Draft(())
        self.draft = found.tokens[:most]
        return list(self.draft)


class Proposer:
    """Drafts of a method for vLLM, which verifies them itself: as exact as its rejection sampling.

    vLLM makes one with its configuration, by the name of the class, and asks it after every step. Requests are known by
    their tokens alone, since rows of a batch change places.

    Parameters
    ----------
    vllm_config
        vLLM's `VllmConfig`; read are `speculative_config.num_speculative_tokens`, `model_config.max_model_len` and, for
        placeholders of pictures, which are never proposed, `model_config.hf_config`.

    Class attributes
    ----------------
    method
        What drafts; by default ``vlm.SuffixDecoding()``. Another one is that of a class of your own below this one. It
        has to draft without the target's probabilities.

    Examples
    --------
    >>> llm = LLM(  # doctest: +SKIP
    ...     model="Qwen/Qwen2.5-VL-3B-Instruct",
    ...     speculative_config={
    ...         "method": "custom_class",
    ...         "model": "mmaccel.vlm.vllm_proposer.Proposer",
    ...         "num_speculative_tokens": 8,
    ...     },
    ... )
    """

    method: ClassVar[DraftMethod] = SuffixDecoding()

    def __init__(self, vllm_config: Any) -> None:
        self.most: int = vllm_config.speculative_config.num_speculative_tokens
        self.longest: int = vllm_config.model_config.max_model_len
        self.drafts = self.method.custom_generate()
        self.drafts.target = SimpleNamespace(config=getattr(vllm_config.model_config, "hf_config", None))
        self.texts: list[_Text] = []

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: Sequence[int],
        token_ids_cpu: Any,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts for each request of a batch, none for those whose prompt is not read yet.

        Parameters
        ----------
        sampled_token_ids
            The tokens that each request got in this step: those of the last draft that were kept, and one more.
        num_tokens_no_spec
            Tokens of each request, prompt and `sampled_token_ids` included.
        token_ids_cpu
            These tokens `[requests, at least so many]`.
        slot_mappings
            Of the cache; not used.
        """
        before, self.texts, found = self.texts, [], list[Tokens]()
        for row, sampled in enumerate(sampled_token_ids):
            if not sampled:
                found.append([])
                continue
            tokens = token_ids_cpu[row][: int(num_tokens_no_spec[row])].tolist()
            text = self._continued(before, tokens, len(sampled)) or self._begun(tokens, before)
            self.texts.append(text)
            found.append(text.propose(min(self.most, self.longest - len(tokens) - 1)))
        return found

    def _continued(self, before: list[_Text], tokens: Tokens, new: int) -> _Text | None:
        """The text that these tokens continue, no longer among those of before."""
        for text in before:
            if text.tokens == tokens[:-new]:
                before.remove(text)
                text.grow(tokens[-new:])
                return text
        return None

    def _begun(self, tokens: Tokens, before: list[_Text]) -> _Text:
        """A new text in the first row that no other one has: what is learned in a row belongs to one text at a time."""
        taken = {text.row for text in (*before, *self.texts)}
        row = next(row for row in itertools.count() if row not in taken)
        drafter = self.drafts.drafters(row + 1, branches=False)[row]
        drafter.begin(tokens)
        return _Text(row, drafter, tokens)
