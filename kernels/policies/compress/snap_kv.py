"""Which tokens of a prompt to keep, by the attention of its end."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from mmaccel.kernels.checks import check_attention, require

from ..scores import check_count, check_share, head_scores, masked_softmax
from ..tokens import check_valid, in_order, real_tokens, select

POOLS = ("avg", "max")


def snap_kv(
    q_window: torch.Tensor,
    k: torch.Tensor,
    *,
    count: int,
    window: int = 32,
    recent: int = 0,
    kernel: int = 7,
    pool: str = "avg",
    head_budgets: bool = False,
    safeguard: float = 0.2,
    valid: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """The last tokens of a prompt, and those that they attend to most, with their surroundings (SnapKV, 2024).

    With `head_budgets` (Ada-KV, 2024) the heads of a layer share one budget: a token of any head is kept if it gets
    more attention than those of all heads that are dropped, so that a head that looks at few tokens leaves room to
    one that looks at many.

    Parameters
    ----------
    q_window : `[B, Hq, W, D]`
        The last queries of the prompt, rotated; of more than `window` the last ones count.
    k : `[B, Hkv, N, D]`
        All keys of the prompt, rotated.
    count
        Tokens to keep per key head, the window included; with `head_budgets` the mean over the key heads.
    window
        Last tokens whose attention is summed, and which are kept; default 32 as in the paper.
    recent
        Last tokens that are kept, if more than `window`; default 0 as in the paper.
    kernel
        Width of the pooling over neighbouring tokens, odd, default 7 as in the paper; 1 for none.
    pool
        ``"avg"`` (default, as in the authors' code) or ``"max"``.
    head_budgets
        Whether the key heads share their budgets, default False: each has the same.
    safeguard
        Share of `count` that every head keeps in any case, above 0 and up to 1, default 0.2 as in the paper; only
        with `head_budgets`.
    valid : bool `[B, N]`
        False for padding on the left, which is never kept; None (default) for none.
    scale
        Of the scores, by default ``D ** -0.5``.

    Returns
    -------
    int32 `[B, Hkv, S]`, ascending and -1 at the end; `S` is ``min(count, N)``, or what the widest head keeps.

    Raises
    ------
    ValueError
        If shapes do not fit, `count` is not above `window` and `recent`, `kernel` is even, `safeguard` is not in
        (0, 1], or there is no such `pool`.
    """
    check_count("recent", recent, 0)
    score, forced, real = window_votes(q_window, k, window, kernel, pool, valid, scale, recent)
    check_count("count", count, 1)
    require(count > window, "count", f"above window, which is {window}", count)
    require(count > recent, "count", f"above recent, which is {recent}", count)
    check_share("safeguard", safeguard)
    score = score.unflatten(1, (k.shape[1], -1)).sum(2)
    if head_budgets:
        return _select_over_heads(score, forced, real, count, int(safeguard * count))
    return select(score, forced, real, count, 0)


def _select_over_heads(
    score: torch.Tensor, forced: torch.Tensor, real: torch.Tensor, count: int, safe: int
) -> torch.Tensor:
    """The `count` times heads tokens of `score [B, H, N]` that score highest in a row, `safe` of each head at least."""
    _, heads, slots = score.shape
    absent = ~real[:, None]
    key = score.masked_fill(forced[:, None], torch.inf).masked_fill(absent, -torch.inf)
    key = key.scatter(-1, key.topk(min(safe, slots)).indices, torch.inf).masked_fill(absent, -torch.inf).flatten(1)
    value, index = key.topk(min(count, slots) * heads)
    kept = torch.zeros_like(key, dtype=torch.bool).scatter(1, index, value > -torch.inf).unflatten(1, (heads, slots))
    numbers = torch.where(kept, torch.arange(slots, device=kept.device), slots)
    return in_order(numbers, slots)[..., : int(kept.sum(-1).max())]


def window_votes(
    q_window: torch.Tensor,
    k: torch.Tensor,
    window: int,
    kernel: int,
    pool: str,
    valid: torch.Tensor | None,
    scale: float | None,
    recent: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pooled attention of the window's queries `[B, Hq, N]`, what is kept anyway and what is real, both `[B, N]`."""
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
    within = place >= keys - max(window, recent)
    # these are kept anyway, and must not lend their weight to neighbours
    weights = weights.masked_fill(within, 0.0)
    if pool == "avg":
        weights = F.avg_pool1d(weights, kernel, stride=1, padding=kernel // 2)
    else:
        weights = F.max_pool1d(weights, kernel, stride=1, padding=kernel // 2)
    return weights, real & within, real
