"""Attention of a few queries over keys that come from main memory: which way is fastest depends on the processor.

On an AMD EPYC two matrix products win in float32, on an Intel Xeon torch's flash attention with the group folded into
the queries, and a single key head needs its keys in parts to keep all threads busy. So the ways are measured at first
use and the choice is kept for this CPU, see :mod:`mmaccel.kernels.choosing`. A process never changes its choice for
shapes of one kind: two runs with equal inputs give equal bits.
"""

from __future__ import annotations

import functools
import threading

import torch

from ..choosing import kept_way
from .decode_ways import WAYS, Pair

MOST_QUERIES = 8  # of one head
LEAST_BYTES = 8 << 20  # of keys and values: below, there is nothing to gain even if they come from main memory
LAYERS, LAYER_BYTES = 2, 32 << 20  # measured in turn, so that they come from main memory, as those of a model do
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}
_LOCK = threading.Lock()


def suits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether there is a choice: few queries, and a long cache whose heads lie evenly spaced."""
    if q.dtype not in DTYPES or not q.is_cpu or q.shape[2] > MOST_QUERIES or 2 * k.nbytes < LEAST_BYTES:
        return False
    return len(k) == 1 or all(x.stride(0) == x.shape[1] * x.stride(1) for x in (k, v))


def few_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> Pair:
    """Attention of `[B, H, M, D]` over all of `[B, H, N, D]`, and its log-sum-exp `[B, H, M]`."""
    kind = (q.dtype, _rounded(q.shape[2]), min(64, _rounded(len(k) * k.shape[1])), q.shape[3])
    with _LOCK:  # two threads must not measure against each other, nor find two ways
        name = way(*kind, torch.get_num_threads())
    return WAYS[name](q, k, v, scale)


def _rounded(count: int) -> int:
    """Up to a power of two, so that a few measurements serve all shapes."""
    return 1 << (count - 1).bit_length()


@functools.cache
def way(dtype: torch.dtype, rows: int, heads: int, width: int, threads: int) -> str:
    """Name of the fastest way for queries of one kind; `threads` is part of what it holds for."""
    ways = {name: way for name, way in WAYS.items() if name != "matrix_products" or dtype == torch.float32}
    name = f"decoding over a long cache, {str(dtype)[6:]}, {rows} x {width} over {heads} heads"
    return kept_way(name, ways, functools.partial(_examples, dtype, rows, heads, width), ROUNDING[dtype])


def _examples(
    dtype: torch.dtype, rows: int, heads: int, width: int
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]]:
    """Queries over the keys and values of some layers; drawn in a small tile that is repeated, which is quick."""
    generator = torch.Generator().manual_seed(0)
    tile = torch.randn(1, heads, 64, width, generator=generator).to(dtype)
    count = max(1, LAYER_BYTES // (2 * tile.nbytes))
    q = torch.randn(1, heads, rows, width, generator=generator).to(dtype)
    return [(q, tile.repeat(1, 1, count, 1), tile.repeat(1, 1, count, 1), width**-0.5) for _ in range(LAYERS)]
