"""ZipAR: rows of a picture are decoded in parallel; lossy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mmaccel.errors import SettingError
from mmaccel.method import Advice, is_count
from mmaccel.registry import register
from mmaccel.session import Session

from .decoding.grid_decoder import GridDecoder
from .decoding.layout import Layout
from .decoding.row_decoding import RowDecoder
from .decoding.task import ImageTask, Progress
from .method import ImageMethod

MEASURED_ROW = 16  # tokens of a row of the model that the presets were measured on


@register("image")
@dataclass(frozen=True)
class ZipAR(ImageMethod):
    """Start every row of the picture as soon as the row above is a few tokens ahead; lossy.

    ZipAR (He et al., 2024): neighbouring rows hardly need each other's far ends, so all rows that have
    started advance one token a pass. `verify=True` adds Parallel Jacobi Decoding (2025): every row also
    verifies drafts of its own.

    Parameters
    ----------
    window
        Tokens that a row must be ahead before the next one may follow (default 4). The width of the
        grid is plain raster order.
    verify
        Let each row draft and verify `draft_window` tokens (default False).
    draft_window
        Tokens that a row verifies a pass, its last one included (default 8); used with `verify`.

    Notes
    -----
    Lossy: tokens are drawn without having seen the right part of the row above. The measured cost is in
    docs/benchmarks/image.md.

    Raises
    ------
    SettingError
        If a setting is out of range, or the window is wider than the grid.

    Examples
    --------
    >>> print(ZipAR(window=2, verify=True))
    image.ZipAR(window=2, verify=True)
    """

    window: int = 4
    verify: bool = False
    draft_window: int = 8

    paper: ClassVar[str] = "ZipAR: Accelerating Auto-regressive Image Generation through Spatial Locality, 2024"
    advice: ClassVar[Advice] = Advice(
        "When time matters more than the last bit of quality: the number of passes is fixed, whatever the picture.",
        "Tokens are drawn without the right part of the row above, and pictures get worse as the window narrows.",
    )
    neutral: ClassVar[dict[str, Any]] = {"window": "columns"}
    engaging: ClassVar[dict[str, Any]] = {"window": 2}

    def __post_init__(self) -> None:
        self._require(is_count(self.window), "window", "a whole number of at least 1")
        self._require(isinstance(self.verify, bool), "verify", "True or False")
        self._require(is_count(self.draft_window, 2), "draft_window", "a whole number of at least 2")

    def check_layout(self, layout: Layout) -> None:
        if self.window > layout.columns:
            raise SettingError(
                f"ZipAR(window={self.window}): window must be at most the {layout.columns} columns of the grid,"
                " where it is plain raster order"
            )

    def is_neutral(self, layout: Layout) -> bool:
        return self.window == layout.columns and not self.verify

    def decode(
        self, task: ImageTask, generator: torch.Generator | None, progress: Progress | None, session: Session
    ) -> GridDecoder:
        columns = task.layout.columns
        if session.plan.why and columns > MEASURED_ROW:
            session.report.warnings.append(
                f"this preset was measured on rows of {MEASURED_ROW} tokens, and a row has {columns}: in"
                f" proportion it would be image.ZipAR(window={round(self.window * columns / MEASURED_ROW)})"
            )
        decoder = GridDecoder(task, generator, progress)
        decoder.tokens = RowDecoder(decoder, self.window, self.draft_window if self.verify else 1).run()
        return decoder
