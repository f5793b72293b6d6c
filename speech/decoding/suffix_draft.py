"""SuffixDraft: what followed the same words before is verified at once, for texts that repeat themselves."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.method import Method, is_count
from mmaccel.registry import register
from mmaccel.session import Session

from .drafted_generation import verify_drafts
from .suffix_index import SuffixIndex


@register("speech")
@dataclass(frozen=True)
class SuffixDraft(Method):
    """Draft what followed the same tokens before, and verify it in one pass of the decoder (SuffixDecoding, 2024).

    For long recordings in which phrases come back, and for loops of a model, which cost next to nothing then. Greedy
    `generate` of one recording at a time; all arguments that work on logits or on stopping keep working, and so do
    Whisper's segments with times. Exact in float32: the tokens of the model itself. With sampling, beams, a batch, a
    streamer or an assistant the model's own loop runs, and the report says so. Beside `MergeAudioTokens` it gives the
    tokens of `MergeAudioTokens` alone, and the plan is lossy.

    Parameters
    ----------
    block
        Most tokens of a draft; default 16, which costs Moonshine tiny twice a plain pass. 0 turns drafts off.
    longest
        Most tokens that are looked up; default 8.
    shortest
        Fewest tokens that must match; default 2.
    remember
        Tokens of earlier texts of the session that are looked up too; default 4096. 0 keeps to the current one.

    Raises
    ------
    SettingError
        If a setting is out of range.

    Examples
    --------
    >>> with mmaccel.accelerate(model, SuffixDraft()) as fast:  # doctest: +SKIP
    ...     tokens = fast.generate(**processor(samples, return_tensors="pt"))
    ...     print(fast.report)
    """

    block: int = 16
    longest: int = 8
    shortest: int = 2
    remember: int = 4096

    paper: ClassVar[str] = "SuffixDecoding: A Model-Free Approach to Speeding Up LLM Inference by Oliaro et al., 2024"
    lossless: ClassVar[bool] = True
    families: ClassVar[frozenset[str] | None] = frozenset({"whisper", "moonshine", "moonshine_streaming"})
    neutral: ClassVar[dict[str, Any]] = {"block": 0}
    # short drafts, so that the contract's models, which say little, need some passes
    engaging: ClassVar[dict[str, Any]] = {"block": 2, "shortest": 1, "remember": 0}

    def __post_init__(self) -> None:
        self._require(is_count(self.block, 0, 256), "block", "between 0 and 256 tokens")
        self._require(is_count(self.longest, 1, 32), "longest", "between 1 and 32 tokens")
        self._require(is_count(self.shortest, 1, self.longest), "shortest", f"between 1 and longest={self.longest}")
        self._require(is_count(self.remember, 0), "remember", "a whole number of at least 0 tokens")

    def attach(self, session: Session, stack: ExitStack) -> None:
        verify_drafts(session, stack, self.block, self._index)

    def _index(self, session: Session) -> SuffixIndex:
        """The texts of this session."""
        found: SuffixIndex = session.memory.setdefault(
            self.name, SuffixIndex(self.longest, self.shortest, self.remember)
        )
        return found
