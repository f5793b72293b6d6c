"""Which tokens of a prompt the later layers get to see."""

from __future__ import annotations

import torch

from ..scores import check_count, check_share
from ..tokens import select
from .snap_kv import window_votes


def fast_kv(
    q_window: torch.Tensor,
    k: torch.Tensor,
    *,
    keep: float = 0.2,
    count: int | None = None,
    window: int = 8,
    kernel: int = 7,
    pool: str = "avg",
    valid: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """The tokens that go on to later layers: the end of a prompt and what all heads there attend to (FastKV, 2025).

    Called once, in the layer from which on importance hardly changes (about the middle); the layers after it
    compute the chosen tokens only, at their own positions. What each layer then keeps in its cache is another
    choice, that of :func:`snap_kv`.

    Parameters
    ----------
    q_window : `[B, Hq, W, D]`
        The last queries of the prompt in that layer, rotated; of more than `window` the last ones count.
    k : `[B, Hkv, N, D]`
        All its keys, rotated.
    keep
        Share of the `N` tokens to propagate, rounded, default 0.2 as in the paper.
    count
        Their number instead, None (default) to go by `keep`.
    window
        Last tokens whose attention is summed, and which are propagated; default 8 as in the paper. Where it is
        more than the number asked for, that number grows to hold it.
    kernel, pool
        Pooling over neighbouring tokens, as for :func:`snap_kv`.
    valid : bool `[B, N]`
        False for padding on the left, which is never propagated; None (default) for none.
    scale
        Of the scores, by default ``D ** -0.5``.

    Returns
    -------
    int32 `[B, T]`, ascending and -1 at the end.

    Raises
    ------
    ValueError
        If shapes do not fit, `keep` is not in (0, 1], `count` or `window` is below 1, `kernel` is even, or
        there is no such `pool`.
    """
    check_share("keep", keep)
    if count is not None:
        check_count("count", count, 1)
    score, forced, real = window_votes(q_window, k, window, kernel, pool, valid, scale)
    number = max(1, int(k.shape[2] * keep + 0.5)) if count is None else count
    return select(score.sum(1, keepdim=True), forced, real, number, window)[:, 0]
