"""The first tokens and a sliding window."""

from __future__ import annotations

import torch

from mmaccel.kernels.plan import BlockPlan

from ..scores import check_count
from .blocks import BlockGrid


def a_shape(
    q_len: int,
    kv_len: int,
    *,
    sink: int = 128,
    local: int = 4096,
    causal: bool = True,
    block_m: int = 64,
    block_n: int = 64,
    device: torch.device | str = "cpu",
) -> BlockPlan:
    """Every query reads the first `sink` tokens and a window of `local` (StreamingLLM, 2023).

    The A-shape of MInference, 2024. Reads no tensor. Whole blocks are kept, so that up to a block more than
    asked for is seen at either border.

    Parameters
    ----------
    q_len, kv_len
        Queries and keys; the last query stands at the last key.
    sink
        Leading tokens that all see; 128 as in MInference's A-shape, 4 are enough for StreamingLLM.
    local
        The query itself and the ``local - 1`` tokens before it, and after it unless `causal`; 4096 as in
        MInference's A-shape.
    causal
        That of the call, default True.
    block_m, block_n
        Queries and keys in a block, default 64.
    device
        Of the plan.

    Returns
    -------
    A plan of batch 1 and one head, for all.

    Raises
    ------
    ValueError
        If `sink` is below 0, `local` below 1, or a length or a block size is not possible.
    """
    grid = BlockGrid(q_len, kv_len, block_m, block_n, causal, device)
    check_count("sink", sink, 0)
    check_count("local", local, 1)
    mask = grid.near(local)
    mask[:, : -(-sink // block_n)] = True
    return grid.plan(mask)


def widest_local(grid: BlockGrid, budget: float) -> int:
    """The widest window with which :func:`a_shape`, one sink block included, keeps to a share of the visible blocks."""
    first_query, last_query, first_key, last_key = grid.edges()
    before, after = first_query - last_key, first_key - last_query
    # the narrowest window that reaches each block
    needed = (before if grid.causal else torch.maximum(before, after)).clamp(min=0) + 1
    needed[:, 0] = 0
    needed = needed[grid.visible].sort().values
    allowed = int(len(needed) * budget + 0.5)
    if allowed >= len(needed):
        return max(1, int(needed[-1])) if len(needed) else 1
    # blocks that need as much as the first one that does not fit stay out
    return max(1, int(needed[allowed]) - 1)
