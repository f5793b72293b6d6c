"""Apple's GPU, as far as tensors can tell."""

import torch
from torch.overrides import TorchFunctionMode

MPS = torch.device("mps")


class AppleGpu(TorchFunctionMode):
    """Inside it tensors say that they are on that GPU, which refuses float64; the CPU does the work."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func == torch.Tensor.device.__get__:
            return MPS
        given = {name: "cpu" if value == MPS else value for name, value in (kwargs or {}).items()}
        found = func(*args, **given)
        if isinstance(found, torch.Tensor) and found.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return found
