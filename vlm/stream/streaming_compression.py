"""STC: prune each frame of a stream against itself and against what was seen before; lossy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import normalize

from mmaccel.method import Advice, is_count, is_share
from mmaccel.registry import register

from ..pruning.compressed import Compressed, chosen, top
from ..pruning.compressor import Compressor
from ..pruning.segments import apportion
from ..pruning.vidcom2 import closeness


@register("vlm")
@dataclass(frozen=True)
class StreamingCompression(Compressor):
    """Keep of each frame the tokens that are least like the frame and least like the past; lossy.

    STC (Wang et al., 2025), for frames that come one by one: no frame needs a later one. In
    :class:`~mmaccel.vlm.VideoStream` the vision tower also reuses what it computed of similar frames.

    Parameters
    ----------
    keep
        Share of the tokens of each frame to keep, above 0 and up to 1 (plain), default 60 / 196 as the paper's; None
        where `tokens` is given.
    tokens
        Number of them instead: of each frame in a :class:`~mmaccel.vlm.VideoStream`, elsewhere of the whole video,
        shared out evenly; None (default) to go by `keep`.
    refresh
        Share of a frame's tokens that the tower computes anew where it reuses the rest, above 0 and up to 1 (no
        reuse), default 0.25 as the paper's. For streams only.
    interval
        Every how many frames the tower computes everything, default 2 as the paper's. For streams only.

    Raises
    ------
    SettingError
        If a setting is out of range, or not just one of `keep` and `tokens` is given.

    Examples
    --------
    >>> StreamingCompression(keep=0.25).compress(torch.randn(4, 16, 8)).tokens.shape
    torch.Size([16, 8])
    """

    keep: float | None = 60 / 196
    refresh: float = 0.25
    interval: int = 2

    paper: ClassVar[str] = "Accelerating Streaming Video Large Language Models via Hierarchical Token Compression, 2025"
    advice: ClassVar[Advice] = Advice(
        "Frames that come one by one, in a VideoStream with bounded memory.",
        "It knows no later frame, and can keep what a look at the whole clip would have dropped.",
    )
    compares_frames: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_share(self.refresh), "refresh", "above 0 and at most 1")
        self._require(is_count(self.interval), "interval", "a whole number of at least 1")

    def shorten(self, features: torch.Tensor, scores: torch.Tensor | None, key: torch.Tensor | None) -> Compressed:
        frames, cells = features.shape[:2]
        history = History()
        counts = apportion([1] * frames, self.count(frames * cells), [cells] * frames)
        index = []
        for number, (frame, count) in enumerate(zip(features, counts, strict=True)):
            kept, _ = history.take(frame, count)
            index.append(number * cells + kept)
        return chosen(features, torch.cat(index))


class History:
    """The running mean of all tokens of a stream.

    Examples
    --------
    >>> history = History()
    >>> history.add(torch.ones(4, 2))
    >>> bool(history.novelty(torch.tensor([[1.0, 1.0], [1.0, -1.0]])).argmax() == 1)
    True
    """

    def __init__(self) -> None:
        self.mean: torch.Tensor | None = None
        self.frames = 0

    def novelty(self, frame: torch.Tensor) -> torch.Tensor:
        """How little each token of a frame `[N, D]` is like the frame's mean and the past's, float32 `[N]`."""
        unit = normalize(frame.float(), dim=-1)
        near = closeness(unit, unit.mean(0))
        return -(near if self.mean is None else near + closeness(unit, self.mean))

    def take(self, frame: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The `count` newest tokens of a frame, int64 `[count]`, and how new each is; the frame is past from now on."""
        novelty = self.novelty(frame)
        kept = top(novelty, count)
        self.add(frame)
        return kept, novelty[kept]

    def add(self, frame: torch.Tensor) -> None:
        mean = normalize(frame.float(), dim=-1).mean(0)
        self.frames += 1
        self.mean = mean if self.mean is None else self.mean + (mean - self.mean) / self.frames
