"""VidCom2: the tokens that are least like their video and their frame; lossy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import normalize

from mmaccel.method import Advice, is_number, is_share
from mmaccel.registry import register

from .compressed import Compressed, chosen, top
from .compressor import Compressor
from .segments import apportion

WIDTHS = [2.0**power for power in range(-3, 2)]  # of the Gaussians


@register("vlm")
@dataclass(frozen=True)
class VidCom2(Compressor):
    """Keep the tokens that are least like the mean of their video and of their frame, more in unusual frames; lossy.

    Video Compression Commander: Plug-and-Play Inference Acceleration for Video Large Language Models (Liu et al.,
    2025). Needs no attention, so that the vision tower runs as it is.

    Parameters
    ----------
    keep
        Share of the visual tokens to keep, above 0 and up to 1 (plain), default 0.25 as the paper's main setting;
        None where `tokens` is given.
    tokens
        Number of tokens instead, at least 1, for each video, picture, or tile of one that is cut into tiles; None
        (default) to go by `keep`.
    channels
        Share of the channels to compare by, those that vary least, above 0 and up to 1, default 0.5 as the
        reference code.
    temperature
        How evenly frames share the budget: the higher the more even, above 0, default 0.01 as the reference code.

    Notes
    -----
    Lossy: what was dropped is gone. The number kept is exact; the reference code rounds frame by frame and leaves
    each at least one token.

    Raises
    ------
    SettingError
        If a setting is out of range, or not exactly one of `keep` and `tokens` is given.

    Examples
    --------
    >>> VidCom2(keep=0.25).compress(torch.randn(4, 16, 8)).tokens.shape
    torch.Size([16, 8])
    """

    channels: float = 0.5
    temperature: float = 0.01

    paper: ClassVar[str] = (
        "Video Compression Commander: Plug-and-Play Inference Acceleration for Video Large Language Models, 2025"
    )
    advice: ClassVar[Advice] = Advice(
        "Models whose tower gives no attention, or runs compiled.",
        "It goes by what is unusual, and that need not be what is asked for.",
    )
    compares_frames: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_share(self.channels), "channels", "above 0 and at most 1, a share of the channels")
        valid = is_number(self.temperature, 0) and self.temperature > 0
        self._require(valid, "temperature", "a number above 0")

    def shorten(self, features: torch.Tensor, scores: torch.Tensor | None, key: torch.Tensor | None) -> Compressed:
        frames, length, _ = features.shape
        unit = normalize(steady_channels(features.float(), self.channels), dim=-1)
        to_video = closeness(unit, unit.mean((0, 1), keepdim=True))
        alike = to_video + closeness(unit, unit.mean(1, keepdim=True))
        unusual = torch.softmax(-to_video.mean(1) / self.temperature, 0)
        weights = (1 + unusual - unusual.mean()).tolist()
        counts = apportion(weights, self.count(frames * length), [length] * frames)
        kept = [top(-row, count) + i * length for i, (row, count) in enumerate(zip(alike, counts, strict=True))]
        return chosen(features, torch.cat(kept))


def steady_channels(features: torch.Tensor, share: float) -> torch.Tensor:
    """The channels of `[F, N, D]` that vary least over the video, at least one."""
    variance = features.flatten(0, 1).var(0, correction=0)
    return features[..., top(-variance, max(1, int(len(variance) * share)))]


def closeness(unit: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """Sum over :data:`WIDTHS` `a` of ``exp(-|x - centre|^2 / (2 a))``, `[F, N, D]` to `[F, N]`.

    Examples
    --------
    >>> closeness(torch.zeros(1, 1, 4), torch.zeros(1, 1, 4))
    tensor([[5.]])
    """
    squared = ((unit - centre) ** 2).sum(-1)
    total = torch.zeros_like(squared)
    for width in WIDTHS:
        total += (-squared / (2 * width)).exp()
    return total
