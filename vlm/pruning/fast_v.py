"""FastV: after a few layers the language model drops the visual tokens that it attends to least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmaccel.method import Advice, is_count
from mmaccel.registry import register

from .compressor import CACHE_METHODS, Compressor
from .inner import by_attention
from .row import Cut


@register("vlm")
@dataclass(frozen=True)
class FastV(Compressor):
    """From an early layer of the language model on, keep the visual tokens that the prompt's end attends to; lossy.

    FastV (Chen et al., 2024). The vision tower and the earlier layers see everything.

    Parameters
    ----------
    keep
        Share of the visual tokens to keep, above 0 and up to 1 (plain), default 0.5 as the paper's; None where
        `tokens` is given.
    tokens
        Number of visual tokens to keep in each prompt instead; None (default) to go by `keep`.
    layer
        The first layer that has fewer tokens, default 2 as the paper's.

    Notes
    -----
    The kept tokens keep their positions.

    Raises
    ------
    SettingError
        If a setting is out of range, or not exactly one of `keep` and `tokens` is given.

    Examples
    --------
    >>> print(FastV(keep=0.25))
    vlm.FastV(keep=0.25)
    """

    keep: float | None = 0.5
    layer: int = 2

    paper: ClassVar[str] = "An Image is Worth 1/2 Tokens After Layer 2 (FastV), 2024"
    advice: ClassVar[Advice] = Advice(
        "When which tokens matter depends on the question.",
        "The first layers still see everything, so that the first token gains least of all.",
        "keep=0.15",
    )
    excludes: ClassVar[frozenset[str]] = CACHE_METHODS

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_count(self.layer), "layer", "a whole number of at least 1")

    def cuts(self, layers: int) -> dict[int, Cut]:
        return {self.layer: by_attention(self.count, merge=False)}
