"""Attention of a few new queries over a cache."""

from __future__ import annotations

import functools

import torch

from .block_sparse_attention import heads_packed
from .dense import Mask, dense, nothing_seen
from .workspace import gather_rows


def verify_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    token_idx: torch.Tensor | None,
    window_mask: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    if not q.numel():
        return nothing_seen(q)
    if token_idx is not None:
        return _selected(q, k, v, lengths, token_idx, window_mask, scale)
    used = lengths.tolist()
    longest, shortest = max(used), min(used)
    k, v = k[:, :, :longest], v[:, :, :longest]
    if shortest == longest and q.shape[2] == 1 and window_mask is None:
        return heads_packed(q, k, v, scale)
    slots = torch.arange(longest, device=q.device)[None, None].expand(q.shape[0], 1, -1)
    visible = seen(slots, lengths.long(), q.shape[2], window_mask).repeat(1, 1, q.shape[1] // k.shape[1], 1)
    if shortest < longest:
        unused = (slots[:, 0] >= lengths[:, None])[:, None, :, None]
        k, v = k.masked_fill(unused, 0.0), v.masked_fill(unused, 0.0)  # they may hold anything, NaN included
    return heads_packed(q, k, v, scale, Mask(visible, q.dtype))


def seen(slots: torch.Tensor, lengths: torch.Tensor, count: int, window_mask: torch.Tensor | None) -> torch.Tensor:
    """Which of `slots [B, H, S]` each of the last `count` tokens sees, `[B, H, count, S]`."""
    if window_mask is None:
        window_mask = torch.ones(count, count, dtype=torch.bool, device=slots.device).tril()
    start = (lengths - count)[:, None, None]
    place = (slots - start).clamp(0, count - 1)[:, :, None].expand(-1, -1, count, -1)
    table = window_mask.expand(len(slots), count, count)[:, None].expand(-1, slots.shape[1], -1, -1)
    used = (slots >= 0) & (slots < lengths[:, None, None])
    return ((slots < start)[:, :, None] | table.gather(3, place)) & used[:, :, None]


def _selected(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    token_idx: torch.Tensor,
    window_mask: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather the selected tokens, and attend to them alone."""
    batch, heads, _, width = k.shape
    full = token_idx.shape[2] > 0 and int(token_idx[..., -1].min()) >= 0  # unused places are the last ones
    key, value = _gather(k, v, token_idx if full else token_idx.clamp(min=0))
    if q.shape[2] == 1 and window_mask is None and full:
        return heads_packed(q, key, value, scale)
    group = q.shape[1] // heads
    visible = seen(token_idx.long(), lengths.long(), q.shape[2], window_mask).repeat(1, 1, group, 1)
    output, lse = dense(q.reshape(batch, heads, -1, width), key, value, scale, Mask(visible, q.dtype))
    return output.reshape(q.shape), lse.reshape(q.shape[:3])


def _gather(k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows `slots [B, H, S]` of `k` and `v [B, H, N, D]`, valid until the next call."""
    batch, heads, tokens, width = k.shape
    if not k.is_cpu or k.stride() != v.stride() or k.stride(3) != 1 or any(step % width for step in k.stride()[:3]):
        index = slots.long()[..., None].expand(-1, -1, -1, width)
        return k.gather(2, index), v.gather(2, index)
    # all rows of the memory that they lie in (it may be the used part of a cache) as one table each
    steps = tuple(step // width for step in k.stride()[:3])
    first = _first_rows(batch, heads, steps[0], steps[1])
    chosen = (first + (slots if steps[2] == 1 else slots.long() * steps[2])).flatten()
    last = sum((size - 1) * step for size, step in zip(k.shape, steps, strict=False))
    shape = (*slots.shape, width)
    key, value = (x.as_strided((last + 1, width), (width, 1)) for x in (k, v))
    return gather_rows("key", key, chosen).view(shape), gather_rows("value", value, chosen).view(shape)


@functools.lru_cache(maxsize=64)
def _first_rows(batch: int, heads: int, row_step: int, head_step: int) -> torch.Tensor:
    """Where each head's rows begin, `[B, H, 1]`."""
    return torch.tensor([[[b * row_step + h * head_step] for h in range(heads)] for b in range(batch)])
