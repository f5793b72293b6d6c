"""SuffixDraft: drafts from earlier repetitions, verified in one pass, for texts that repeat themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmaccel.decoding.drafters.suffix_method import SuffixMethod
from mmaccel.method import Advice
from mmaccel.registry import register


@register("speech")
@dataclass(frozen=True)
class SuffixDraft(SuffixMethod):
    """Draft what followed the same tokens before, and verify it in one decoder pass (SuffixDecoding, 2024).

    For long recordings with recurring phrases, and for loops of a model, which then cost next to nothing.
    `generate` of one recording or a batch, greedy or sampled; all arguments that work on logits or on stopping keep
    working, and so do streamers and Whisper's segments with times. Exact in float32: the tokens of the model itself,
    where it samples those of the same random state, in a batch their distribution. With beams or an assistant the
    model's own loop runs, and the report says so. Beside `MergeAudioTokens` it gives the tokens of `MergeAudioTokens`
    alone, and the plan is lossy.

    Parameters
    ----------
    block
        Most tokens of a draft; default 16, which costs Moonshine tiny twice a plain pass. 0 turns drafts off.
    longest
        Longest match that is looked up, in tokens; default 8.
    shortest
        Fewest tokens that must match; default 2.
    remember
        Tokens of the session's earlier texts that are searched too; default 4096. 0 searches the current text only.

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

    advice: ClassVar[Advice] = Advice(
        "Long recordings in which phrases come back, and models that fall into loops.",
        "Nothing in quality; a little time where nothing repeats, as in the recording below.",
    )
    families: ClassVar[frozenset[str] | None] = frozenset({"whisper", "moonshine", "moonshine_streaming"})
