"""The first tokens of a prompt and the last."""

from __future__ import annotations

import torch

from mmaccel.kernels.checks import require

from ..scores import check_count


def streaming(k: torch.Tensor, *, count: int, sink: int = 4) -> torch.Tensor:
    """The first `sink` tokens and the newest ones, `count` in all (StreamingLLM, 2023).

    Parameters
    ----------
    k : `[B, Hkv, N, D]`
        Keys of the prompt; only their shape is read.
    count
        Tokens to keep.
    sink
        Leading tokens among them, default 4 as in the paper.

    Returns
    -------
    int32 `[B, Hkv, min(count, N)]`, ascending, the same for all heads.

    Raises
    ------
    ValueError
        If shapes do not fit, `sink` is below 0, or `count` is not above `sink`.
    """
    require(k.ndim == 4, "k", "[B, Hkv, N, D]", k)
    check_count("count", count, 1)
    check_count("sink", sink, 0)
    require(count > sink, "count", f"above sink, which is {sink}", count)
    slots = torch.arange(k.shape[2], dtype=torch.int32, device=k.device)
    if count < len(slots):
        slots = torch.cat([slots[:sink], slots[sink - count :]])
    return slots.expand(*k.shape[:2], -1).contiguous()
