"""One set of tokens for all heads, by a soft vote of the heads."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from mmaccel.kernels.checks import require

from ..scores import work
from ..tokens import check_decode, choose, to_length, votes


def token_select(
    q: torch.Tensor,
    k: torch.Tensor,
    lengths: torch.Tensor,
    *,
    state: dict[str, Any] | None = None,
    count: int = 2048,
    sink: int = 128,
    recent: int = 512,
    threshold: float = 0.9,
    scale: float | None = None,
) -> torch.Tensor:
    """The tokens with the highest sum over heads of each head's attention (TokenSelect, 2024).

    The softmax of each head makes its vote count as much as any other's, whatever the size of its scores.

    With a `state` the last vote is used again while queries stay alike: the cosine between the query, all heads
    together, and the one that voted last is at least `threshold`. Where all rows of the batch are alike no key is
    read; whether they are is read back from the device, one number a step.

    `q`, `k`, `lengths` and `scale` are as for :func:`double_sparsity`.

    Parameters
    ----------
    state
        A dictionary of one layer and one sequence, empty at first, that this function keeps its vote in; None
        (default) to vote at every step.
    count
        Tokens to attend to in all, those below included; default 2048 as in the paper.
    sink, recent
        As for :func:`double_sparsity`; defaults 128 and 512 as in the paper.
    threshold
        Least cosine, default 0.9 as in the paper; above 1 it votes at every step.

    Returns
    -------
    int32 `[B, Hkv, S]`, ascending and -1 at the end, the same for all heads; for
    :func:`mmaccel.kernels.verify_attention`.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, `count` is below 1, `sink` or `recent` below 0, or `threshold` below
        -1.
    """
    real = check_decode(q, k, lengths, count, sink, recent)
    require(isinstance(threshold, (int, float)) and threshold >= -1, "threshold", "at least -1", threshold)
    state = {} if state is None else state
    # a vote of other rows or of another number of queries says nothing of these
    kept = state if "query" in state and state["query"].shape == q.shape else {}
    alike = _alike(q, kept.get("query"), threshold)
    if not bool(alike.all()):
        fresh = votes(q, k, lengths, real, scale).sum(1, keepdim=True)
        old = to_length(kept.get("votes", fresh), k.shape[2])
        state["votes"] = torch.where(alike[:, None, None], old, fresh)
        state["query"] = torch.where(alike[:, None, None, None], kept.get("query", q), q)
    score = to_length(state["votes"], k.shape[2])
    return choose(score, real, count, sink, recent, q.shape[2]).expand(-1, k.shape[1], -1).contiguous()


def _alike(query: torch.Tensor, previous: torch.Tensor | None, threshold: float) -> torch.Tensor:
    """Rows whose query is like the one that voted last, bool `[B]`."""
    if previous is None:
        return torch.zeros(query.shape[0], dtype=torch.bool, device=query.device)
    cosine = F.cosine_similarity(work(query).flatten(1), work(previous).flatten(1), dim=-1)
    return cosine >= threshold
