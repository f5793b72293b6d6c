"""Token merging and the sampling of speculative decoding."""

from __future__ import annotations

import functools

import torch
from torch.nn.functional import embedding_bag

from mmaccel.decoding import sample


def segment_mean(x: torch.Tensor, w: torch.Tensor | None, perm: torch.Tensor, ptr: torch.Tensor) -> torch.Tensor:
    if x.ndim == 3:
        return _batched_segment_mean(x, w, perm, ptr)
    work = torch.promote_types(x.dtype, torch.float32)
    perm, ptr = perm.long(), ptr.long()
    if x.device.type == "mps":
        return _by_index_add(x[perm].to(work), None if w is None else w.to(work)[perm], ptr).to(x.dtype)
    begin, end = (int(ptr[0]), int(ptr[-1])) if x.device.type == "cpu" else (0, perm.shape[0])
    reduce = functools.partial(embedding_bag, perm[begin:end], offsets=ptr - begin, include_last_offset=True)
    if w is None:
        return reduce(x.to(work), mode="mean").to(x.dtype)
    weights = w.to(work)
    sums = reduce(x.to(work), mode="sum", per_sample_weights=weights[perm[begin:end]])
    totals = reduce(weights[:, None], mode="sum")
    return torch.where(totals != 0, sums / totals, 0.0).to(x.dtype)


def _by_index_add(members: torch.Tensor, weights: torch.Tensor | None, ptr: torch.Tensor) -> torch.Tensor:
    """The same of the members of all groups, without `embedding_bag`, which Apple's GPUs lack before torch 2.10."""
    weights = members.new_ones(len(members)) if weights is None else weights
    place = torch.arange(len(members), device=members.device)
    group = torch.searchsorted(ptr, place, right=True)  # 0 is before the first one, and the last is behind all

    def sums(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(len(ptr) + 1, values.shape[1]).index_add_(0, group, values)[1:-1]

    totals = sums(weights[:, None])
    return torch.where(totals != 0, sums(members * weights[:, None]) / totals, 0.0)


def _batched_segment_mean(
    x: torch.Tensor, w: torch.Tensor | None, perm: torch.Tensor, ptr: torch.Tensor
) -> torch.Tensor:
    """All rows of the batch as one list of segments, whether or not a row uses all of `perm`."""
    batch, tokens, width = x.shape
    offset = torch.arange(batch, device=x.device)[:, None]
    place = torch.arange(perm.shape[1], device=x.device)
    used = (place >= ptr[:, :1]) & (place < ptr[:, -1:])
    members = (perm.long() + offset * tokens)[used]
    counts = ptr.long().diff(dim=1).flatten()
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    means = segment_mean(x.reshape(-1, width), None if w is None else w.flatten(), members, starts)
    return means.view(batch, -1, width)


def accept_length(p: torch.Tensor, q: torch.Tensor, tok: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    index = tok.long()[..., None]
    target = p[:, : q.shape[1]].gather(2, index)[..., 0].float()
    draft = q.gather(2, index)[..., 0].float()
    return (u.float() * draft < target).int().cumprod(1).sum(1, dtype=torch.int32)


def residual_sample(p: torch.Tensor, q: torch.Tensor, n: torch.Tensor, seed: int) -> torch.Tensor:
    row, kept = torch.arange(p.shape[0], device=p.device), n.long()
    target = p[row, kept].float()
    if q.shape[1] == 0:
        left = target
    else:
        draft = q[row, kept.clamp(max=q.shape[1] - 1)].float()
        rest = (target - draft).clamp_(min=0)
        rest = torch.where((kept < q.shape[1])[:, None], rest, target)
        left = torch.where(rest.sum(1, keepdim=True) > 0, rest, target)
    return sample(left, torch.Generator(p.device).manual_seed(seed))
