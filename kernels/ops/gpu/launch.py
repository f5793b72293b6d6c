"""What every launcher does first: check dtypes, make rows contiguous, choose the device."""

from __future__ import annotations

import contextlib
import functools

import torch

from ..checks import DTYPES, require


def check_dtypes(**tensors: torch.Tensor | None) -> None:
    """Floating tensors must be float32, float16 or bfloat16.

    Raises
    ------
    ValueError
        Names the tensor and its dtype: the kernels compute in float32, so float64 would lose what it is for.
    """
    for name, tensor in tensors.items():
        fits = tensor is None or not tensor.is_floating_point() or tensor.dtype in DTYPES
        require(fits, name, "float32, float16 or bfloat16 on the Triton backend", tensor)


def dense_rows(x: torch.Tensor) -> torch.Tensor:
    """`x` with stride 1 along its last axis, copied only if it has another."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def batch_stride(x: torch.Tensor, batched_ndim: int) -> int:
    """Stride of the batch axis; 0 where `x` has none or one row for the whole batch."""
    return x.stride(0) if x.ndim == batched_ndim and x.shape[0] > 1 else 0


def on_device(x: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the one that holds `x`."""
    return torch.cuda.device(x.device) if x.device.type == "cuda" else contextlib.nullcontext()


@functools.cache
def architecture(device: torch.device) -> int:
    """Compute capability as one number (90 is Hopper); 0 in the interpreter and on other vendors' devices."""
    if device.type != "cuda" or torch.version.hip is not None:
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


@functools.cache
def processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; 0 in the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0


def power_of_two(size: int, least: int = 16) -> int:
    """The next power of two, at least `least`: tensor cores work on no less than 16."""
    return max(least, 1 << (size - 1).bit_length())


def ceil_div(size: int, part: int) -> int:
    """How many parts cover `size`."""
    return -(-size // part)
