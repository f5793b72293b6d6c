"""FusedDraft: repeats and recycled candidates in one tree, for texts of any kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.decoding.grown_method import GrownMethod
from mmaccel.decoding.sources import Known, Repeats, Source, Successors
from mmaccel.decoding.suffix_index import SuffixIndex
from mmaccel.method import Advice, is_count
from mmaccel.registry import register
from mmaccel.session import Session

from .placeholders import placeholders


@register("vlm")
@dataclass(frozen=True)
class FusedDraft(GrownMethod):
    """Draft what followed the same tokens before and what the model last found likely, in one tree (RASD, 2025).

    The method to begin with: what repeats is copied in long drafts, as by `SuffixDecoding`, and elsewhere candidates
    are recycled, as by `TokenRecycling`, here also those that followed two or three equal tokens. How often each kind
    of guess is right is learned while decoding, from plain steps too, and what a pass costs is measured; a draft has
    the nodes that are worth their cost, and where none is, the text is decoded plainly. `generate` of one text or a
    batch, greedy or sampled; all arguments that act on logits or on stopping keep working. Exact in float32: the tokens
    of the model itself, and with sampling those of the same random state, in a batch their distribution. With beams, an
    assistant or another kind of cache (also those of `SelectKV` and `CompressKV`) the model's own loop runs, and the
    report says so. Where layers keep a part of the past only, a chain is drafted instead of a tree, for one text at a
    time.

    Parameters
    ----------
    block
        Most nodes of a draft; default 32. 0 turns drafts off.
    always
        Verify all guesses, up to `block`, whether or not they are worth their cost; default False, for which passes
        are timed.
    longest
        Longest match that is looked up, in tokens; default 8.
    shortest
        Fewest tokens that must match; default 1, as matches that are seldom right are not verified.
    remember
        Tokens of the session's earlier texts that are searched too; default 4096. 0 searches the current text only.

    Raises
    ------
    SettingError
        If a setting is out of range.

    Examples
    --------
    >>> with mmaccel.accelerate(model, FusedDraft()) as fast:  # doctest: +SKIP
    ...     tokens = fast.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=200)
    ...     print(fast.report)
    """

    block: int = 32
    longest: int = 8
    shortest: int = 1
    remember: int = 4096

    paper: ClassVar[str] = "RASD: Retrieval-Augmented Speculative Decoding by Quan et al., 2025"
    advice: ClassVar[Advice] = Advice(
        "Texts of any kind, most those that repeat the prompt or an earlier answer: rewriting, summaries, code.",
        "Nothing in quality; a few megabytes for what is learned.",
    )
    learns: ClassVar[bool] = True
    engaging: ClassVar[dict[str, Any]] = {"always": True, "remember": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_count(self.longest, 1, 32), "longest", "between 1 and 32 tokens")
        self._require(is_count(self.shortest, 1, self.longest), "shortest", f"between 1 and longest={self.longest}")
        self._require(is_count(self.remember, 0), "remember", "a whole number of at least 0 tokens")

    def sources(self, session: Session, row: int) -> list[Source]:
        """Repeats of this row's texts, and the successors that the session knows."""
        forbidden = placeholders(session.target.config)
        known: Known = self._kept(session, "successors", {})
        index = SuffixIndex(self.longest, self.shortest, self.remember, forbidden)
        return [Repeats(self._kept(session, f"texts of row {row}", index)), Successors(known, forbidden, longest=3)]
