"""Base of the methods that draft what followed the same tokens before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.method import Held, is_count

from ..generation import Call
from .draft_method import DraftMethod
from .suffix_index import SuffixIndex, index_bytes

TEXT = 1000  # tokens of the text at hand for which memory is told


@dataclass(frozen=True)
class SuffixMethod(DraftMethod):
    """Settings of a :class:`SuffixIndex`, and a session's `generate` that verifies its drafts; exact.

    A modality registers a class of its own, with its own documentation.
    """

    longest: int = 8
    shortest: int = 2
    remember: int = 4096

    paper: ClassVar[str] = "SuffixDecoding: A Model-Free Approach to Speeding Up LLM Inference by Oliaro et al., 2024"
    # short drafts, so that the contract's models, which say little, need some passes
    engaging: ClassVar[dict[str, Any]] = {"block": 2, "shortest": 1, "remember": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_count(self.longest, 1, 32), "longest", "between 1 and 32 tokens")
        self._require(is_count(self.shortest, 1, self.longest), "shortest", f"between 1 and longest={self.longest}")
        self._require(is_count(self.remember, 0), "remember", "a whole number of at least 0 tokens")

    @property
    def silent(self) -> str:
        return "no repeat was found in the prompt or the answer"

    def held(self) -> tuple[Held, ...]:
        """An index for each row of the largest batch, which grows with the text at hand."""
        earlier, text = (index_bytes(self.longest, self.shortest, n) for n in (self.remember, TEXT))
        return (
            Held(f"{self.remember} tokens of earlier texts, for each row of the largest batch", earlier),
            Held(f"every {TEXT} tokens of the text at hand, until the next one begins", text),
        )

    def learned(self, memory: dict[str, Any]) -> int:
        """Bytes of the texts of all rows."""
        sizes = [len(index) for index in memory.values() if isinstance(index, SuffixIndex)]
        return sum(index_bytes(self.longest, self.shortest, size) for size in sizes)

    def drafter(self, call: Call, row: int) -> SuffixIndex:
        """The texts of this session that stood in this row of a batch."""
        index = SuffixIndex(self.longest, self.shortest, self.remember, self._forbidden(call.session))
        return call.session.memory.setdefault(f"{self.name}, row {row}" if row else self.name, index)
