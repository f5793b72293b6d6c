"""Attention of an earlier query, used again by one that is like it."""

from __future__ import annotations

from typing import Any

import torch

from mmaccel.kernels.checks import require
from mmaccel.kernels.merge_states import merge_states
from mmaccel.kernels.verify_attention import verify_attention

from ..scores import check_count, work
from ..tokens import check_decode, in_order


def mac(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    *,
    state: dict[str, Any],
    q_match: torch.Tensor | None = None,
    ring: int = 512,
    band: int = 256,
    threshold: float = 0.45,
    least: int = 2048,
    valid: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One decoding step that reuses the attention of a like query: match, amend, complete (MAC-Attention, 2026).

    Match: the query is compared with those of the last `ring` steps. On a hit the attention that was kept for
    that step stands for the keys it had read. Amend: it was kept without its newest `band` keys, where queries
    differ most, and these are read again. Complete: all later keys are read too, and the parts are joined by their
    log-sum-exp (:func:`mmaccel.kernels.merge_states`). On a miss all keys are read. Attention itself comes
    out, not token numbers, so that this is not in the table of decode policies, and no method of mmaccel calls it yet:
    it serves whoever writes a decoding loop of their own.

    Written from the paper's description. Ours: the query heads of a key head match together (all of them
    within the bound, at the same step), because they read the same keys in one go; the paper matches each
    query head. How many keys are read is read back from the device, one number a step.

    Parameters
    ----------
    q : `[B, Hq, 1, D]`
        The newest query, rotated.
    k, v : `[B, Hkv, N, D]`
        The cache, the new token's states included.
    lengths : int32 or int64 `[B]`
        Tokens in use in each row, the new one included.
    state
        A dictionary of one layer and one sequence, empty at first, that this function keeps its ring in.
    q_match : `[B, Hq, 1, D]`
        The query before rotary embedding, which the paper compares; by default `q`, which finds fewer matches.
    ring
        Steps that are kept, default 512 as the authors' plugin.
    band
        Newest keys that are always read again, default 256 as the authors' plugin.
    threshold
        A hit is a squared distance below ``2 * D * (1 - threshold) ** 2``; ``2 * D`` is that of independent
        queries of unit variance. Default 0.45 as the authors' plugin; 1 never matches.
    least
        Tokens from which on queries are matched, default 2048 as the authors' plugin.
    valid : bool `[B, N]`
        False for padding, which is never read; None (default) for none.
    scale
        Of the scores, by default ``D ** -0.5``.

    Returns
    -------
    output : `[B, Hq, 1, D]`, lse : float32 `[B, Hq, 1]`, as from :func:`mmaccel.kernels.verify_attention`.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, a number is below 1 (`least`: 0), or `threshold` is not
        between 0 and 1.
    """
    real = check_decode(q, k, lengths, 1, 0, 0, valid)
    check_count("ring", ring, 1)
    check_count("band", band, 1)
    check_count("least", least, 0)
    require(isinstance(threshold, (int, float)) and 0 <= threshold <= 1, "threshold", "between 0 and 1", threshold)
    require(q.shape[2] == 1, "q", "of one token", q)
    q_match = q if q_match is None else q_match
    require(q_match.shape == q.shape, "q_match", f"of shape {list(q.shape)}, as q is", q_match)
    total = lengths.to(torch.long)
    end = (total - band).clamp(min=0)[:, None]  # keys before it are kept for later

    _make_room(state, q, k, ring)
    slot, start = _match(state, q_match, k.shape[1], total, end, threshold, least)
    per_head = slot.repeat_interleave(q.shape[1] // k.shape[1], 1)
    row, head = torch.arange(len(q), device=q.device)[:, None], torch.arange(q.shape[1], device=q.device)
    hit = per_head >= 0
    old_output = state["output"][row, per_head.clamp(min=0), head][:, :, None]
    old_lse = state["lse"][row, per_head.clamp(min=0), head].masked_fill(~hit, -torch.inf)[:, :, None]

    width = max(1, int((end - start).max()))
    fresh = verify_attention(q, k, v, lengths, _between(start, end, width, real), scale=scale)
    kept = merge_states(torch.stack([old_output, fresh[0]]), torch.stack([old_lse, fresh[1]]))
    tail = _between(end.expand_as(start), total[:, None], min(band, k.shape[2]), real)
    newest = verify_attention(q, k, v, lengths, tail, scale=scale)

    place = ((total - 1) % ring).clamp(min=0)
    for name, value in (("query", q_match), ("output", kept[0]), ("lse", kept[1])):
        state[name][row[:, 0], place] = value[:, :, 0].to(state[name].dtype)
    state["end"][row[:, 0], place] = end[:, 0]
    return merge_states(torch.stack([kept[0], newest[0]]), torch.stack([kept[1], newest[1]]))


def _make_room(state: dict[str, Any], q: torch.Tensor, k: torch.Tensor, ring: int) -> None:
    batch, heads, _, width = q.shape
    if "query" in state:
        fits = state["query"].shape == (batch, ring, heads, width)
        require(fits, "state", f"of {batch} rows, {heads} heads and a ring of {ring}, or empty", state["query"])
        return
    state["query"] = q.new_zeros(batch, ring, heads, width)
    state["output"] = q.new_zeros(batch, ring, heads, width)
    state["lse"] = torch.full((batch, ring, heads), -torch.inf, device=q.device)
    state["end"] = torch.full((batch, ring), -1, dtype=torch.long, device=q.device)


def _match(
    state: dict[str, Any],
    query: torch.Tensor,
    key_heads: int,
    total: torch.Tensor,
    end: torch.Tensor,
    threshold: float,
    least: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The slot of each key head's match, -1 for none, and the number of keys that it had read, both `[B, Hkv]`."""
    distance = (work(state["query"]) - work(query).transpose(1, 2)).square().sum(-1)
    distance = distance.unflatten(-1, (key_heads, -1)).amax(-1)  # [B, ring, Hkv]
    usable = (state["end"] > 0) & (state["end"] <= end) & (total >= least)[:, None]
    distance = distance.masked_fill(~usable[..., None], torch.inf)
    nearest = distance.amin(1)
    # of equally near ones the one that had read most
    slot = torch.where(distance == nearest[:, None], state["end"][..., None], -2).argmax(1)
    hit = nearest < 2 * query.shape[3] * (1 - threshold) ** 2
    start = state["end"].gather(1, slot)
    return torch.where(hit, slot, -1), torch.where(hit, start, 0)


def _between(start: torch.Tensor, end: torch.Tensor, width: int, real: torch.Tensor) -> torch.Tensor:
    """Numbers of the real tokens from `start [B, Hkv]` up to `end`, int32 `[B, Hkv, width]`."""
    slots = real.shape[1]
    index = start[..., None] + torch.arange(width, device=real.device)
    row = torch.arange(len(real), device=real.device)[:, None, None]
    inside = (index < end[..., None]) & real[row, index.clamp(max=slots - 1)]
    return in_order(torch.where(inside, index, slots), slots)
