"""DyCoke: keep the first frame of each window, and of the others the tokens that changed; lossy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import normalize

from mmaccel.method import Advice, is_count
from mmaccel.registry import register

from .compressed import Compressed, chosen, top
from .compressor import Compressor
from .segments import apportion


@register("vlm")
@dataclass(frozen=True)
class DyCoke(Compressor):
    """Keep the first of every few frames whole, and of the others the tokens that changed most; lossy.

    DyCoke: Dynamic Compression of Tokens for Fast Video Large Language Models (Tao et al., 2024), its temporal
    token merging. It needs no attention, so the vision tower runs unchanged.

    Parameters
    ----------
    keep
        Share of the visual tokens to keep, above 0 and up to 1 (plain), default 0.475: with windows of 4 that is the
        paper's merging rate K = 0.7 (``keep = (1 + 3 * (1 - K)) / 4``); None where `tokens` is given.
    tokens
        Number of tokens instead, at least 1, for each video, picture, or tile of one that is cut into tiles; None
        (default) to go by `keep`.
    window
        Frames of a window, at least 2, default 4 as in the paper.

    Notes
    -----
    Lossy: dropped tokens are gone; a token is dropped if an earlier frame has a similar one, and none are
    averaged. Every second frame of a window is compared by cosine with the one before, every fourth with the one two
    before, and so on. If the first frames alone exceed the budget, the window is doubled until they fit; if even
    one frame exceeds it, tokens of the first are taken at even distances. The report warns if less than a token is left
    for each other frame, as by windows of 4 at a quarter of the tokens. The paper's second stage, which prunes the
    cache while decoding, is not here.

    Raises
    ------
    SettingError
        If a setting is out of range, or not exactly one of `keep` and `tokens` is given.

    Examples
    --------
    >>> kept = DyCoke().compress(torch.randn(4, 20, 8))
    >>> (kept.anchor_index // 20).bincount()
    tensor([20,  6,  6,  6])
    """

    keep: float | None = 0.475
    window: int = 4

    paper: ClassVar[str] = "DyCoke: Dynamic Compression of Tokens for Fast Video Large Language Models, 2024"
    advice: ClassVar[Advice] = Advice(
        "Video that changes slowly, on any of the families; it asks nothing of the tower.",
        "What is seen for a moment is overlooked more often than by any other method of its kind that was measured. The"
        " tower still sees everything, which is most of the time in a small model.",
        "keep=0.15",
    )
    compares_frames: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_count(self.window, 2), "window", "a whole number of at least 2")

    def lacks(self, frames: int, cells: int) -> str | None:
        whole = frames * cells
        count = self.count(whole)
        window = wide = self._window(frames, cells, count) if count >= cells else frames
        while wide < frames and count < self._least(frames, cells, wide):
            wide *= 2
        least = self._least(frames, cells, wide)
        if frames == 1 or count >= self._least(frames, cells, window):
            return None
        what = f"the first of every {window} frames" if window < frames else f"one frame of {cells}"
        narrow = self._window(frames, cells, max(count, least)) < min(wide, frames)
        enough = [f"window={wide}"] if narrow else []
        if count < least:
            share = f"keep={math.ceil(1000 * least / whole) / 1000}"
            enough.append(f"at least {share if self.tokens is None else f'tokens={least}'}")
        return f"{count} tokens are not {what} and a token of each other frame: give {' and '.join(enough)}"

    @staticmethod
    def _least(frames: int, cells: int, window: int) -> int:
        """Tokens of the first frame of every window, and one of each other frame."""
        first = -(-frames // window)
        return first * cells + frames - first

    def _window(self, frames: int, cells: int, budget: int) -> int:
        """Frames of a window whose first frames fit into a budget of at least one."""
        window = self.window
        while -(-frames // window) * cells > budget:
            window *= 2
        return window

    def shorten(self, features: torch.Tensor, scores: torch.Tensor | None, key: torch.Tensor | None) -> Compressed:
        frames, length, _ = features.shape
        budget = self.count(frames * length)
        if budget < length:
            return chosen(features, torch.arange(budget, device=features.device) * length // budget)
        window = self._window(frames, length, budget)
        rest = [frame for frame in range(frames) if frame % window]
        counts = apportion([1] * len(rest), budget - (frames - len(rest)) * length, [length] * len(rest))
        unit = normalize(features.float(), dim=-1)
        kept = [torch.arange(length, device=features.device) + frame * length for frame in range(0, frames, window)]
        for frame, count in zip(rest, counts, strict=True):
            cosine = (unit[frame] * unit[reference(frame % window) + frame - frame % window]).sum(-1)
            kept.append(top(-cosine, count) + frame * length)
        return chosen(features, torch.cat(kept))


def reference(offset: int) -> int:
    """The frame with which a later one of a window is compared: its index without the lowest set bit.

    Examples
    --------
    >>> [reference(offset) for offset in (1, 2, 3, 4, 5, 6)]
    [0, 0, 2, 0, 4, 4]
    """
    return offset & (offset - 1)
