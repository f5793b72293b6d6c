"""SuffixDecoding: drafts from earlier repetitions, verified in one pass, for answers that repeat their prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.decoding.drafters.suffix_method import SuffixMethod
from mmaccel.method import Advice
from mmaccel.registry import register


@register("vlm")
@dataclass(frozen=True)
class SuffixDecoding(SuffixMethod):
    """Draft what followed the same tokens before, and verify it in one decoder pass (SuffixDecoding, 2024).

    For answers that repeat parts of the prompt or of an earlier answer: rewriting, reading documents, code. It
    accelerates `generate` of one text or a batch, greedy or sampled, on any decoder of transformers whose cache can be
    taken back; all arguments that act on logits or on stopping keep working, and streamers are served. Exact in
    float32: the tokens of the model itself, and with sampling those of the same random state, in a batch their
    distribution. With beams, an assistant or another kind of cache the model's own loop runs, and the report says so;
    no plan has it beside `SelectKV` or `CompressKV`. Placeholder tokens of pictures are never drafted.

    Parameters
    ----------
    block
        Most tokens of a draft; default 16. 0 turns drafts off.
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
    >>> with mmaccel.accelerate(model, SuffixDecoding()) as fast:  # doctest: +SKIP
    ...     tokens = fast.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=200)
    ...     print(fast.report)
    """

    advice: ClassVar[Advice] = Advice(
        "Answers that repeat the prompt or an earlier answer: rewriting, reading of documents, code.",
        "Nothing in quality; a little time where nothing repeats, as in a short answer.",
    )
    engaging: ClassVar[dict[str, Any]] = {"block": 1}
    learns: ClassVar[bool] = True  # the contract's answers are too short to repeat themselves
