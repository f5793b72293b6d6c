"""Which tokens of a prompt the later layers get to see."""

from __future__ import annotations

import torch

from ..scores import check_count
from ..tokens import top
from .snap_kv import window_votes


def fast_kv(
    q_window: torch.Tensor,
    k: torch.Tensor,
    *,
    count: int,
    window: int = 8,
    kernel: int = 7,
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
    count
        Tokens to propagate, a fifth of them in the paper.
    window
        Last tokens whose attention is summed, and which are propagated; default 8 as in the paper. Where it is
        more than `count`, `count` grows to hold it.
    kernel
        Pooling over neighbouring tokens, as for :func:`snap_kv`.
    scale
        Of the scores, by default ``D ** -0.5``.

    Returns
    -------
    int32 `[B, T]`, ascending.

    Raises
    ------
    ValueError
        If shapes do not fit, `count` or `window` is below 1, or `kernel` is even.
    """
    check_count("count", count, 1)
    score, forced = window_votes(q_window, k, window, kernel, scale)
    return top(score.sum(1).masked_fill(forced, torch.inf), max(count, window))
