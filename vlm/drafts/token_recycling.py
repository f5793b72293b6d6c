"""TokenRecycling: the candidates of one pass are the drafts of the next, for any text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmaccel.decoding.drafters.grown_method import GrownMethod
from mmaccel.decoding.drafters.sources import Source
from mmaccel.decoding.generation import Call
from mmaccel.method import Advice
from mmaccel.registry import register


@register("vlm")
@dataclass(frozen=True)
class TokenRecycling(GrownMethod):
    """Draft a tree of the tokens that the model last found likely after each token (Token Recycling, 2024).

    The likeliest successors of every token that was verified are kept from one text of the session to the next; the
    tree grows from the likeliest guess on and is as large as pays at the measured cost of a pass, so that where nothing
    can be guessed the text is decoded plainly. `generate` of one text or a batch, greedy or sampled; all arguments that
    act on logits or on stopping keep working. Exact in float32: the tokens of the model itself, and with sampling those
    of the same random state, in a batch their distribution. With beams, an assistant or another kind of cache the
    model's own loop runs, and the report says so; no plan has it beside `SelectKV` or `CompressKV`. Where layers have
    a state, or a window that is not attended to by SDPA, or attention takes no mask for each token (flash attention), a
    chain is drafted instead of a tree, and the rows of a batch are read in step: the slowest sets the pace, and the
    report has the reason as ``details["chains"]``.

    Parameters
    ----------
    block
        Most nodes of a tree; default 16, which two CPU cores verify in twice the time of one. 0 turns drafts off.

    always
        Verify all guesses, up to `block`, whether or not they are worth their cost; default False, for which passes
        are timed.

    Raises
    ------
    SettingError
        If a setting is out of range.

    Examples
    --------
    >>> with mmaccel.accelerate(model, TokenRecycling(block=60)) as fast:  # doctest: +SKIP
    ...     tokens = fast.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=200)
    ...     print(fast.report)
    """

    paper: ClassVar[str] = (
        "Turning Trash into Treasure: Accelerating Inference of LLMs with Token Recycling by Luo et al., 2024"
    )
    advice: ClassVar[Advice] = Advice(
        "Drawn texts and batches, a little; greedy texts, one at a time, take longer on a CPU. Large models on a GPU,"
        " as in its paper, were not tried here. vlm.FusedDraft has its guesses too, and more.",
        "Nothing in quality; up to 35 MB for what is learned.",
    )
    learns: ClassVar[bool] = True

    def sources(self, call: Call, row: int) -> list[Source]:
        """The successors that the session knows."""
        return [self.successors(call)]
