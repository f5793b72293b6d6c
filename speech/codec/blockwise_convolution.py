"""Convolutions over a signal that comes in blocks: each carries the end of a block into the next."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from mmaccel.linears.packed import PackedMatrix, Prepared

# Weights from which on a convolution is a product with a packed matrix: for the few frames of a block, oneDNN's
# convolution would rearrange them at each call.
WIDE = 1 << 20


class BlockwiseConvolution:
    """A convolution over the past, or a transposed one that is cut on the right, block by block; exact.

    A transposed convolution of kernel K and stride s is one of ``ceil(K / s)`` taps that gives s frames at a time, so
    that it too carries frames of its input. Signals are `[B, T, C]`, which oneDNN convolves without a copy.

    Parameters
    ----------
    conv
        With no padding of its own; without stride unless it is transposed, and without dilation if it is.
    pad_mode
        What stands before the first block: ``"constant"`` zeros, or ``"replicate"`` its first value.
    """

    def __init__(self, conv: nn.Conv1d | nn.ConvTranspose1d, pad_mode: str = "constant") -> None:
        self.conv, self.pad_mode, self.dilation = conv, pad_mode, conv.dilation[0]
        transposed = isinstance(conv, nn.ConvTranspose1d)
        self.stride = conv.stride[0] if transposed else 1
        self.count = -(-conv.kernel_size[0] // self.stride)
        self.context = (self.count - 1) * self.dilation
        self.kernel = Prepared(conv, lambda weight: self._taps(weight).transpose(1, 2)[:, :, None])
        suits = conv.groups == 1 and self.dilation == 1 and (self.count == 1 or conv.weight.numel() >= WIDE)
        self.matrix = PackedMatrix(conv, lambda weight: self._taps(weight).flatten(1)) if suits else None

    def __call__(
        self, hidden_states: torch.Tensor, carry: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One block.

        Parameters
        ----------
        hidden_states
            `[B, T, C]`, T at least 1.
        carry
            The last frames of the blocks before, `[B, (taps - 1) * dilation, C]`; None before the first.

        Returns
        -------
        tuple
            `[B, T * s, O]`, and the carry of the next block.
        """
        batch, length = hidden_states.shape[:2]
        if self.context:
            first = self._before(hidden_states) if carry is None else carry
            hidden_states = torch.cat([first, hidden_states], 1)
            carry = hidden_states[:, -self.context :].clone()  # a view would keep the whole block alive
        if self.matrix is None:
            out = self._convolve(hidden_states)
        else:
            out = self.matrix(self._windows(hidden_states), self._bias())
        out = out.view(batch, length, self.conv.groups, self.stride, -1).transpose(2, 3)
        return out.reshape(batch, length * self.stride, -1), carry

    def _before(self, hidden_states: torch.Tensor) -> torch.Tensor:
        start = hidden_states[:, :1]
        return (start if self.pad_mode == "replicate" else torch.zeros_like(start)).expand(-1, self.context, -1)

    def _windows(self, signal: torch.Tensor) -> torch.Tensor:
        """The frames that each output sees, side by side."""
        return signal if self.count == 1 else signal.unfold(1, self.count, 1).transpose(2, 3).flatten(2)

    def _convolve(self, signal: torch.Tensor) -> torch.Tensor:
        images = signal[:, None].permute(0, 3, 1, 2)  # [B, C, 1, T], channels last
        out = F.conv2d(images, self.kernel(), self._bias(), dilation=self.dilation, groups=self.conv.groups)
        return out.permute(0, 2, 3, 1).flatten(1, 2)

    def _bias(self) -> torch.Tensor | None:
        bias, groups = self.conv.bias, self.conv.groups
        return None if bias is None else bias.view(groups, 1, -1).expand(-1, self.stride, -1).flatten()

    def _taps(self, weight: torch.Tensor) -> torch.Tensor:
        """`[O', taps, C]`, where O' are the groups, the s frames and the channels of a group."""
        if not isinstance(self.conv, nn.ConvTranspose1d):
            return weight.transpose(1, 2)
        whole = F.pad(weight, (0, self.count * self.stride - weight.shape[2]))
        split = whole.unflatten(0, (self.conv.groups, -1)).unflatten(3, (self.count, self.stride)).flip(3)
        return split.permute(0, 4, 2, 3, 1).flatten(0, 2)
