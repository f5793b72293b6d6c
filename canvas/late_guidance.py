"""LateGuidance: the first passes of a picture with the prompt alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.method import Advice, is_number
from mmaccel.registry import register

from .method import PICTURE_EXAMPLE, PICTURES, CanvasMethod


@register("canvas")
@dataclass(frozen=True)
class LateGuidance(CanvasMethod):
    """Leaves out the branch without a prompt in the first passes of a picture, which halves their work.

    Lossy. Guidance draws pictures towards the prompt and away from variety; in the first steps little is committed,
    and variety is worth most.

    Parameters
    ----------
    share : float
        Share of the steps that are not guided, between 0 and 1. Default 0.25; 0 guides all. Beside a rule that has
        steps of its own, the share of those.

    Raises
    ------
    SettingError
        If `share` is not between 0 and 1.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.LateGuidance())  # doctest: +SKIP
    >>> fast("big red heart on yellow").images[0]  # doctest: +SKIP
    """

    share: float = 0.25

    paper: ClassVar[str] = (
        "Applying Guidance in a Limited Interval Improves Sample and Distribution Quality, Kynkäänniemi et al., 2024"
    )
    families: ClassVar[frozenset[str] | None] = frozenset({PICTURES})
    role: ClassVar[str] = "guidance"
    neutral: ClassVar[dict[str, Any]] = {"share": 0.0}
    advice: ClassVar[Advice] = Advice(
        "guided pictures, also beside a rule", "the prompt counts for less at first", example=PICTURE_EXAMPLE
    )

    def __post_init__(self) -> None:
        self._require(is_number(self.share, 0, 1), "share", "between 0 and 1")

    def waits(self, step: int, steps: int) -> bool:
        """Whether this step, counted from 0, is not guided yet."""
        return step < round(self.share * steps)
