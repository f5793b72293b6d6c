"""Attention of a few queries over keys that come from main memory.

torch's flash attention goes to keys and values in turn, in parts; two matrix products read each of them in one stream,
which is 1.1 to 1.3 times faster where they do not lie in a processor's cache.
"""

from __future__ import annotations

import math

import torch

from .workspace import scratch

MOST_QUERIES = 8  # of one head
LEAST_BYTES = 8 << 20  # of keys and values: below, there is nothing to gain even if they come from main memory
LANES = 64  # tokens side by side in a sum, so that few queries fill a processor's vectors as well


def suits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether this way is the fastest: few queries in float32, and a long cache whose heads lie evenly spaced."""
    if q.dtype != torch.float32 or not q.is_cpu or q.shape[2] > MOST_QUERIES or 2 * k.nbytes < LEAST_BYTES:
        return False
    return len(k) == 1 or all(x.stride(0) == x.shape[1] * x.stride(1) for x in (k, v))


def few_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of `[B, H, M, D]` over all of `[B, H, N, D]`, and its log-sum-exp `[B, H, M]`."""
    shape, count, tokens = q.shape, q.shape[2], k.shape[2]
    q, k, v = (q * scale).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    scores = scratch("scores", (len(k), math.ceil(tokens / LANES) * LANES, count), q.dtype)
    scores[:, tokens:] = -math.inf
    torch.bmm(k, q.mT, out=scores[:, :tokens])
    lanes = scores.view(len(k), -1, LANES * count)
    most = lanes.amax(1).view(-1, LANES, count).amax(1)
    lanes.sub_(most.repeat(1, LANES)[:, None]).exp_()
    total = lanes.sum(1).view(-1, LANES, count).sum(1)
    output = torch.bmm(scores[:, :tokens].mT, v).div_(total[..., None])
    return output.view(shape), (most + total.log()).view(shape[:3])
