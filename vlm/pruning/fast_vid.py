"""FastVID: segments by scene, important tokens of each frame, and anchors that stand for the rest; lossy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import normalize

from mmaccel.method import Advice, is_count, is_number
from mmaccel.registry import register

from .clustering import distances, means, others, peak_scores
from .compressed import Compressed, attention, everything, in_order, joined, top
from .compressor import Compressor
from .segments import Segment, apportion, cut_after

NEIGHBOURS = 4


@register("vlm")
@dataclass(frozen=True)
class FastVID(Compressor):
    """Cut a video into scenes, keep what is attended to, and merge the rest into dense anchors; lossy.

    FastVID: Dynamic Density Pruning for Fast Video Large Language Models (Shen et al., 2025): dynamic temporal
    segmentation, then density spatiotemporal pruning.

    Parameters
    ----------
    keep
        Share of the visual tokens to give to the language model, above 0 and up to 1 (plain), default 0.25; None
        where `tokens` is given.
    tokens
        Number of tokens instead, at least 1, for each video, picture, or tile of one that is cut into tiles; None
        (default) to go by `keep`.
    segments
        Fewest scenes (at most one per frame), default 8 as in the paper.
    tau
        Cosine of adjacent frames below which the video is always cut, from -1 to 1, default 0.9 as in the paper.
    context
        Share of the kept tokens that are anchors, from 0 to 1, default 0.4 as in the paper.
    stride
        Anchors lie in the last frame of a scene and in every stride-th before it, default 4 as in the paper.
    beta
        Lowest weight of an anchor against the mean of the tokens that join it, from 0 to 1, default 0.6 as in
        the reference code.

    Notes
    -----
    Lossy. The number kept is exact. A frame's feature is the mean of its tokens, and its attention is what they
    receive; the reference code has both from the vision tower's pooling head. A token joins one anchor, the most
    similar of its scene; in the reference code it joins one in each frame with anchors. Anchors that find no room
    become attended-to tokens of other frames.

    Raises
    ------
    SettingError
        If a setting is out of range, or not exactly one of `keep` and `tokens` is given.

    Examples
    --------
    >>> kept = FastVID(keep=0.25).compress(torch.randn(4, 16, 8), torch.rand(4, 16))
    >>> kept.tokens.shape, kept.size.sum()
    (torch.Size([16, 8]), tensor(64))
    """

    segments: int = 8
    tau: float = 0.9
    context: float = 0.4
    stride: int = 4
    beta: float = 0.6

    paper: ClassVar[str] = "FastVID: Dynamic Density Pruning for Fast Video Large Language Models, 2025"
    advice: ClassVar[Advice] = Advice(
        "Video that is cut into scenes.",
        "Small things between its anchors, which the questions of the small model ask for.",
    )
    needs_attention: ClassVar[bool] = True
    compares_frames: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_count(self.segments), "segments", "a whole number of at least 1")
        self._require(is_number(self.tau, -1, 1), "tau", "a cosine from -1 to 1")
        self._require(is_number(self.context, 0, 1), "context", "from 0 to 1, a share of the tokens that are kept")
        self._require(is_count(self.stride), "stride", "a whole number of at least 1")
        self._require(is_number(self.beta, 0, 1), "beta", "from 0 to 1")

    def shorten(self, features: torch.Tensor, scores: torch.Tensor | None, key: torch.Tensor | None) -> Compressed:
        scores = attention(scores)
        frames, length, _ = features.shape
        budget = self.count(frames * length)
        if budget == frames * length:
            return everything(features)
        counts = apportion([1] * frames, budget, [length] * frames)
        parts = [
            self._segment(features, scores, segment, counts[segment[0] : segment[1] + 1])
            for segment in scenes(features, self.segments, self.tau)
        ]
        return joined(parts)

    def _segment(self, features: torch.Tensor, scores: torch.Tensor, segment: Segment, counts: list[int]) -> Compressed:
        first, (frames, length) = segment[0], (len(counts), features.shape[1])
        part, salient, anchors = features[first : first + frames], [], []
        for frame, (many, few) in enumerate(zip(*self._budgets(counts, length), strict=True)):
            salient.append(top(scores[first + frame], many) + frame * length)
            rest = others(salient[-1] - frame * length, length)
            dense = top(peak_scores(distances(part[frame, rest]), NEIGHBOURS), few) if few else rest[:0]
            anchors.append(rest[dense] + frame * length)
        kept = merge_into_anchors(part.flatten(0, 1), torch.cat(salient), torch.cat(anchors), self.beta)
        return kept._replace(anchor_index=kept.anchor_index + first * length)

    def _budgets(self, counts: list[int], length: int) -> tuple[list[int], list[int]]:
        """Attended-to tokens and anchors of each frame of a scene."""
        contexts = [int(count * self.context) for count in counts]
        salient = [count - context for count, context in zip(counts, contexts, strict=True)]
        has = [(len(counts) - 1 - frame) % self.stride == 0 for frame in range(len(counts))]
        room = [length - many if anchor else 0 for many, anchor in zip(salient, has, strict=True)]
        over = max(0, sum(contexts) - sum(room))
        free = [0 if anchor else length - many for many, anchor in zip(salient, has, strict=True)]
        salient = [many + extra for many, extra in zip(salient, apportion([1] * len(free), over, free), strict=True)]
        return salient, apportion([1] * len(room), sum(contexts) - over, room)


def scenes(features: torch.Tensor, least: int, tau: float) -> list[Segment]:
    """Cut `[F, N, D]` where adjacent frames are least alike: ``least - 1`` times, and wherever below `tau`.

    Examples
    --------
    >>> frames = torch.eye(2).repeat_interleave(3, 0)[:, None]  # 3 frames of one, 3 of another
    >>> scenes(frames, 2, 0.9)
    [(0, 2), (3, 5)]
    """
    unit = normalize(features.float().mean(1), dim=-1)
    cosine = (unit[:-1] * unit[1:]).sum(-1)
    cut = cosine < tau
    cut[top(-cosine, least - 1)] = True
    return cut_after(cut.nonzero().flatten().tolist(), len(features))


def merge_into_anchors(features: torch.Tensor, salient: torch.Tensor, anchors: torch.Tensor, beta: float) -> Compressed:
    """Keep some tokens of `[M, D]`, and merge all others into the most similar anchor; in order of index."""
    index = torch.cat([salient, anchors])
    tokens, size = features[index], torch.ones_like(index)
    if len(anchors):
        rest = others(salient, len(features))
        unit = normalize(features.float(), dim=-1)
        owner = (unit[rest] @ unit[anchors].T).argmax(1)
        owner[torch.searchsorted(rest, anchors)] = torch.arange(len(anchors), device=owner.device)
        mean, joined = means(features[rest], owner, len(anchors))
        weight = (1 / (joined + 1)).clamp(min=beta)[:, None]
        merged = (weight * features[anchors].float() + (1 - weight) * mean).to(features.dtype)
        tokens[len(salient) :] = torch.where(joined[:, None] > 1, merged, features[anchors])
        size[len(salient) :] = joined
    return in_order(tokens, index, size)
