"""Argument checks that all ops share: they name the argument, what was expected and what came."""

from __future__ import annotations

from typing import Any

import torch

from mmaccel import private

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def require(holds: bool, name: str, expected: str, value: Any) -> None:
    """Raise a `ValueError` that names the argument, unless `holds`."""
    if not holds:
        raise ValueError(f"{name} must be {expected}, got {describe(value)}")


def describe(value: Any) -> str:
    """A tensor by dtype, shape and device, anything else by itself."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} on {value.device}"
    return repr(value)


def check_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """`q [B, Hq, M, D]` against `k`, `v [B, Hkv, N, D]`: shapes, dtypes, devices, grouped heads."""
    require(q.ndim == 4, "q", "[B, Hq, M, D]", q)
    require(q.dtype in (*DTYPES, torch.float64), "q", "float32, float16 or bfloat16", q)
    for name, tensor in (("k", k), ("v", v)):
        require(tensor.ndim == 4, name, "[B, Hkv, N, D]", tensor)
        require(tensor.dtype == q.dtype, name, f"{str(q.dtype).removeprefix('torch.')}, as q is", tensor)
        require(tensor.device == q.device, name, f"on {q.device}, as q is", tensor)
        require(tensor.shape[0] == q.shape[0], name, f"of batch {q.shape[0]}, as q is", tensor)
        require(tensor.shape[3] == q.shape[3], name, f"of head dimension {q.shape[3]}, as q is", tensor)
    require(v.shape == k.shape, "v", f"of shape {list(k.shape)}, as k is", v)
    fits = k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0
    require(fits, "q", f"of a head count that is a multiple of {k.shape[1]}, k's", q)


def check_indices(name: str, tensor: torch.Tensor, device: torch.device, ndim: int | tuple[int, ...]) -> None:
    """Raise unless this is an integer tensor on `device` with `ndim` axes."""
    allowed = (ndim,) if isinstance(ndim, int) else ndim
    fits = tensor.dtype in (torch.int32, torch.int64) and tensor.ndim in allowed
    require(fits, name, f"int32 or int64 with {' or '.join(map(str, allowed))} axes", tensor)
    require(tensor.device == device, name, f"on {device}", tensor)


def has_values(tensor: torch.Tensor) -> bool:
    """Whether values may be read: on a GPU that stalls the stream, and while a graph is made there are none."""
    return tensor.is_cpu and not torch.compiler.is_compiling() and private.is_plain(tensor)


def check_distributions(p: torch.Tensor, q: torch.Tensor) -> None:
    """`p [B, K, V]` or `[B, K + 1, V]` against `q [B, K, V]`, probabilities of a model and of its drafts."""
    require(q.ndim == 3 and q.is_floating_point(), "q", "floating [B, K, V]", q)
    count = q.shape[1]
    shapes = ((q.shape[0], count, q.shape[2]), (q.shape[0], count + 1, q.shape[2]))
    require(tuple(p.shape) in shapes and p.is_floating_point(), "p", f"floating {' or '.join(map(str, shapes))}", p)
    require(p.device == q.device, "p", f"on {q.device}, as q is", p)
