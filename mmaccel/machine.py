"""A description of this machine, made without loading torch where possible."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from importlib import metadata
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Where Linux shows accelerators: NVIDIA's, those of its Jetson boards, AMD's, and those of Windows under WSL.
DEVICES = ("/dev/nvidiactl", "/dev/nvmap", "/dev/kfd", "/dev/dxg")


def machine() -> dict[str, str]:
    """The system, processor, cores and accelerator that figures are measured on."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "accelerator": _accelerator(),
    }


def used_devices(kind: str = "cuda") -> list[int]:
    """The GPUs that hold something of this process, and the current one; none is started just to be asked.

    `kind` is ``"cuda"`` or ``"xpu"``, which is Intel's.
    """
    import torch

    gpus = torch.get_device_module(kind)
    if not gpus.is_initialized():
        return []
    current, count = gpus.current_device(), gpus.device_count()
    return [device for device in range(count) if device == current or gpus.memory_reserved(device)]


@contextmanager
def forked_rng() -> Iterator[None]:
    """Put the global random state back after the block, on the processor and on all GPUs in use."""
    import torch

    if torch.backends.mps.is_available():
        kind, devices = "mps", [0]
    else:
        kind = "xpu" if torch.xpu.is_available() else "cuda"
        devices = used_devices(kind)
    # by name: before torch 2.13 it takes CUDA's for granted, and it warns where there are several
    with torch.random.fork_rng(devices, device_type=kind):
        yield


def synchronize() -> None:
    """Wait for the accelerators before reading a clock."""
    import torch

    for kind in ("cuda", "xpu"):
        for device in used_devices(kind):
            torch.get_device_module(kind).synchronize(device)
    if torch.backends.mps.is_available():
        torch.mps.synchronize()


def with_autocast(work: Callable[P, R]) -> Callable[P, R]:
    """Work that another thread is to do, under the autocast of this one: it holds in the thread that entered it only.

    Examples
    --------
    >>> with_autocast(max)(1, 2)
    2
    """
    import torch

    accelerator = torch.accelerator.current_accelerator()
    kinds = ["cpu", *([] if accelerator is None else [accelerator.type])]
    on = [(kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)]
    if not on:
        return work

    @wraps(work)
    def within(*args: P.args, **kwargs: P.kwargs) -> R:
        with ExitStack() as stack:
            for kind, dtype in on:
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            return work(*args, **kwargs)

    return within


def unrounded(kind: str = "cpu") -> AbstractContextManager[Any]:
    """A block whose products are in float32 where their factors are, whatever autocast its caller runs under.

    `kind` is that of the device they are made on.

    Examples
    --------
    >>> import torch
    >>> with torch.autocast("cpu", torch.bfloat16), unrounded():
    ...     print((torch.ones(1, 2) @ torch.ones(2, 1)).dtype)
    torch.float32
    """
    import torch

    is_on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)  # not of tensors without data
    return torch.autocast(kind, enabled=False) if is_on else nullcontext()


def _accelerator() -> str:
    """The name of the first CUDA or ROCm device, which only torch can tell, or "Apple GPU" if that is in use.

    "none" where there cannot be one.
    """
    is_cpu_build = metadata.version("torch").endswith("+cpu")
    has_no_device = sys.platform == "linux" and not any(Path(path).exists() for path in DEVICES)
    if "torch" not in sys.modules and (is_cpu_build or has_no_device):
        return "none"
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    in_use = torch.backends.mps.is_available() and torch.mps.current_allocated_memory()
    return "Apple GPU" if in_use else "none"  # every Mac has one, and most models run on its processor


def processor() -> str:
    """What the processor calls itself."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
