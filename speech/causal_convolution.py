"""Convolutions over a signal that comes in blocks: each carries what the next block needs of this one.

The carry is None before the first block; it never grows, whatever the length of the signal.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

# Frames of a block up to which one matrix product is faster than a transposed convolution; measured on a CPU
# with the four layers of Mimi: 13 times at 2 frames of 1024 channels, half as fast at 96 frames of 256.
SHORT = 32


def causal_conv(
    hidden_states: torch.Tensor, carry: torch.Tensor | None, conv: nn.Conv1d, pad_mode: str = "constant"
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One block through a convolution of stride 1 that sees the past only; exact.

    Parameters
    ----------
    hidden_states
        `[B, C, T]`, T at least 1.
    carry
        `[B, C, (K - 1) * dilation]`: the end of the block before.
    conv
        With no padding of its own.
    pad_mode
        What stands before the first block: ``"constant"`` zeros, or ``"replicate"`` its first value.

    Returns
    -------
    tuple
        `[B, O, T]`, and the carry of the next block.
    """
    context = (conv.kernel_size[0] - 1) * conv.dilation[0]
    if context == 0:
        return F.conv1d(hidden_states, conv.weight, conv.bias, groups=conv.groups), None
    if carry is None:
        first = hidden_states[..., :1] if pad_mode == "replicate" else torch.zeros_like(hidden_states[..., :1])
        carry = first.expand(-1, -1, context)
    padded = torch.cat([carry, hidden_states], -1)
    out = F.conv1d(padded, conv.weight, conv.bias, dilation=conv.dilation, groups=conv.groups)
    return out, padded[..., -context:].clone()  # a view would keep the whole block alive


def transposed_conv(
    hidden_states: torch.Tensor, carry: torch.Tensor | None, conv: nn.ConvTranspose1d
) -> tuple[torch.Tensor, torch.Tensor]:
    """One block through a transposed convolution whose overhang of K - s samples is cut on the right; exact.

    The overhang is what the next block adds to its own start. It is carried without bias, which the next block
    brings itself. Where the kernel is twice the stride, as in codecs, there are no groups and a block has few frames,
    the convolution is one matrix product, which is several times faster on a CPU.

    Parameters
    ----------
    hidden_states
        `[B, C, T]`, T at least 1.
    carry
        `[B, O, K - s]`: the overhang of the block before.
    conv
        With no padding or dilation of its own; K at least s.

    Returns
    -------
    tuple
        `[B, O, T * s]`, and the carry of the next block.
    """
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    if conv.groups == 1 and kernel == 2 * stride and hidden_states.shape[-1] <= SHORT:
        return _as_matmul(hidden_states, carry, conv)
    return _as_is(hidden_states, carry, conv)


def _as_matmul(
    hidden_states: torch.Tensor, carry: torch.Tensor | None, conv: nn.ConvTranspose1d
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, channels, length = hidden_states.shape
    out_channels, stride = conv.out_channels, conv.stride[0]
    product = conv.weight.reshape(channels, -1).transpose(0, 1) @ hidden_states  # the weight is viewed, not copied
    halves = product.view(batch, out_channels, 2, stride, length)
    out, overhang = halves[:, :, 0], halves[:, :, 1]
    out[..., 1:] += overhang[..., :-1]
    if carry is not None:
        out[..., 0] += carry
    whole = out.transpose(2, 3).reshape(batch, out_channels, length * stride)
    return (whole if conv.bias is None else whole + conv.bias[:, None]), overhang[..., -1].clone()


def _as_is(
    hidden_states: torch.Tensor, carry: torch.Tensor | None, conv: nn.ConvTranspose1d
) -> tuple[torch.Tensor, torch.Tensor]:
    overhang, length = conv.kernel_size[0] - conv.stride[0], hidden_states.shape[-1] * conv.stride[0]
    # the bias is added within: afterwards it would be another pass over a large signal
    whole = F.conv_transpose1d(hidden_states, conv.weight, conv.bias, stride=conv.stride, groups=conv.groups)
    if carry is not None:
        whole[..., :overhang] += carry
    rest = whole[..., length:]
    return whole[..., :length], rest.clone() if conv.bias is None else rest - conv.bias[:, None]
