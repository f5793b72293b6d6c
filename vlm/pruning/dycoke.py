"""DyCoke: of a window of frames the first is kept whole, of the others what has changed; lossy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import normalize

from mmaccel.method import is_count
from mmaccel.registry import register

from .compressed import Compressed, chosen, top
from .compressor import Compressor
from .segments import apportion


@register("vlm")
@dataclass(frozen=True)
class DyCoke(Compressor):
    """Keep the first of every few frames whole, and of the others the tokens that changed most; lossy.

    DyCoke: Dynamic Compression of Tokens for Fast Video Large Language Models (Tao et al., 2024), its temporal
    token merging. Needs no attention, so that the vision tower runs as it is.

    Parameters
    ----------
    keep
        Share of the visual tokens to keep, above 0 and up to 1 (plain), default 0.475: with windows of 4 that is the
        paper's merging rate K = 0.7 (``keep = (1 + 3 * (1 - K)) / 4``); None where `tokens` is given.
    tokens
        Number of tokens for the whole video instead, at least 1; None (default) to go by `keep`.
    window
        Frames of a window, at least 2, default 4 as in the paper.

    Notes
    -----
    Lossy: what was dropped is gone; tokens are dropped in favour of their like in an earlier frame, none are
    averaged. Every second frame of a window goes by its cosine with the one before, every fourth by the one two
    before, and so on. Where the first frames alone exceed the budget, the window is doubled until they do not; where
    even one frame does, tokens of the first are taken at even distances. A budget that does not hold one frame and a
    token of each other one is a warning of the report. The paper's second stage, which prunes the cache while decoding,
    is not here.

    Raises
    ------
    SettingError
        If a setting is out of range, or not just one of `keep` and `tokens` is given.

    Examples
    --------
    >>> kept = DyCoke().compress(torch.randn(4, 20, 8))
    >>> (kept.anchor_index // 20).bincount()
    tensor([20,  6,  6,  6])
    """

    keep: float | None = 0.475
    window: int = 4

    paper: ClassVar[str] = "DyCoke: Dynamic Compression of Tokens for Fast Video Large Language Models, 2024"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_count(self.window, 2), "window", "a whole number of at least 2")

    def lacks(self, frames: int, cells: int) -> str | None:
        count, whole = self.count(frames * cells), frames * cells
        least = cells + frames - 1
        if frames == 1 or count >= least:
            return None
        enough = f"keep={math.ceil(1000 * least / whole) / 1000}" if self.tokens is None else f"tokens={least}"
        return f"{count} tokens are not one frame of {cells} and a token of each other frame: give at least {enough}"

    def shorten(self, features: torch.Tensor, scores: torch.Tensor | None, key: torch.Tensor | None) -> Compressed:
        frames, length, _ = features.shape
        budget = self.count(frames * length)
        if budget < length:
            return chosen(features, torch.arange(budget, device=features.device) * length // budget)
        window = self.window
        while -(-frames // window) * length > budget:
            window *= 2
        rest = [frame for frame in range(frames) if frame % window]
        counts = apportion([1] * len(rest), budget - (frames - len(rest)) * length, [length] * len(rest))
        unit = normalize(features.float(), dim=-1)
        kept = [torch.arange(length, device=features.device) + frame * length for frame in range(0, frames, window)]
        for frame, count in zip(rest, counts, strict=True):
            cosine = (unit[frame] * unit[reference(frame % window) + frame - frame % window]).sum(-1)
            kept.append(top(-cosine, count) + frame * length)
        return chosen(features, torch.cat(kept))


def reference(offset: int) -> int:
    """The frame of a window that a later one is compared with: its number without the lowest binary digit that is set.

    Examples
    --------
    >>> [reference(offset) for offset in (1, 2, 3, 4, 5, 6)]
    [0, 0, 2, 0, 4, 4]
    """
    return offset & (offset - 1)
