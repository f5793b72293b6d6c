"""Which tokens of a prompt to keep, by the attention of its end."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from mmaccel.kernels.checks import check_attention, require

from ..scores import check_count, head_scores, masked_softmax
from ..tokens import in_order, top

SAFEGUARD = 0.2  # share of its budget that every head keeps in any case, as in the paper


def snap_kv(
    q_window: torch.Tensor,
    k: torch.Tensor,
    *,
    count: int,
    window: int = 32,
    recent: int = 0,
    kernel: int = 7,
    head_budgets: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """The last tokens of a prompt, and those that they attend to most, with their surroundings (SnapKV, 2024).

    With `head_budgets` (Ada-KV, 2024) the heads of a layer share one budget: a token of any head is kept if it gets
    more attention than those of all heads that are dropped, so that a head that looks at few tokens leaves room to
    one that looks at many; every head keeps a fifth of its part in any case.

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
        Width of the mean over neighbouring tokens, odd, default 7 as in the paper; 1 for none.
    head_budgets
        Whether the key heads share their budgets, default False: each has the same.
    scale
        Of the scores, by default ``D ** -0.5``.

    Returns
    -------
    int32 `[B, Hkv, S]`, ascending and -1 at the end; `S` is ``min(count, N)``, or what the widest head keeps.

    Raises
    ------
    ValueError
        If shapes do not fit, `count` is not above `window` and `recent`, or `kernel` is even.
    """
    check_count("recent", recent, 0)
    score, forced = window_votes(q_window, k, window, kernel, scale, recent)
    check_count("count", count, 1)
    require(count > window, "count", f"above window, which is {window}", count)
    require(count > recent, "count", f"above recent, which is {recent}", count)
    score = score.unflatten(1, (k.shape[1], -1)).sum(2).masked_fill(forced, torch.inf)
    return _top_over_heads(score, count) if head_budgets else top(score, count)


def _top_over_heads(score: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` times heads tokens of `score [B, H, N]` that score highest in a row, some of each head at least."""
    _, heads, slots = score.shape
    safe = score.topk(min(int(SAFEGUARD * count), slots)).indices
    key = score.scatter(-1, safe, torch.inf).flatten(1)
    index = key.topk(min(count, slots) * heads).indices
    kept = torch.zeros_like(key, dtype=torch.bool).scatter(1, index, True).unflatten(1, (heads, slots))
    numbers = torch.where(kept, torch.arange(slots, device=kept.device), slots)
    return in_order(numbers, slots)[..., : int(kept.sum(-1).max())]


def window_votes(
    q_window: torch.Tensor, k: torch.Tensor, window: int, kernel: int, scale: float | None, recent: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pooled attention of the window's queries `[B, Hq, N]`, and what is kept anyway, bool `[N]`."""
    check_attention(q_window, k, k)
    check_count("window", window, 1)
    check_count("kernel", kernel, 1)
    require(kernel % 2 == 1, "kernel", "odd", kernel)
    keys, last = k.shape[2], min(window, q_window.shape[2])
    place = torch.arange(keys, device=k.device)
    visible = place <= torch.arange(keys - last, keys, device=k.device)[:, None]
    weights = masked_softmax(head_scores(q_window[:, :, -last:], k, scale), visible).sum(2)
    within = place >= keys - max(window, recent)
    # these are kept anyway, and must not lend their weight to neighbours
    weights = weights.masked_fill(within, 0.0)
    return F.avg_pool1d(weights, kernel, stride=1, padding=kernel // 2), within
