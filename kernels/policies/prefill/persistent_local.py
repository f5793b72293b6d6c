"""Blocks that stay in sight, and a sliding window."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmaccel.kernels.checks import check_indices, require
from mmaccel.kernels.plan import BlockPlan

from ..scores import check_count
from .blocks import BlockGrid


def persistent_local(
    q_len: int,
    kv_len: int,
    *,
    persistent: Sequence[int] | torch.Tensor,
    local: int,
    causal: bool = True,
    block_m: int = 64,
    block_n: int = 64,
    device: torch.device | str = "cpu",
) -> BlockPlan:
    """Every query reads a few persistent blocks and a local window (Sparse Forcing, 2026).

    There a trained part of the model chooses the blocks; :func:`persistent_blocks` is our untrained stand-in.

    Parameters
    ----------
    q_len, kv_len
        Queries and keys; the last query stands at the last key.
    persistent : int `[P]` or `[B, H, P]`
        Numbers of key blocks (of `block_n` keys) that all queries see; -1 for unused places.
    local
        The query itself and the ``local - 1`` tokens before it, and after it unless `causal`; whole blocks.
    causal
        That of the call, default True.
    block_m, block_n
        Queries and keys in a block, default 64.
    device
        Of the plan, where `persistent` is not a tensor; otherwise that of the tensor.

    Returns
    -------
    A plan of batch and heads as `persistent` has, or 1 and 1.

    Raises
    ------
    ValueError
        If `local` is below 1 or `persistent` names a block that there is not (of a tensor, values are read on
        the CPU only: elsewhere that would stall the stream).
    """
    check_count("local", local, 1)
    if isinstance(persistent, torch.Tensor):
        device = persistent.device
    grid = BlockGrid(q_len, kv_len, block_m, block_n, causal, device)
    columns = -(-kv_len // block_n)
    if isinstance(persistent, torch.Tensor):
        check_indices("persistent", persistent, persistent.device, (1, 3))
        number = persistent.long()
        read = number.device.type == "cpu" and persistent.numel() > 0
        inside = not read or (int(number.min()) >= -1 and int(number.max()) < columns)
    else:
        inside = all(isinstance(x, int) and -1 <= x < columns for x in persistent)
        number = torch.tensor(list(persistent) if inside else [], dtype=torch.long, device=device)
    require(inside, "persistent", f"numbers of blocks between 0 and {columns - 1}", persistent)
    number = number if number.ndim == 3 else number[None, None]
    # unused places mark a column that is cut off
    stays = torch.zeros(*number.shape[:2], columns + 1, dtype=torch.bool, device=device)
    stays.scatter_(-1, torch.where(number < 0, columns, number), True)
    return grid.plan(grid.near(local) | stays[:, :, None, :-1])


def persistent_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    count: int,
    causal: bool = True,
    block_m: int = 64,
    block_n: int = 64,
    scale: float | None = None,
) -> torch.Tensor:
    """The `count` key blocks of each query head that get the most attention between block means, ascending.

    `q [B, Hq, M, D]`, `k [B, Hkv, N, D]`; returns int64 `[B, Hq, min(count, blocks)]`. Raises a ValueError if
    shapes do not fit or `count` is below 1.
    """
    check_count("count", count, 1)
    received = BlockGrid.of(q, k, block_m, block_n, causal).pooled_weights(q, k, scale).sum(2)
    order = received.argsort(dim=-1, descending=True, stable=True)
    return order[..., :count].sort(dim=-1).values
