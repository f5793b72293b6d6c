"""Naive versions of all ops, from their definitions, which the fast ones are tested against.

They compute in float64 if that is what comes in, else in float32, and make the whole mask.
"""

from __future__ import annotations

import math

import torch


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over a boolean mask that broadcasts to `[B, Hq, M, N]`."""
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    group = q.shape[1] // k.shape[1]
    key, value = (x.to(work).repeat_interleave(group, 1) for x in (k, v))
    visible = visible.expand(*q.shape[:3], k.shape[2])
    scores = (q.to(work) @ key.transpose(-1, -2) * scale).masked_fill(~visible, -math.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse == -math.inf, 0.0)[..., None]).exp()
    # what no query sees may hold anything, NaN included
    value = value.masked_fill(~visible.any(2)[..., None], 0.0)
    return (weights @ value).to(q.dtype), lse.float()


def visible_pairs(q: torch.Tensor, k: torch.Tensor, left: int, right: int) -> torch.Tensor:
    """Which keys each query sees by position alone, `[1, 1, M, N]`."""
    queries, keys = q.shape[2], k.shape[2]
    key = torch.arange(keys, device=q.device)
    query = (torch.arange(queries, device=q.device) + keys - queries)[:, None]
    visible = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
    if right >= 0:
        visible = visible & (key <= query + right)
    if left >= 0:
        visible = visible & (key >= query - left)
    return visible[None, None]


def block_mask(row_ptr: torch.Tensor, col: torch.Tensor, columns: int) -> torch.Tensor:
    """The boolean table of blocks `[B, H, rows, columns]` of a plan."""
    batch, heads, ends = row_ptr.shape
    table = torch.zeros(batch, heads, ends - 1, columns, dtype=torch.bool, device=col.device)
    for b in range(batch):
        for h in range(heads):
            for row in range(ends - 1):
                table[b, h, row, col[row_ptr[b, h, row] : row_ptr[b, h, row + 1]].long()] = True
    return table


def block_sparse_attention(  # noqa: D103  documented where it is public
    q, k, v, row_ptr, col, n_full, block_m, block_n, left, right, scale
):
    visible = visible_pairs(q, k, left, right)
    if row_ptr is not None:
        table = block_mask(row_ptr, col, -(-k.shape[2] // block_n))
        table = table.repeat_interleave(q.shape[1] // table.shape[1], 1)
        table = table.repeat_interleave(block_m, 2)[:, :, : q.shape[2]].repeat_interleave(block_n, 3)
        visible = visible & table[..., : k.shape[2]]
    return attend(q, k, v, visible, scale)


def verify_attention(q, k, v, lengths, token_idx, window_mask, scale):
    batch, _, count, _ = q.shape
    key = torch.arange(k.shape[2], device=q.device)
    start = (lengths.long() - count)[:, None]
    context = (key < start)[:, None].expand(batch, count, -1)
    if window_mask is None:
        window_mask = torch.ones(count, count, dtype=torch.bool, device=q.device).tril()
    place = (key - start).clamp(0, count - 1)  # [B, N]: which of the new tokens a slot holds
    within = window_mask.expand(batch, count, count).gather(2, place[:, None].expand(batch, count, -1))
    new = (key >= start) & (key < lengths[:, None])
    visible = (context | (within & new[:, None]))[:, None]
    if token_idx is not None:
        chosen = torch.zeros(*token_idx.shape[:2], k.shape[2] + 1, dtype=torch.bool, device=q.device)
        chosen.scatter_(2, torch.where(token_idx < 0, k.shape[2], token_idx).long(), True)
        chosen = chosen[..., :-1].repeat_interleave(q.shape[1] // k.shape[1], 1)
        visible = visible & chosen[:, :, None]
    return attend(q, k, v, visible, scale)


def segment_mean(x, w, perm, ptr):
    if x.ndim == 3:
        weights = [None] * len(x) if w is None else list(w)
        return torch.stack([segment_mean(*row) for row in zip(x, weights, perm, ptr, strict=True)])
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    weight = torch.ones(x.shape[0], dtype=work, device=x.device) if w is None else w.to(work)
    means = x.new_zeros(len(ptr) - 1, x.shape[1])
    for segment in range(len(ptr) - 1):
        members = perm[ptr[segment] : ptr[segment + 1]].long()
        total = weight[members].sum()
        if total != 0:
            means[segment] = ((x[members].to(work) * weight[members, None]).sum(0) / total).to(x.dtype)
    return means


def accept_length(p, q, tok, u):
    lengths = []
    for row in range(q.shape[0]):
        kept = 0
        for place in range(q.shape[1]):
            token = tok[row, place]
            if not u[row, place].double() * q[row, place, token].double() < p[row, place, token].double():
                break
            kept += 1
        lengths.append(kept)
    return torch.tensor(lengths, dtype=torch.int32, device=q.device)


def residual_sample(p, q, n, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = []
    for row in range(q.shape[0]):
        kept = int(n[row])
        left = p[row, kept].double()
        if kept < q.shape[1]:
            rest = (left - q[row, kept].double()).clamp(min=0)
            left = rest if rest.sum() > 0 else left
        tokens.append(torch.multinomial(left.cpu(), 1, generator=generator))
    return torch.cat(tokens).to(p.device)
