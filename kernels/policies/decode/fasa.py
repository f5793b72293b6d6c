"""Tokens by scores on a few rotary pairs."""

from __future__ import annotations

import torch

from mmaccel.kernels.checks import check_attention, require

from ..scores import check_count, head_scores
from ..tokens import query_positions, real_tokens
from .double_sparsity import by_head, double_sparsity


def fasa(
    q: torch.Tensor,
    k: torch.Tensor,
    lengths: torch.Tensor,
    *,
    pairs: torch.Tensor,
    count: int = 256,
    sink: int = 4,
    recent: int = 64,
    scale: float | None = None,
) -> torch.Tensor:
    """The tokens of each key head with the most attention, estimated on its dominant rotary pairs (FASA, 2026).

    Rotary embedding splits a score into the parts of its ``D / 2`` pairs of channels; a few of them agree with
    the whole on which tokens matter.

    `q`, `k`, `lengths`, `sink`, `recent`, `scale` and what is returned are as for :func:`double_sparsity`.

    Parameters
    ----------
    pairs : int `[B, Hkv, P]` or `[Hkv, P]`
        Numbers of pairs, from :func:`dominant_pairs`; pair `i` is channels ``i`` and ``i + D / 2``.
    count
        Tokens to attend to in all, those below included; default 256 as in the paper.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, `D` is odd, `count` is below 1, or `sink` or `recent` below 0.
    """
    check_attention(q, k, k)
    require(q.shape[3] % 2 == 0, "q", "of an even head dimension", q)
    pairs = by_head("pairs", pairs, k, "P")
    channels = torch.cat([pairs, pairs + q.shape[3] // 2], -1)
    return double_sparsity(q, k, lengths, channels=channels, count=count, sink=sink, recent=recent, scale=scale)


def dominant_pairs(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    pairs: int | None = None,
    count: int = 256,
    window: int = 16,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """The rotary pairs of each key head whose own top tokens are most often those of the whole head, for :func:`fasa`.

    Once, on the prompt or on sample text: for each of the last `window` queries the `count` tokens that score
    highest on one pair are compared with those of the head; the agreement is the share they have in common.

    Parameters
    ----------
    q : `[B, Hq, M, D]`, k : `[B, Hkv, N, D]`
        Rotated queries and keys of a prompt; the queries are its last `M` tokens.
    pairs
        How many, by default an eighth of the pairs, ``D // 16`` (ours: as many channels as an eighth of `D`).
    count
        Tokens to agree on, default 256; half of those that a query sees, where there are not twice as many.
    window
        Queries to average over, default 16 (ours).
    lengths : int `[B]`
        Tokens in use in each row, None (default) for all `N`.

    Returns
    -------
    int64 `[B, Hkv, P]`, ascending.

    Raises
    ------
    ValueError
        If shapes do not fit, `D` is odd, `pairs` is not between 1 and ``D / 2``, or a number is below 1.
    """
    check_attention(q, k, k)
    check_count("count", count, 1)
    check_count("window", window, 1)
    require(q.shape[3] % 2 == 0, "q", "of an even head dimension", q)
    half = q.shape[3] // 2
    pairs = max(1, half // 8) if pairs is None else pairs
    check_count("pairs", pairs, 1)
    require(pairs <= half, "pairs", f"at most {half}, half the head dimension", pairs)
    queries = q[:, :, -window:]
    position = query_positions(queries, k, lengths)[..., None]
    visible = real_tokens(k, lengths)[:, None] & (torch.arange(k.shape[2], device=k.device) <= position)
    number = (visible.sum(-1) // 2).clamp(1, count)[:, None, :, None]
    most, hidden = int(number.max()), ~visible[:, None]
    among = torch.arange(most, device=k.device) < number  # of the best `most`, those that count
    best = _top(head_scores(queries, k), hidden, most)
    whole = torch.zeros(*queries.shape[:3], k.shape[2], dtype=torch.bool, device=k.device)
    whole.scatter_(-1, best, among.expand_as(best))
    agreement = []
    for pair in range(half):
        parts = slice(pair, pair + half + 1, half)
        best = _top(head_scores(queries[..., parts], k[..., parts]), hidden, most)
        common = (whole.gather(-1, best) & among).sum((-1, -2))
        agreement.append(common.unflatten(1, (k.shape[1], -1)).sum(2))
    order = torch.stack(agreement, -1).argsort(dim=-1, descending=True, stable=True)
    return order[..., :pairs].sort(dim=-1).values


def _top(scores: torch.Tensor, hidden: torch.Tensor, most: int) -> torch.Tensor:
    """The `most` tokens that score highest in `[B, H, M, N]`, best first; those hidden `[B, 1, M, N]` come last."""
    return scores.masked_fill(hidden, -torch.inf).topk(most).indices
