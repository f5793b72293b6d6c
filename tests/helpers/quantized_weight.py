"""A weight like those of torchao: a tensor's subclass in float32 on the CPU, that knows few operations."""

import torch
from torch.nn import functional


class QuantizedWeight(torch.Tensor):
    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=held.device)

    def __init__(self, held):
        self.held = held

    def __tensor_flatten__(self):
        return ["held"], None

    def dequantize(self):
        return self.held

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is functional.linear:
            x, weight, *bias = args
            return func(x, weight.held, *bias, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].held)
        raise NotImplementedError(f"{func} of a quantized weight")


def quantize(linear):
    """Give a linear layer such a weight."""
    linear.weight = torch.nn.Parameter(QuantizedWeight(linear.weight.detach()), requires_grad=False)
