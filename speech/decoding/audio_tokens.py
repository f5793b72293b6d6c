"""Merging and choosing audio tokens: runs that sound alike become one, and the most telling ones stay."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from mmaccel.kernels import segment_mean

SPENT = 1e-9  # share of the largest gain below which a kernel's rank is used up


class MergedTokens(NamedTuple):
    """What is left of `B` rows of `T` audio tokens, at most `K` each, in the order of time.

    Attributes
    ----------
    features : `[B, K, D]`
        Weighted means of runs; 0 in the padding at the end of rows with fewer.
    first : int64 `[B, K]`
        First token of each run; 0 in the padding.
    size : int64 `[B, K]`
        Tokens of each run; 0 in the padding.
    """

    features: torch.Tensor
    first: torch.Tensor
    size: torch.Tensor


def merge_tokens(
    features: torch.Tensor,
    importance: torch.Tensor,
    keep: float = 0.6,
    threshold: float = 0.85,
    mask: torch.Tensor | None = None,
    equal: bool = False,
) -> MergedTokens:
    """Shorten audio features by SA-MAP (AngelSlim, 2025): merge neighbours that are alike, then choose.

    A token joins the run before it if its mean cosine similarity to all its members reaches `threshold`. A run
    becomes the mean of its members, weighted by importance. Of the runs, `round(keep * T)` stay: those that greedily
    make the determinant of ``r_i * cosine_ij * r_j`` largest, where `r` is the importance of all members, so that
    they are telling and unlike each other. Where fewer runs exist than that, all stay. Lossy.

    Parameters
    ----------
    features
        `[B, T, D]`
    importance
        `[B, T]`, at least 0: such as the attention that each token receives.
    keep
        Share of the tokens of a row that may stay, above 0 and at most 1; default 0.6, as published.
    threshold
        Cosine similarity from -1 to 1; default 0.85, as published. Above 1 nothing merges.
    mask
        `[B, T]`, 0 for padding, which no run contains; default none.
    equal
        Whether all rows get the same number of tokens, for decoders that take no mask: rows with fewer runs have
        their longest ones halved.

    Returns
    -------
    MergedTokens
    """
    real = torch.ones_like(importance, dtype=torch.bool) if mask is None else mask.bool()
    places = [row.nonzero().squeeze(1) for row in real]
    unit = torch.nn.functional.normalize(features.detach().float(), dim=-1)
    runs = [similar_runs(row[place].cpu().numpy(), threshold) for row, place in zip(unit, places, strict=True)]
    counts = [min(max(1, round(keep * len(place))), len(run)) for place, run in zip(places, runs, strict=True)]
    if equal:
        most = min(max(counts), min(len(place) for place in places))
        counts = [most] * len(counts)
        runs = [_halved(run, len(place), most) for run, place in zip(runs, places, strict=True)]
    rows = [
        _row(features[b, place], importance[b, place].float(), runs[b], counts[b], place)
        for b, place in enumerate(places)
    ]
    pad = torch.nn.utils.rnn.pad_sequence
    return MergedTokens(*(pad(list(part), batch_first=True) for part in zip(*rows, strict=True)))


def similar_runs(unit: np.ndarray, threshold: float) -> list[int]:
    """First token of each run of `[T, D]` unit vectors, in one pass over time."""
    starts: list[int] = []
    total: np.ndarray = np.zeros(unit.shape[-1], dtype=unit.dtype)
    for token, vector in enumerate(unit):
        # the mean cosine to all members is that to their sum, over their number
        if starts and float(vector @ total) >= threshold * (token - starts[-1]):
            total = total + vector
        else:
            starts.append(token)
            total = vector
    return starts


def _halved(starts: list[int], tokens: int, count: int) -> list[int]:
    """Runs, with the longest halved until there are so many."""
    starts = list(starts)
    while len(starts) < count:
        ends = [*starts[1:], tokens]
        longest = max(range(len(starts)), key=lambda run: ends[run] - starts[run])
        starts.insert(longest + 1, (starts[longest] + ends[longest]) // 2)
    return starts


def _row(
    features: torch.Tensor, importance: torch.Tensor, starts: list[int], count: int, place: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features `[K, D]`, first tokens `[K]` and sizes `[K]` of one row without padding."""
    first = torch.tensor(starts, device=features.device, dtype=torch.long)
    size = torch.diff(first, append=first.new_tensor([len(features)]))
    run = torch.repeat_interleave(torch.arange(len(first), device=first.device), size)
    weight = importance.clamp_min(torch.finfo(torch.float32).tiny)
    weight = weight / weight.new_zeros(len(first)).index_add(0, run, weight)[run]  # 1 where a run is one token
    every = torch.arange(len(features), device=first.device)
    merged = segment_mean(features, weight, every, torch.cat([first, first.new_tensor([len(features)])]))
    if count < len(first):
        relevance = importance.new_zeros(len(first)).index_add(0, run, importance)
        kept = torch.tensor(_chosen(merged, relevance, count), device=first.device)
        merged, first, size = merged[kept], first[kept], size[kept]
    return merged, place[first], size


def _chosen(merged: torch.Tensor, relevance: torch.Tensor, count: int) -> list[int]:
    if merged.device.type in ("mps", "xpu"):  # which may have no float64
        merged, relevance = merged.cpu(), relevance.cpu()
    unit = torch.nn.functional.normalize(merged.detach().double(), dim=-1)
    relevance = relevance.double() / relevance.double().max().clamp_min(torch.finfo(torch.float64).tiny)
    kernel = relevance[:, None] * (unit @ unit.T) * relevance
    return sorted(greedy_map(kernel.cpu().numpy(), count))


def greedy_map(kernel: np.ndarray, count: int) -> list[int]:
    """Items that greedily make the determinant of a kernel `[N, N]` largest, in the order they are chosen.

    Fast Greedy MAP Inference for Determinantal Point Process to Improve Recommendation Diversity, 2018: the Cholesky
    factor grows by one row for each item, so that each costs N times those chosen. Once the rank of the kernel is
    used up, every further item makes the determinant 0; then the largest on the diagonal come first.

    Examples
    --------
    >>> greedy_map(np.array([[1.0, 0.9, 0.0], [0.9, 0.9, 0.0], [0.0, 0.0, 0.5]]), 2)
    [0, 2]
    """
    gain = np.diagonal(kernel).astype(np.float64).copy()
    factor = np.zeros((count, len(gain)))
    chosen: list[int] = []
    while len(chosen) < count:
        item, step = int(np.argmax(gain)), len(chosen)
        if gain[item] <= SPENT * kernel.diagonal().max():
            break
        factor[step] = (kernel[item] - factor[:step, item] @ factor[:step]) / np.sqrt(gain[item])
        gain -= factor[step] ** 2
        gain[item] = -np.inf
        chosen.append(item)
    taken = set(chosen)
    rest = [item for item in np.argsort(-kernel.diagonal(), kind="stable").tolist() if item not in taken]
    return chosen + rest[: count - len(chosen)]
