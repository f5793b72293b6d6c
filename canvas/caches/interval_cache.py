"""IntervalCache: prompt and text are each computed again after a number of steps of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.method import Advice, is_count
from mmaccel.registry import register

from ..method import CanvasMethod
from .kept_prefix import KeptPrefix


@register("canvas")
@dataclass(frozen=True)
class IntervalCache(CanvasMethod):
    """Keeps keys and values of prompt and text, and computes the prompt rarely, the text behind it more often.

    For models whose every token sees every other, as LLaDA's: a prompt hardly changes by what follows, a text that is
    being written does. Lossy there, exact on block-causal models. The intervals are those of dLLM-Cache; its choice of
    single tokens by the similarity of their values is not part of this.

    Parameters
    ----------
    prompt : int
        Steps from one computation of the prompt to the next. Default 50, as in the paper; a whole pass is made at the
        beginning of the text.
    text : int
        Steps from one computation of the text before the block to the next, 1 computes it in each. Default 7, as in
        the paper. Both 1 is plain.

    Raises
    ------
    SettingError
        If an interval is below 1.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.IntervalCache())  # doctest: +SKIP
    >>> fast("list all things", gen_length=128).texts  # doctest: +SKIP
    """

    prompt: int = 50
    text: int = 7

    paper: ClassVar[str] = "dLLM-Cache: Accelerating Diffusion Large Language Models with Adaptive Caching, 2025"
    role: ClassVar[str] = "canvas cache"
    neutral: ClassVar[dict[str, Any]] = {"prompt": 1, "text": 1}
    advice: ClassVar[Advice] = Advice("long prompts of models that read in both directions", "prompts that are dated")

    def __post_init__(self) -> None:
        for name in ("prompt", "text"):
            self._require(is_count(getattr(self, name)), name, "a whole number of 1 or more")

    def keeper(self, grows: bool, mask: Callable[[], int | None]) -> KeptPrefix:
        return KeptPrefix(self.text, grows, self.prompt)
