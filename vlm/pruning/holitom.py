"""HoliTom: store still tokens of a segment once, and choose the others by attention; lossy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from mmaccel.method import Advice, is_count, is_number, is_share
from mmaccel.registry import register

from .clustering import distances, means, others, peak_scores
from .compressed import Compressed, attention, everything, joined, top
from .compressor import CACHE_METHODS, Compressor
from .inner import late_merging
from .row import Cut
from .segments import Segment, adjacent_cosine, best_segments, static_gains

CENTRE = 0.6  # weight of a centre against the mean of the tokens that join it
NEIGHBOURS = 7


@register("vlm")
@dataclass(frozen=True)
class HoliTom(Compressor):
    """Merge tokens that stand still over a segment, and keep of the others those that the tower attends to; lossy.

    HoliTom: Holistic Token Merging for Fast Video Large Language Models (Shao et al., 2025). The outer stage cuts
    the video into segments so that storing still positions once saves the most tokens, clusters the still tokens, and
    prunes the moving ones; the inner stage merges visual tokens once more inside the language model.

    Parameters
    ----------
    keep
        Share of the visual tokens to give to the language model, above 0 and up to 1 (plain), default
        0.15 as the paper's main setting; None where `tokens` is given.
    tokens
        Number of tokens instead, at least 1, for each video, picture, or tile of one that is cut into tiles; None
        (default) to go by `keep`.
    tau
        Cosine above which a position stands still from a frame to the next, from -1 to 1; None (default) takes the
        paper's values: 0.80, or 0.65 if at most a tenth is kept.
    inner_layer
        Decoder layer before which the inner stage merges, at least 1; None (default) takes 18/28 of the depth, as
        the paper's 18 of 28 layers.
    inner_keep
        Share of the visual tokens that the inner stage keeps, above 0 and up to 1 (inner stage off), default 0.5.

    Notes
    -----
    Lossy. The budget is met up to rounding: with ``r = min(1, keep * F * N / (F * N - saved))``, each frame of a
    segment keeps ``ceil(moving * r)`` tokens and the segment ``round(still * r)`` merged ones, at least one where
    nothing moves. A merged token is 0.6 of its centre and 0.4 of the mean of those that join it. The order is
    still tokens, then the moving ones frame by frame, for each segment. Cluster centres depend on ``exp(-d^2)`` of
    distances between tokens, and so on their scale: a model whose visual tokens have a root mean square far above 1
    gets centres in the most frequent content, such as an empty background, and loses more.

    Raises
    ------
    SettingError
        If a setting is out of range, or not exactly one of `keep` and `tokens` is given.

    Examples
    --------
    >>> still = torch.randn(1, 16, 8).expand(4, -1, -1)
    >>> HoliTom(keep=0.25).compress(still, torch.rand(4, 16)).size.sum()  # all 64 tokens, in 16
    tensor(64)
    """

    keep: float | None = 0.15
    tau: float | None = None
    inner_layer: int | None = None
    inner_keep: float = 0.5

    paper: ClassVar[str] = "HoliTom: Holistic Token Merging for Fast Video Large Language Models, 2025"
    advice: ClassVar[Advice] = Advice(
        "Long video of which much stands still, on models whose attention says what matters.",
        "Where few tokens are left, answers about small things; compare it with VidCom2 on your own clips.",
        "keep=0.25",
    )
    excludes: ClassVar[frozenset[str]] = CACHE_METHODS
    needs_attention: ClassVar[bool] = True
    compares_frames: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.tau is None or is_number(self.tau, -1, 1), "tau", "a cosine from -1 to 1, or None")
        layer = self.inner_layer
        self._require(layer is None or is_count(layer), "inner_layer", "a whole number of at least 1, or None")
        self._require(is_share(self.inner_keep), "inner_keep", "above 0 and at most 1, a share of the visual tokens")

    def shorten(self, features: torch.Tensor, scores: torch.Tensor | None, key: torch.Tensor | None) -> Compressed:
        scores, length = attention(scores), features.shape[0] * features.shape[1]
        share = self.keep if self.tokens is None else self.tokens / length
        assert share is not None
        if share >= 1:
            return everything(features)
        similar = adjacent_cosine(features) > self._tau(share)
        segments, saved = best_segments(static_gains(similar))
        share = min(1.0, share * length / (length - saved))
        parts = [_segment(features, scores, similar, segment, share) for segment in segments]
        return joined(parts)

    def cuts(self, layers: int) -> dict[int, Cut]:
        return late_merging(layers, self.inner_layer, self.inner_keep)

    def _tau(self, share: float) -> float:
        if self.tau is not None:
            return self.tau
        return 0.65 if share <= 0.10 else 0.80


def _segment(
    features: torch.Tensor, scores: torch.Tensor, similar: torch.Tensor, segment: Segment, share: float
) -> Compressed:
    """Still tokens of frames `first` to `last`, then the moving ones frame by frame."""
    first, last = segment
    still = similar[first:last].all(0) if last > first else torch.zeros_like(scores[0], dtype=torch.bool)
    moving = (~still).nonzero().flatten()
    parts = [_moving(features, scores, moving, frame, share) for frame in range(first, last + 1)]
    if last > first:
        place = still.nonzero().flatten()
        count = max(round(len(place) * share), int(not len(moving)))
        mean = features[first : last + 1, place].float().mean(0)
        tokens, centre, size = merge_still(mean, count)
        anchor = first * features.shape[1] + place[centre]
        parts.insert(0, Compressed(tokens.to(features.dtype), anchor, size * (last - first + 1)))
    return joined(parts)


def _moving(features: torch.Tensor, scores: torch.Tensor, moving: torch.Tensor, frame: int, share: float) -> Compressed:
    """The tokens of one frame that receive the most attention, in spatial order."""
    place = moving[top(scores[frame, moving], math.ceil(len(moving) * share))]
    return Compressed(features[frame, place], frame * features.shape[1] + place, torch.ones_like(place))


def merge_still(features: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cluster `[M, D]` into `count` tokens: those `[count, D]`, their centres and how many tokens each stands for."""
    if not count:
        return features[:0], torch.arange(0, device=features.device), torch.arange(0, device=features.device)
    distance = distances(features)
    centre = top(peak_scores(distance, min(NEIGHBOURS, count)), count)
    rest = others(centre, len(features))
    mean, joined = means(features[rest], distance[rest][:, centre].argmin(1), count)
    merged = torch.where(joined[:, None] > 0, CENTRE * features[centre] + (1 - CENTRE) * mean, features[centre])
    return merged, centre, joined + 1
