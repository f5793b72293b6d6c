"""EarlyTom: frames merged inside the vision tower, then fewer tokens of each frame; lossy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch.nn.functional import normalize

from mmaccel.method import Advice, is_count, is_number, is_share
from mmaccel.registry import register

from .compressed import Compressed, attention, chosen, top
from .compressor import CACHE_METHODS, Compressor
from .inner import late_merging
from .row import Cut
from .segments import Segment, cut_after, evenly


@register("vlm")
@dataclass(frozen=True)
class EarlyTom(Compressor):
    """Merge similar frames inside the vision tower, and keep fewer tokens of the remaining ones; lossy.

    EarlyTom: Early Token Compression Completes Fast Video Understanding (Wang et al., 2026). Inside the tower,
    :func:`plan_merges` after a few layers; at its end, :meth:`compress`: the frames at both ends of a segment keep
    the tokens with the most attention; the frames between keep the best token of each of several even stretches, so
    that they cover the frame.

    Parameters
    ----------
    keep
        Share of the visual tokens to keep, above 0 and up to 1 (plain), default 0.2 as the reference code's example;
        None where `tokens` is given.
    tokens
        Number of tokens instead, at least 1, for each video, picture, or tile of one that is cut into tiles; None
        (default) to go by `keep`.
    tau
        Running cosine with a segment's first frame below which a new one begins, from -1 to 1, default 0.5 as the
        reference code's example.
    window
        A segment has fewer frames than this, at least 2, default 6 as the reference code's example.
    ema
        Share of the newest cosine in the running one, above 0 and up to 1, default 0.9 as the reference code.
    alike
        Least cosine of any patch of two frames that merge, from -1 (the paper's: the mean alone counts) to 1. Above
        that, what is seen for a moment in one place stays: it changes a few patches much and the mean hardly. Default
        0.3, measured to answer most questions about brief events.
    merge_after
        Number of tower layers after which frames merge, and merge again after as many more; 0 for never, None (default)
        for a third of the depth.
    inner_layer
        Layer of the language model before which it merges once more, as in :class:`HoliTom`.
    inner_keep
        Share of the tokens that this keeps, as in :class:`HoliTom`.

    Notes
    -----
    Lossy: dropped tokens are gone. The number kept is exact and spread evenly over the frames; a remainder goes to the
    ends of segments first. The reference code rounds the ends up and the rest to the nearest. Frames that are several
    in the tower, as with Ernie 4.5, merge there, and count all the same behind it; pictures do not merge.

    Raises
    ------
    SettingError
        If a setting is out of range, or not exactly one of `keep` and `tokens` is given.

    Examples
    --------
    >>> EarlyTom(keep=0.25).compress(torch.randn(4, 16, 8), torch.rand(4, 16)).tokens.shape
    torch.Size([16, 8])
    """

    keep: float | None = 0.2
    tau: float = 0.5
    window: int = 6
    ema: float = 0.9
    alike: float = 0.3
    merge_after: int | None = None
    inner_layer: int | None = None
    inner_keep: float = 0.5

    paper: ClassVar[str] = "EarlyTom: Early Token Compression Completes Fast Video Understanding, 2026"
    advice: ClassVar[Advice] = Advice(
        "Models that are shown many frames: the vision tower has less to do as well.",
        "Frames that were merged before the tower had read them can lose what told them apart.",
        "keep=0.15",
    )
    excludes: ClassVar[frozenset[str]] = CACHE_METHODS
    needs_attention: ClassVar[bool] = True
    compares_frames: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_number(self.tau, -1, 1), "tau", "a cosine from -1 to 1")
        self._require(is_number(self.alike, -1, 1), "alike", "a cosine from -1 to 1")
        self._require(is_count(self.window, 2), "window", "a whole number of at least 2")
        self._require(is_share(self.ema), "ema", "above 0 and at most 1")
        after, layer = self.merge_after, self.inner_layer
        self._require(after is None or is_count(after, 0), "merge_after", "a whole number of at least 0, or None")
        self._require(layer is None or is_count(layer), "inner_layer", "a whole number of at least 1, or None")
        self._require(is_share(self.inner_keep), "inner_keep", "above 0 and at most 1, a share of the visual tokens")

    def merges_after(self, layers: int) -> tuple[int, ...]:
        step = max(1, layers // 3) if self.merge_after is None else self.merge_after
        return tuple(range(step, layers, step)) if step else ()

    def merge(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        merges = plan_merges(frames, self.tau, self.window, self.ema, self.alike)
        return merges.apply(frames), merges.first

    def cuts(self, layers: int) -> dict[int, Cut]:
        return late_merging(layers, self.inner_layer, self.inner_keep)

    def shorten(self, features: torch.Tensor, scores: torch.Tensor | None, key: torch.Tensor | None) -> Compressed:
        scores = attention(scores)
        frames, length, _ = features.shape
        ends = {end for segment in running_segments(features, self.tau, self.window, self.ema) for end in segment}
        each, spare = divmod(self.count(frames * length), frames)
        others = [frame for frame in range(frames) if frame not in ends]
        if each:
            more = {*[*sorted(ends), *others][:spare]}
        else:
            more = {*evenly(sorted(ends), spare), *evenly(others, max(0, spare - len(ends)))}
        kept = []
        for frame in range(frames):
            choose = top if frame in ends else top_of_stretches
            kept.append(choose(scores[frame], each + (frame in more)) + frame * length)
        return chosen(features, torch.cat(kept))


class FrameMerges(NamedTuple):
    """A plan of merged frames: the remaining frame `i` is ``weight * first + (1 - weight) * second``.

    Attributes
    ----------
    first, second : int64 `[F']`
        The two input frames, ascending; the same one twice if nothing merged.
    weight : float32 `[F']`
    """

    first: torch.Tensor
    second: torch.Tensor
    weight: torch.Tensor

    def apply(self, frames: torch.Tensor) -> torch.Tensor:
        """Merge anything that has one entry a frame, `[F, ...]` to `[F', ...]`: hidden states, attention, keys."""
        merged, both = frames[self.first], self.first != self.second
        weight = self.weight[both].view(-1, *[1] * (frames.dim() - 1))
        pairs = weight * frames[self.first[both]].float() + (1 - weight) * frames[self.second[both]].float()
        merged[both] = pairs.to(frames.dtype)
        return merged


class Likeness:
    """Mean cosine over the tokens of each two frames of `[F, N, D]` in one window, read from the device at once."""

    def __init__(self, frames: torch.Tensor, window: int) -> None:
        unit, self.frames = normalize(frames.float(), dim=-1), len(frames)
        apart = range(1, min(window, len(unit)))
        cosines = [(unit[:-far] * unit[far:]).sum(-1) for far in apart]
        places = torch.cat(cosines) if cosines else unit.new_zeros(0, frames.shape[1])  # of the tokens, [pairs, N]
        pairs = [(first, first + far) for far in apart for first in range(len(unit) - far)]
        means, least = torch.stack([places.mean(1), places.amin(1)]).tolist()
        self.means, self.lowest = (dict(zip(pairs, found, strict=True)) for found in (means, least))

    def __len__(self) -> int:
        return self.frames

    def __call__(self, first: int, second: int) -> float:
        return 1.0 if first == second else self.means[first, second]

    def least(self, first: int, second: int) -> float:
        """The cosine of those tokens at one place that are least alike."""
        return self.lowest[first, second]


def running_segments(
    frames: torch.Tensor | Likeness, tau: float = 0.5, window: int = 6, ema: float = 0.9
) -> list[Segment]:
    """Cut `[F, N, D]` where the running cosine with the segment's first frame falls below `tau`, or it gets long.

    Examples
    --------
    >>> running_segments(torch.ones(7, 1, 2), window=6)
    [(0, 4), (5, 6)]
    """
    like = frames if isinstance(frames, Likeness) else Likeness(frames, window)
    cuts: list[int] = []
    start, running = 0, 1.0
    for frame in range(1, len(like)):
        running = ema * like(start, frame) + (1 - ema) * running
        if running < tau or frame - start + 1 >= window:
            cuts.append(frame - 1)
            start, running = frame, 1.0
    return cut_after(cuts, len(like))


def plan_merges(
    frames: torch.Tensor, tau: float = 0.5, window: int = 6, ema: float = 0.9, alike: float = -1.0
) -> FrameMerges:
    """Which adjacent frames to merge: in the middle of a segment, more alike than its two ends and than the next pair.

    Parameters
    ----------
    frames : `[F, N, D]`
        Hidden states of a vision tower, or any features.
    tau, window, ema, alike
        As the fields of :class:`EarlyTom`.

    Returns
    -------
    The frames left, with weights ``cosine / (cosine + next cosine)`` of the first of each pair; 1 where no next pair
    is, or where it is not alike at all. The reference code drops the last middle frame of a segment where it does
    not merge; here it stays.

    Examples
    --------
    >>> merges = plan_merges(torch.tensor([0.0, 1.0, 1.01, 9.0])[:, None, None].expand(-1, 3, 2) + 1)
    >>> merges.first, merges.second  # all point the same way: no pair is more alike than the ends
    (tensor([0, 1, 2, 3]), tensor([0, 1, 2, 3]))
    """
    like = Likeness(frames, window)
    between = [like(frame, frame + 1) for frame in range(len(like) - 1)]
    rows: list[tuple[int, int, float]] = []
    for first, last in running_segments(like, tau, window, ema):
        least = like(first, last)
        frame = first
        while frame <= last:
            following = between[frame + 1] if frame + 2 < last else 0.0
            middle = first < frame and frame + 1 < last
            best = middle and between[frame] > least and (between[frame] > following or frame + 2 == last)
            if best and (alike == -1 or like.least(frame, frame + 1) >= alike):
                weight = between[frame] / (between[frame] + following) if following > 0 else 1.0
                rows.append((frame, frame + 1, weight))
                frame += 2
            else:
                rows.append((frame, frame, 1.0))
                frame += 1
    one, two, weights = zip(*rows, strict=True)
    device = frames.device
    pairs = torch.tensor([one, two], device=device)
    return FrameMerges(pairs[0], pairs[1], torch.tensor(weights, device=device))


def top_of_stretches(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Cut `[N]` into `count` stretches, the first ones one longer if need be, and take the highest of each, first wins.

    Examples
    --------
    >>> top_of_stretches(torch.tensor([0.1, 0.9, 0.2, 0.5, 0.4]), 2)
    tensor([1, 3])
    """
    if not count:
        return torch.arange(0, device=scores.device)
    size, longer = divmod(len(scores), count)
    sizes = torch.tensor([size + 1] * longer + [size] * (count - longer), device=scores.device)
    stretch = torch.arange(count, device=scores.device).repeat_interleave(sizes, output_size=len(scores))
    order = scores.sort(descending=True, stable=True).indices
    order = order[stretch[order].sort(stable=True).indices]
    return order[sizes.cumsum(0) - sizes]
