"""How the frames of a video fall into segments, and how frames share a budget of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn.functional import normalize

Segment = tuple[int, int]  # first and last frame, both included


def adjacent_cosine(features: torch.Tensor) -> torch.Tensor:
    """Cosine of each token with the one at its place in the next frame, float32, `[F, N, D]` to `[F - 1, N]`."""
    unit = normalize(features.float(), dim=-1)
    return (unit[:-1] * unit[1:]).sum(-1)


def static_gains(similar: torch.Tensor) -> list[list[int]]:
    """Tokens that each possible segment saves by storing what stands still once; HoliTom, 2025.

    Parameters
    ----------
    similar : bool `[F - 1, N]`
        Whether a token is like the one at its place in the next frame.

    Returns
    -------
    ``gains[a][b]`` for frames ``a <= b``: positions that are alike all the way, times ``b - a``.
    """
    alike, place = similar.long(), torch.arange(len(similar) + 1, device=similar.device)
    still = alike.new_zeros(len(place), len(place))
    for first in range(len(alike)):
        still[first, first + 1 :] = alike[first:].cumprod(0).sum(1)
    return (still * (place - place[:, None])).tolist()


def best_segments(gains: Sequence[Sequence[int]], longest: int = 1024) -> tuple[list[Segment], int]:
    """Cut a video into segments whose gains add up to the most, by dynamic programming; HoliTom, 2025.

    Among equals the last segment is the shortest, then the one before it, and so on.

    Parameters
    ----------
    gains
        As :func:`static_gains` has them; a single frame gains nothing.
    longest
        Frames of a segment at most, default 1024 as in the reference code.

    Returns
    -------
    The segments in order, and the sum of their gains.

    Examples
    --------
    >>> best_segments([[0, 3, 2], [0, 0, 1], [0, 0, 0]])
    ([(0, 1), (2, 2)], 3)
    """
    best, start = [0], []  # best[i]: of the first i frames
    for last in range(len(gains)):
        value, first = best[last], last
        for candidate in range(last - 1, max(-1, last - longest), -1):
            found = best[candidate] + gains[candidate][last]
            if found > value:
                value, first = found, candidate
        best.append(value)
        start.append(first)
    segments: list[Segment] = []
    last = len(gains) - 1
    while last >= 0:
        segments.append((start[last], last))
        last = start[last] - 1
    return segments[::-1], best[-1]


def cut_after(cuts: Sequence[int], frames: int) -> list[Segment]:
    """Segments of so many frames that end after each of the sorted frames `cuts`.

    Examples
    --------
    >>> cut_after([0, 3], 6)
    [(0, 0), (1, 3), (4, 5)]
    """
    ends = [*cuts, frames - 1]
    return [(before + 1, end) for before, end in zip([-1, *cuts], ends, strict=True)]


def apportion(weights: Sequence[float], total: int, room: Sequence[int]) -> list[int]:
    """Share `total` in proportion to positive weights, in whole numbers, none above its room.

    Largest remainders, ties by index; where there are fewer than weights, the largest weights get them, and only ties
    are spread evenly, so that equal frames at the end of a video do not all go without: of weights that differ, as
    VidCom2's, those of some stretch may get all. What does not fit anywhere is left over.

    Examples
    --------
    >>> apportion([1, 1, 2], 9, [9, 9, 3]), apportion([1] * 6, 3, [9] * 6)
    ([3, 3, 3], [1, 0, 1, 0, 1, 0])
    """
    counts, free, left = list(room), list(range(len(room))), min(total, sum(room))
    share: dict[int, float] = {}
    while free:
        scale = left / sum(weights[i] for i in free)
        share = {i: weights[i] * scale for i in free}
        full = [i for i in free if share[i] >= room[i]]
        if not full:
            break
        left -= sum(room[i] for i in full)
        free = [i for i in free if share[i] < room[i]]
    for i in free:
        counts[i] = math.floor(share[i])
    spare = left - sum(counts[i] for i in free)
    first = {*evenly(free, spare)} if total < len(room) else {*free}
    for i in sorted(free, key=lambda i: (counts[i] - share[i], i not in first))[:spare]:
        counts[i] += 1
    return counts


def evenly(places: Sequence[int], count: int) -> list[int]:
    """`count` of some places at even distances, or all where there are no more.

    Examples
    --------
    >>> evenly(range(10), 3)
    [0, 4, 7]
    """
    return [place for number, place in enumerate(places) if number * count % len(places) < count]
