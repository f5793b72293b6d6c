"""Full attention now and then, its top tokens in between."""

from __future__ import annotations

from typing import Any

import torch

from ..scores import check_count
from ..tokens import all_tokens, check_decode, choose, to_length, votes


def recycled_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    lengths: torch.Tensor,
    *,
    state: dict[str, Any],
    count: int = 2048,
    stride: int = 10,
    sink: int = 4,
    recent: int = 64,
    scale: float | None = None,
) -> torch.Tensor:
    """Every `stride`-th step attends to all tokens, the others to its top tokens (Recycled Attention, 2024).

    Between full steps no key is read to choose: tokens newer than the full step are seen as recent ones.

    `q`, `k`, `lengths` and `scale` are as for :func:`double_sparsity`.

    Parameters
    ----------
    state
        A dictionary of one layer and one sequence, empty at first, that this function keeps its step and the
        attention of the last full step in.
    count
        Tokens to attend to between full steps, those below included; default 2048.
    stride
        Steps from one full step to the next, default 10 as in the paper; 1 makes every step full.
    sink, recent
        As for :func:`double_sparsity`; a `recent` of at least `stride` never loses sight of a new token.

    Returns
    -------
    int32 `[B, Hkv, S]`, ascending and -1 at the end, `S = N` in full steps; for
    :func:`mmaccel.kernels.verify_attention`.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, `count` or `stride` is below 1, or `sink` or `recent` below 0.
    """
    real = check_decode(q, k, lengths, count, sink, recent)
    check_count("stride", stride, 1)
    step = state.get("step", 0)
    state["step"] = step + 1
    if step % stride == 0:
        state["votes"] = votes(q, k, lengths, real, scale)
        return all_tokens(real, k.shape[1])
    return choose(to_length(state["votes"], k.shape[2]), real, count, sink, recent, q.shape[2])
