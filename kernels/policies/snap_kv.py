"""Which tokens of a prompt to keep, by the attention of its end."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from mmaccel.kernels.checks import check_attention, require

from .blocks import check_count, head_scores, masked_softmax
from .tokens import check_valid, real_tokens, select

POOLS = ("avg", "max")


def snap_kv(
    q_window: torch.Tensor,
    k: torch.Tensor,
    *,
    count: int,
    window: int = 32,
    kernel: int = 7,
    pool: str = "avg",
    valid: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """The last tokens of a prompt, and those that they attend to most, with their surroundings (SnapKV, 2024).

    Parameters
    ----------
    q_window : `[B, Hq, W, D]`
        The last queries of the prompt, rotated; of more than `window` the last ones count.
    k : `[B, Hkv, N, D]`
        All keys of the prompt, rotated.
    count
        Tokens to keep per key head, the window included.
    window
        Last tokens whose attention is summed, and which are kept; default 32 as in the paper.
    kernel
        Width of the pooling over neighbouring tokens, odd, default 7 as in the paper; 1 for none.
    pool
        ``"avg"`` (default, as in the authors' code) or ``"max"``.
    valid : bool `[B, N]`
        False for padding on the left, which is never kept; None (default) for none.
    scale
        Of the scores, by default ``D ** -0.5``.

    Returns
    -------
    int32 `[B, Hkv, min(count, N)]`, ascending and -1 at the end.

    Raises
    ------
    ValueError
        If shapes do not fit, `count` is not above `window`, `kernel` is even, or there is no such `pool`.
    """
    score, forced, real = window_votes(q_window, k, window, kernel, pool, valid, scale)
    check_count("count", count, 1)
    require(count > window, "count", f"above window, which is {window}", count)
    score = score.unflatten(1, (k.shape[1], -1)).sum(2)
    return select(score, forced, real, count, 0)


def window_votes(
    q_window: torch.Tensor,
    k: torch.Tensor,
    window: int,
    kernel: int,
    pool: str,
    valid: torch.Tensor | None,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pooled attention of the window's queries `[B, Hq, N]`, the window's tokens and the real ones, both `[B, N]`."""
    check_attention(q_window, k, k)
    check_valid(valid, k)
    check_count("window", window, 1)
    check_count("kernel", kernel, 1)
    require(kernel % 2 == 1, "kernel", "odd", kernel)
    require(pool in POOLS, "pool", " or ".join(map(repr, POOLS)), pool)
    keys, last = k.shape[2], min(window, q_window.shape[2])
    place = torch.arange(keys, device=k.device)
    real = real_tokens(k, None, valid)
    visible = real[:, None, None] & (place <= torch.arange(keys - last, keys, device=k.device)[:, None])
    # padding queries see nothing, and vote for nothing
    weights = masked_softmax(head_scores(q_window[:, :, -last:], k, scale), visible).sum(2)
    within = place >= keys - window
    # tokens of the window are kept anyway, and must not lend their weight to neighbours
    weights = weights.masked_fill(within, 0.0)
    if pool == "avg":
        weights = F.avg_pool1d(weights, kernel, stride=1, padding=kernel // 2)
    else:
        weights = F.max_pool1d(weights, kernel, stride=1, padding=kernel // 2)
    return weights, real & within, real
