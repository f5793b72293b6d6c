"""FreeDave: several steps of the pipeline in one pass, each verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.method import Advice, is_count
from mmaccel.registry import register

from ..method import MASKS, NOISE, CanvasMethod


@register("canvas")
@dataclass(frozen=True)
class FreeDave(CanvasMethod):
    """Drafts the next canvases from one pass, verifies them in another, and jumps to the last one that is right.

    Exact: a canvas is taken over only if the pipeline's own step, from the canvas before and its own logits, gives the
    same. So it follows whatever threshold and schedule the call has. Where the paper drafts a chain, these drafts also
    hold the second and third choice of a step, since near-ties decide the order of commits.

    Canvases of masks need greedy decoding: at a temperature above 0, and in batches that edit committed tokens, runs
    are plain. A callback sees the canvases that jumps lead to; from where it edits one the run is plain, and no longer
    called exact. Canvases of random tokens (`DiffusionGemmaPipeline`) may be sampled: a copy of the generator draws the
    noise ahead, and what a step knows of the one before it counts as equal to the rounding of the weights. In bfloat16
    that seldom holds on the tiny model of the tests, and few passes are saved.

    Parameters
    ----------
    drafts : int
        Canvases in one pass, a batch, 2 to 8 in the paper; 1 is plain. Default 4, which takes less than half the
        passes on tiny-canvas. On a processor 2 is faster there, with a cache and without; where a pass over a batch
        costs what one canvas costs, more take fewer passes.

    Raises
    ------
    SettingError
        If `drafts` is no whole number from 1 to 64.

    Examples
    --------
    >>> fast = mmaccel.accelerate(pipe, canvas.FreeDave())  # doctest: +SKIP
    >>> fast("list all things", gen_length=128).texts  # doctest: +SKIP
    """

    drafts: int = 4

    paper: ClassVar[str] = "Free Draft-and-Verification: Toward Lossless Parallel Decoding, Wu and Zhang, 2025"
    families: ClassVar[frozenset[str] | None] = frozenset({MASKS, NOISE})
    lossless: ClassVar[bool] = True
    role: ClassVar[str] = "commit rule"
    neutral: ClassVar[dict[str, Any]] = {"drafts": 1}
    engaging: ClassVar[dict[str, Any]] = {"drafts": 8}
    advice: ClassVar[Advice] = Advice(
        "equal tokens in fewer passes, together with `PrefixCache`", "a batch of canvases in each pass"
    )

    def __post_init__(self) -> None:
        self._require(is_count(self.drafts, 1, 64), "drafts", "a whole number from 1 to 64")
