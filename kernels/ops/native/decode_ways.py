"""Ways to attend from a few queries to many keys; all give the same within rounding.

Each takes the queries of a key head together, `q [B, Hkv, rows, D]`, with `k` and `v [B, Hkv, N, D]` whose heads lie
evenly spaced where the batch is more than one, and returns the output and its log-sum-exp `[B, Hkv, rows]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from .merge_states import merge_states
from .workspace import scratch

# torch's own flash attention on the CPU; private, so a test pins it, and without it two matrix products run.
FLASH = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
LANES = 64  # tokens side by side in a sum, so that few queries fill a processor's vectors as well
PARTS = 8  # of the keys, so that a single key head keeps more than one thread busy

Pair = tuple[torch.Tensor, torch.Tensor]
Way = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], Pair]


def matrix_products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> Pair:
    """Two matrix products, which read keys and values in one stream each; only float32 keeps its precision."""
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


def packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> Pair:
    """torch's flash attention with the group of query heads folded into the query axis."""
    return _flash(q, k, v, scale)


def each_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> Pair:
    """torch's flash attention of each query head by itself, as `scaled_dot_product_attention(enable_gqa=True)`."""
    output, lse = _flash(q.flatten(1, 2)[:, :, None], k, v, scale)
    return output.reshape(q.shape), lse.reshape(q.shape[:3])


def in_parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> Pair:
    """As `packed`, with parts of the keys as heads, joined by their log-sum-exps (Flash-Decoding, 2023)."""
    length = k.shape[2] // PARTS
    if not length:
        return packed(q, k, v, scale)
    queries = q.flatten(0, 1)[:, None].expand(-1, PARTS, -1, -1)
    keys, values = (x.flatten(0, 1)[:, : PARTS * length].unflatten(1, (PARTS, length)) for x in (k, v))
    output, lse = (x.transpose(0, 1) for x in _flash(queries, keys, values, scale))
    if k.shape[2] > PARTS * length:
        rest, rest_lse = _flash(q, k[:, :, PARTS * length :], v[:, :, PARTS * length :], scale)
        output = torch.cat([output, rest.reshape(1, *output.shape[1:])])
        lse = torch.cat([lse, rest_lse.reshape(1, *lse.shape[1:])])
    output, lse = merge_states(output, lse)
    return output.view(q.shape), lse.view(q.shape[:3])


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> Pair:
    assert FLASH is not None
    output, lse = FLASH(q, k, v, 0.0, False, scale=scale)
    return output.contiguous(), lse.float().contiguous()


WAYS: dict[str, Way] = {
    "matrix_products": matrix_products,
    "packed": packed,
    "each_head": each_head,
    "in_parts": in_parts,
}
