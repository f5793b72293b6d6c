"""Tokens by scores on a few channels."""

from __future__ import annotations

import torch

from mmaccel.kernels.checks import check_attention, check_indices, require

from ..scores import check_count, work
from ..tokens import check_decode, choose, query_positions, real_tokens, votes


def double_sparsity(
    q: torch.Tensor,
    k: torch.Tensor,
    lengths: torch.Tensor,
    *,
    channels: torch.Tensor,
    count: int = 1024,
    sink: int = 4,
    recent: int = 64,
    scale: float | None = None,
) -> torch.Tensor:
    """The tokens of each key head with the most attention, estimated on its label channels (Double Sparsity, 2024).

    Parameters
    ----------
    q : `[B, Hq, M, D]`
        The newest queries, rotated.
    k : `[B, Hkv, N, D]`
        The cache, the new tokens' keys included.
    lengths : int32 or int64 `[B]`
        Tokens in use in each row, the `M` new ones included.
    channels : int `[B, Hkv, R]` or `[Hkv, R]`
        Label channels, from :func:`label_channels`.
    count
        Tokens to attend to in all, those below included; default 1024 (the paper keeps a sixteenth of them).
    sink, recent
        Leading and newest tokens that are always attended to, the `M` new ones in any case; defaults 4 and 64
        (ours). Where they are more than `count`, `count` grows to hold them.
    scale
        Of the scores, by default ``D ** -0.5``.

    Returns
    -------
    int32 `[B, Hkv, S]`, ascending and -1 at the end, for :func:`mmaccel.kernels.verify_attention`.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, `count` is below 1, or `sink` or `recent` below 0.
    """
    real = check_decode(q, k, lengths, count, sink, recent)
    channels = by_head("channels", channels, k, "R")
    labels = k.gather(3, channels[:, :, None].expand(-1, -1, k.shape[2], -1))
    index = channels.repeat_interleave(q.shape[1] // k.shape[1], 1)[:, :, None].expand(-1, -1, q.shape[2], -1)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    score = votes(q.gather(3, index), labels, lengths, real, scale)
    return choose(score, real, count, sink, recent, q.shape[2])


def label_channels(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    channels: int | None = None,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """The channels of each key head with the largest products ``|q * k|``, for :func:`double_sparsity`.

    They hardly change within a model, so that they are found once: on sample text, or on the prompt.

    Parameters
    ----------
    q : `[B, Hq, M, D]`, k : `[B, Hkv, N, D]`
        Rotated queries and keys; the queries are the last `M` tokens.
    channels
        How many, by default ``D // 16`` as in the paper.
    lengths : int `[B]`
        Tokens in use in each row, None (default) for all `N`.

    Returns
    -------
    int64 `[B, Hkv, R]`, ascending. For one set for all rows call it with their tokens in one row.

    Raises
    ------
    ValueError
        If shapes do not fit or `channels` is not between 1 and `D`.
    """
    check_attention(q, k, k)
    width = q.shape[3]
    channels = max(1, width // 16) if channels is None else channels
    check_count("channels", channels, 1)
    require(channels <= width, "channels", f"at most {width}, the head dimension", channels)
    real = real_tokens(k, lengths)
    asked = query_positions(q, k, lengths)
    real_queries = real.gather(1, asked.clamp(min=0)) & (asked >= 0)
    size_q = work(q).abs().masked_fill(~real_queries[:, None, :, None], 0.0)
    size_k = work(k).abs().masked_fill(~real[:, None, :, None], 0.0)
    # the sum over all pairs of products is the product of sums
    product = size_q.sum(2).unflatten(1, (k.shape[1], -1)).sum(2) * size_k.sum(2)
    order = product.argsort(dim=-1, descending=True, stable=True)
    return order[..., :channels].sort(dim=-1).values


def by_head(name: str, chosen: torch.Tensor, k: torch.Tensor, count: str) -> torch.Tensor:
    """What is chosen for each key head of each row, `[B, Hkv, count]`, where all rows may have one choice."""
    check_indices(name, chosen, k.device, (2, 3))
    rows = chosen if chosen.ndim == 3 else chosen[None].expand(k.shape[0], -1, -1)
    fits = tuple(rows.shape[:2]) == tuple(k.shape[:2])
    require(fits, name, f"[{k.shape[0]}, {k.shape[1]}, {count}] or [{k.shape[1]}, {count}]", chosen)
    return rows.long()
