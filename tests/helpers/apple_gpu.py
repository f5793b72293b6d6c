"""GPUs without float64, as far as tensors can tell."""

import torch
from torch.overrides import TorchFunctionMode

MPS = torch.device("mps")


class AppleGpu(TorchFunctionMode):
    """Inside it tensors say that they are on that GPU, which refuses float64; the CPU does the work."""

    gpu = MPS

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func == torch.Tensor.device.__get__:
            return self.gpu
        given = {name: "cpu" if value == self.gpu else value for name, value in (kwargs or {}).items()}
        found = func(*args, **given)
        if isinstance(found, torch.Tensor) and found.dtype == torch.float64:
            raise TypeError(f"Cannot convert a {self.gpu.type} tensor to float64")
        return found


class IntelGpu(AppleGpu):
    """Those of laptops and desks."""

    gpu = torch.device("xpu")
