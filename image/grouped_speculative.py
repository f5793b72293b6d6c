"""Grouped speculative decoding: accept a draft if its neighbourhood is likely; lossy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from mmaccel.decoding import FixedWidth
from mmaccel.method import Advice, is_count, is_number
from mmaccel.registry import register
from mmaccel.session import Session

from .decoding.grid_decoder import GridDecoder
from .decoding.grouped import grouped_ratio
from .decoding.layout import Layout
from .decoding.task import ImageTask, Progress
from .decoding.window_decoding import decode_window
from .method import ImageMethod


@register("image")
@dataclass(frozen=True)
class GroupedSpeculative(ImageMethod):
    """Verify a window of guessed tokens, and keep a guess if codes like it are likely enough; lossy.

    Grouped Speculative Decoding (So et al., 2025): acceptance compares the probability of a cluster of
    codes around the draft, near it in the model's own ranking and in the codebook, instead of its own.

    Parameters
    ----------
    window
        Tokens per forward pass (default 16, as for Lumina-mGPT and Janus in the paper's code).
    group_size
        Codes of a cluster; 1 is lossless. Default 15: 7 neighbours on each side, as in the paper's code.
    delta
        Largest difference in probability to the draft (default 0.15, as in the paper's runs).
    distance
        Largest squared distance to the draft in the codebook (default 0.5, as in the paper's runs), None to leave it
        out. Where a model writes codes with its text head, as Emu3 and GLM-Image do, their input embeddings stand for
        the codebook.

    Notes
    -----
    Lossy: an accepted draft need not be a draw from the model. The measured cost is in
    docs/benchmarks/image.md.

    Raises
    ------
    SettingError
        If a setting is out of range, or the window is larger than the picture.

    Examples
    --------
    >>> GroupedSpeculative(group_size=1).exact
    True
    """

    window: int = 16
    group_size: int = 15
    delta: float = 0.15
    distance: float | None = 0.5

    paper: ClassVar[str] = "Grouped Speculative Decoding for Autoregressive Image Generation, 2025"
    advice: ClassVar[Advice] = Advice(
        "Models whose codebook holds many codes that look alike, so that exact drafts are often refused.",
        "Pictures stay as near to real ones as plain ones are, and tokens become less likely under the model. On the"
        " small model it is no faster than the best exact setting of SpeculativeJacobi: try that first.",
    )
    neutral: ClassVar[dict[str, Any]] = {"window": 1}
    engaging: ClassVar[dict[str, Any]] = {"window": 8}

    def __post_init__(self) -> None:
        self._require(is_count(self.window), "window", "a whole number of at least 1")
        self._require(is_count(self.group_size), "group_size", "a whole number of at least 1")
        self._require(is_number(self.delta, 0, 1), "delta", "between 0 and 1")
        self._require(
            self.distance is None or is_number(self.distance, 0),
            "distance",
            "at least 0, or None to leave it out",
        )

    @property
    def exact(self) -> bool:
        return self.group_size == 1 or self.window == 1

    def check_layout(self, layout: Layout) -> None:
        self._require(self.window <= layout.length, "window", f"at most the {layout.length} tokens of a picture")

    def is_neutral(self, layout: Layout) -> bool:
        return self.window == 1

    def decode(
        self, task: ImageTask, generator: torch.Generator | None, progress: Progress | None, session: Session
    ) -> GridDecoder:
        decoder = GridDecoder(task, generator, progress, self.window)
        embeddings = None if self.distance is None else _embeddings(task)
        acceptance = partial(
            grouped_ratio,
            group_size=self.group_size,
            delta=self.delta,
            distance=self.distance if self.distance is not None else float("inf"),
            embeddings=embeddings,
        )
        decoder.tokens = decode_window(decoder, FixedWidth(self.window), acceptance=acceptance)
        decoder.extra_bytes += 0 if embeddings is None else embeddings.nbytes
        return decoder


def _embeddings(task: ImageTask) -> torch.Tensor:
    """The codebook where the task is, and zeros for tokens that are no codes, `[codes + specials, D]`."""
    codes = task.codebook().to(task.device)
    return torch.nn.functional.pad(codes, (0, 0, 0, task.specials)) if task.specials else codes
