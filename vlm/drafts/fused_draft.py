"""FusedDraft: repeats and recycled candidates in one tree, for texts of any kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.decoding.drafters.grown_method import GrownMethod
from mmaccel.decoding.drafters.sources import Repeats, Source
from mmaccel.decoding.drafters.suffix_method import SuffixMethod
from mmaccel.decoding.generation import Call
from mmaccel.method import Advice, Held
from mmaccel.registry import register


@register("vlm")
@dataclass(frozen=True)
class FusedDraft(GrownMethod, SuffixMethod):
    """Draft what followed the same tokens before and what the model last found likely, in one tree (RASD, 2025).

    The method to begin with: what repeats is copied in long drafts, as by `SuffixDecoding`, and elsewhere candidates
    are recycled, as by `TokenRecycling`, here also those that followed two or three equal tokens. How often each kind
    of guess is right is learned while decoding, from plain steps too, and what a pass costs is measured; a draft has
    the nodes that are worth their cost, and where none is, the text is decoded plainly. `generate` of one text or a
    batch, greedy or sampled; all arguments that act on logits or on stopping keep working. Exact in float32: the tokens
    of the model itself, and with sampling those of the same random state, in a batch their distribution. With beams, an
    assistant or another kind of cache the model's own loop runs, and the report says so; no plan has it beside
    `SelectKV` or `CompressKV`. Where layers have a state, a window that is not attended to by SDPA, or attention of
    their own (BLOOM, Falcon), or where attention takes no mask for each token (flash attention; load the model with
    ``attn_implementation="sdpa"``), a chain is drafted instead of a tree, and the rows of a batch are read in step: the
    slowest sets the pace, and the report has the reason as ``details["chains"]``.

    Parameters
    ----------
    block
        Most nodes of a draft; default 32. 0 turns drafts off.
    longest
        Longest match that is looked up in the prompt and earlier texts, in tokens; default 8.
    shortest
        Fewest tokens that must match; default 1, as matches that are seldom right are not verified.
    remember
        Tokens of the session's earlier texts that are searched too; default 4096. 0 searches the current text only.
    always
        Verify all guesses, up to `block`, whether or not they are worth their cost; default False, for which passes
        are timed.

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
    shortest: int = 1

    paper: ClassVar[str] = "RASD: Retrieval-Augmented Speculative Decoding by Quan et al., 2025"
    advice: ClassVar[Advice] = Advice(
        "Texts of any kind, most those that repeat the prompt or an earlier answer: rewriting, summaries, code.",
        "Nothing in quality; up to 35 MB for what is learned, and 5 MB for each row of a batch.",
    )
    learns: ClassVar[bool] = True
    equal_tokens: ClassVar[int] = 3
    engaging: ClassVar[dict[str, Any]] = {"always": True, "remember": 0}

    def held(self) -> tuple[Held, ...]:
        """The successors, and an index for each row."""
        return (*GrownMethod.held(self), *SuffixMethod.held(self))

    def learned(self, memory: dict[str, Any]) -> int:
        """Bytes of the successors, and of the texts of all rows."""
        return GrownMethod.learned(self, memory) + SuffixMethod.learned(self, memory)

    def sources(self, call: Call, row: int) -> list[Source]:
        """Repeats of this row's texts, and the successors that the session knows."""
        return [Repeats(self.drafter(call, row)), self.successors(call)]
