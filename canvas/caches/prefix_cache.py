"""PrefixCache: what stands before the block is computed once a block."""

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
class PrefixCache(CanvasMethod):
    """Keeps the keys and values of all that stands before a block, and computes only the block in most steps.

    Exact where tokens before the block do not see it (block-causal models, such as :class:`canvas.BlockCausalModel`),
    lossy on models whose every token sees every other, as LLaDA's do in this pipeline: there they date from the last
    whole pass.

    Parameters
    ----------
    refresh : int
        Steps of a block from one whole pass to the next; 0 has one at the beginning of each block, 1 is plain.
        Default 0, as Fast-dLLM has it.

    Raises
    ------
    SettingError
        If `refresh` is below 0.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.PrefixCache())  # doctest: +SKIP
    >>> fast("list all things", gen_length=128).texts  # doctest: +SKIP
    """

    refresh: int = 0

    paper: ClassVar[str] = "Fast-dLLM, Wu et al., 2025"
    role: ClassVar[str] = "canvas cache"
    neutral: ClassVar[dict[str, Any]] = {"refresh": 1}
    advice: ClassVar[Advice] = Advice("long prompts, pictures, long texts", "memory for keys and values of the text")

    def __post_init__(self) -> None:
        self._require(is_count(self.refresh, 0), "refresh", "a whole number of 0 or more")

    def keeper(self, grows: bool, mask: Callable[[], int | None]) -> KeptPrefix:
        return KeptPrefix(self.refresh, grows)
