"""What the token policies share: which slots are in use, votes of heads, the chosen numbers in order."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from mmaccel.kernels.checks import check_attention, check_indices, require

from .scores import check_count, head_scores, masked_softmax


def check_decode(
    q: torch.Tensor, k: torch.Tensor, lengths: torch.Tensor, count: int, sink: int, recent: int
) -> torch.Tensor:
    """Check the arguments of every decode policy; returns the slots that hold a token, bool `[B, N]`."""
    check_attention(q, k, k)
    check_indices("lengths", lengths, q.device, 1)
    require(lengths.shape[0] == q.shape[0], "lengths", f"[{q.shape[0]}]", lengths)
    check_count("count", count, 1)
    check_count("sink", sink, 0)
    check_count("recent", recent, 0)
    return real_tokens(k, lengths)


def real_tokens(k: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """Slots that hold a token, those within `lengths`, bool `[B, N]`."""
    if lengths is None:
        return torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
    return torch.arange(k.shape[2], device=k.device) < lengths.to(torch.long)[:, None]


def query_positions(q: torch.Tensor, k: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """Slots of the newest queries, int64 `[B, M]`: the last in use."""
    offset = torch.arange(-q.shape[2], 0, device=q.device)
    if lengths is None:
        return (offset + k.shape[2]).expand(q.shape[0], -1)
    return lengths.to(torch.long)[:, None] + offset


def votes(
    q: torch.Tensor, k: torch.Tensor, lengths: torch.Tensor, real: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Attention of the newest queries, summed over them and the query heads of each key head, `[B, Hkv, N]`."""
    position = query_positions(q, k, lengths)[..., None]
    visible = real[:, None] & (torch.arange(k.shape[2], device=q.device) <= position)
    weights = masked_softmax(head_scores(q, k, scale), visible[:, None])
    return weights.unflatten(1, (k.shape[1], -1)).sum((2, 3))


def choose(score: torch.Tensor, real: torch.Tensor, count: int, sink: int, recent: int, new: int) -> torch.Tensor:
    """The `count` real tokens of `score [B, H, N]` that score highest, int32 `[B, H, S]`, ascending, -1 at the end.

    The first `sink`, the last `recent` and the `new` newest are always among them; `count` grows to hold them.
    """
    recent, slots, number = max(recent, new), score.shape[-1], real.cumsum(-1)
    forced = (number <= sink) | (number > number[:, -1:] - recent)
    key = score.masked_fill(forced[:, None], torch.inf).masked_fill(~real[:, None], -torch.inf)
    value, index = key.topk(min(max(count, sink + recent), slots), dim=-1)
    return in_order(torch.where(value == -torch.inf, slots, index), slots)


def top(score: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` tokens of `score [..., N]` that score highest, int32 `[..., min(count, N)]`, ascending."""
    return score.topk(min(count, score.shape[-1])).indices.sort().values.to(torch.int32)


def in_order(index: torch.Tensor, slots: int) -> torch.Tensor:
    """Ascending int32 numbers; those that are `slots`, for none, become -1 at the end."""
    index = index.sort(dim=-1).values
    return torch.where(index == slots, -1, index).to(torch.int32)


def all_tokens(real: torch.Tensor, heads: int) -> torch.Tensor:
    """The numbers of all real tokens, int32 `[B, heads, N]`."""
    slots = real.shape[1]
    index = torch.where(real, torch.arange(slots, device=real.device), slots)
    return in_order(index, slots)[:, None].expand(-1, heads, -1).contiguous()


def to_length(score: torch.Tensor, slots: int) -> torch.Tensor:
    """Votes `[..., N]` of an earlier step for a cache of `slots`: newer tokens come after all that were voted on."""
    if score.shape[-1] >= slots:
        return score[..., :slots]
    return F.pad(score, (0, slots - score.shape[-1]), value=-1.0)
