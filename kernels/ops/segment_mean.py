"""Weighted means of groups of tokens."""

from __future__ import annotations

import torch

from .checks import DTYPES, check_indices, has_values, require
from .library import define


def _fake(x: torch.Tensor, w: torch.Tensor | None, perm: torch.Tensor, ptr: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-2], ptr.shape[-1] - 1, x.shape[-1])


_op = define("segment_mean", "(Tensor x, Tensor? w, Tensor perm, Tensor ptr) -> Tensor", _fake)


def segment_mean(x: torch.Tensor, w: torch.Tensor | None, perm: torch.Tensor, ptr: torch.Tensor) -> torch.Tensor:
    """Weighted mean of each group of tokens: the merge of token merging (ToMe, 2023).

    Deterministic: groups are sorted segments, summed in order without atomics. To unmerge, select the means
    by each token's group.

    Parameters
    ----------
    x : `[N, D]` or `[B, N, D]`
        Tokens in float32, float16 or bfloat16; sums are taken in float32.
    w : float32 `[N]` or `[B, N]`
        Weights, None for 1 each.
    perm : int32 or int64 `[P]` or `[B, P]`
        Token numbers, group after group.
    ptr : int32 or int64 `[S + 1]` or `[B, S + 1]`
        Group `s` is ``perm[ptr[s]:ptr[s + 1]]``.

    Returns
    -------
    `[S, D]` or `[B, S, D]` in the dtype of `x`; 0 for an empty group or one of weight 0.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, or (on the CPU, where values are read) indices are outside.

    Examples
    --------
    >>> x = torch.tensor([[1.0], [2.0], [4.0]])
    >>> segment_mean(x, None, torch.tensor([0, 2, 1]), torch.tensor([0, 2, 3])).tolist()
    [[2.5], [2.0]]
    """
    require(x.ndim in (2, 3) and x.dtype in (*DTYPES, torch.float64), "x", "floating [N, D] or [B, N, D]", x)
    if w is not None:
        fits = w.shape == x.shape[:-1] and w.device == x.device and w.is_floating_point()
        require(fits, "w", f"floating {list(x.shape[:-1])} on {x.device}", w)
    for name, tensor in (("perm", perm), ("ptr", ptr)):
        check_indices(name, tensor, x.device, x.ndim - 1)
        require(tensor.shape[:-1] == x.shape[:-2], name, f"of batch {list(x.shape[:-2])}, as x is", tensor)
    require(ptr.shape[-1] >= 1, "ptr", "of at least one entry", ptr)
    if has_values(perm):
        inside = perm.numel() == 0 or (int(perm.min()) >= 0 and int(perm.max()) < x.shape[-2])
        require(inside, "perm", f"between 0 and {x.shape[-2] - 1}", perm)
        rising = bool((ptr.diff(dim=-1) >= 0).all()) and int(ptr.min()) >= 0 and int(ptr.max()) <= perm.shape[-1]
        require(rising, "ptr", f"ascending between 0 and {perm.shape[-1]}", ptr)
    return _op(x, w, perm, ptr)
