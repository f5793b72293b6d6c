"""Writing new keys and values into a cache, in place."""

from __future__ import annotations

import torch

from .checks import check_indices, require
from .library import define


def _fake(*_: object) -> None:
    return None


_op = define("kv_scatter_", "(Tensor k_new, Tensor v_new, Tensor idx, Tensor(a!) k, Tensor(b!) v) -> ()", _fake)


def kv_scatter_(
    k_new: torch.Tensor, v_new: torch.Tensor, idx: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write states into slots of a cache, in place.

    Exact: slots that are not named keep their bytes.

    Parameters
    ----------
    k_new, v_new : `[B, H, M, D]`
        New states; they may not share memory with the cache.
    idx : int32 or int64 `[M]` or `[B, M]`
        Slot of each, unique within a row.
    k, v : `[B, H, N, D]`
        The cache that is written to.

    Returns
    -------
    `k` and `v`, the same tensors.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, or (on the CPU, where values are read) an index is repeated
        or outside the cache.

    Examples
    --------
    >>> k, v = torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 4, 2)
    >>> k, v = kv_scatter_(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2), torch.tensor([2]), k, v)
    >>> k[0, 0, :, 0].tolist()
    [0.0, 0.0, 1.0, 0.0]
    """
    require(k.ndim == 4, "k", "[B, H, N, D]", k)
    require(v.shape == k.shape and v.dtype == k.dtype and v.device == k.device, "v", "like k", v)
    wanted = (*k.shape[:2], k_new.shape[2] if k_new.ndim == 4 else 0, k.shape[3])
    for name, tensor in (("k_new", k_new), ("v_new", v_new)):
        fits = tuple(tensor.shape) == wanted and tensor.dtype == k.dtype and tensor.device == k.device
        require(fits, name, f"{list(k.shape[:2])} + [M, {k.shape[3]}] of k's dtype, on {k.device}", tensor)
    check_indices("idx", idx, k.device, (1, 2))
    shapes = ((wanted[2],), (k.shape[0], wanted[2]))
    require(tuple(idx.shape) in shapes, "idx", f"[{wanted[2]}] or [{k.shape[0]}, {wanted[2]}]", idx)
    if k.device.type == "cpu" and idx.numel():
        low, high = (int(x) for x in idx.aminmax())
        require(low >= 0 and high < k.shape[2], "idx", f"between 0 and {k.shape[2] - 1}", idx)
        require(bool((idx.sort(-1).values.diff(dim=-1) > 0).all()), "idx", "without repeats", idx)
    _op(k_new, v_new, idx, k, v)
    return k, v
