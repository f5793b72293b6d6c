"""The first tokens of a prompt and the last."""

from __future__ import annotations

import torch

from mmaccel.kernels.checks import require

from ..scores import check_count
from ..tokens import check_valid, first_and_last, real_tokens, select


def streaming(k: torch.Tensor, *, count: int, sink: int = 4, valid: torch.Tensor | None = None) -> torch.Tensor:
    """The first `sink` tokens and the newest ones, `count` in all (StreamingLLM, 2023).

    Parameters
    ----------
    k : `[B, Hkv, N, D]`
        Keys of the prompt; only their shape is read.
    count
        Tokens to keep.
    sink
        Leading tokens among them, default 4 as in the paper.
    valid : bool `[B, N]`
        False for padding, which is never kept and does not count; None (default) for none.

    Returns
    -------
    int32 `[B, Hkv, min(count, N)]`, ascending and -1 at the end, the same for all heads.

    Raises
    ------
    ValueError
        If shapes do not fit, `sink` is below 0, or `count` is not above `sink`.
    """
    require(k.ndim == 4, "k", "[B, Hkv, N, D]", k)
    check_valid(valid, k)
    check_count("count", count, 1)
    check_count("sink", sink, 0)
    require(count > sink, "count", f"above sink, which is {sink}", count)
    real = real_tokens(k, None, valid)
    kept = first_and_last(real, sink, count - sink)
    # of the kept ones all fit, so that their order among each other does not matter
    score = torch.zeros(real.shape, device=k.device)[:, None]
    return select(score, kept, kept, count, 0).expand(-1, k.shape[1], -1).contiguous()
