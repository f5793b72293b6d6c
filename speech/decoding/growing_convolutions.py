"""What Moonshine's convolutions make of a piece of audio that grows at its end."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import conv1d, gelu


class GrowingConvolutions:
    """The input of Moonshine's first layer for a piece that grows, each sample convolved once; equal up to rounding.

    Between its first and its second convolution the encoder normalises over all of the piece, so that every number
    changes when more audio comes. But the second convolution is linear: it is kept of what is not normalised yet, and
    put right by the mean and the deviation of all, for which each frame's sums are kept. The third, a fifth of the
    work, is done again.

    Parameters
    ----------
    encoder
        A `MoonshineEncoder` in float32.

    Examples
    --------
    >>> growing = GrowingConvolutions(model.get_encoder())  # doctest: +SKIP
    >>> states = [growing.states(samples[:end]) for end in (8000, 16_000, 24_000)]  # doctest: +SKIP
    """

    @torch.no_grad()
    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        norm, second = encoder.groupnorm, encoder.conv2
        self._weight = second.weight * norm.weight[:, None]
        self._of_ones = self._weight.sum((1, 2))[:, None]
        self._constant = (second.bias + (second.weight * norm.bias[:, None]).sum((1, 2)))[:, None]
        # Of each frame of the first, and of its squares.
        self._sums = torch.zeros(2, 0, dtype=torch.float64, device="cpu")
        self._second = torch.zeros(encoder.conv2.out_channels, 0, device=encoder.device)

    def states(self, samples: torch.Tensor) -> torch.Tensor:
        """States `[1, T, D]` of `samples` `[n]`: those that were given before and new ones, or their beginning.

        At least as many samples as give one position.
        """
        first, second = self.encoder.conv1, self.encoder.conv2
        frames = _positions(first, len(samples))
        outputs = _positions(second, frames)
        if frames > self._sums.shape[1] or outputs > self._second.shape[1]:
            self._go_on(samples)
        mean, deviation = self._statistics(frames)
        hidden = (self._second[:, :outputs] - mean * self._of_ones) / deviation + self._constant
        return gelu(self.encoder.conv3(gelu(hidden)[None])).transpose(1, 2)

    def _go_on(self, samples: torch.Tensor) -> None:
        """Convolve what is new."""
        first, second = self.encoder.conv1, self.encoder.conv2
        begin = self._second.shape[1] * second.stride[0]  # the first frame that the next output sees
        heard = samples[begin * first.stride[0] :].to(self._second.device)
        hidden = torch.tanh(first(heard[None, None]))[0]
        new = hidden[:, self._sums.shape[1] - begin :].cpu().double()  # Apple's GPUs have no float64
        sums = torch.cat([self._sums, torch.stack([new.sum(0), new.square().sum(0)])], 1)
        outputs = self._second
        if hidden.shape[1] >= second.kernel_size[0]:
            outputs = torch.cat([outputs, conv1d(hidden[None], self._weight, stride=second.stride)[0]], 1)
        self._sums, self._second = sums, outputs

    def _statistics(self, frames: int) -> tuple[float, float]:
        """Mean and deviation of the first frames, as the group norm has them."""
        norm = self.encoder.groupnorm
        mean, square = (self._sums[:, :frames].sum(1) / (frames * norm.num_channels)).tolist()
        return mean, (max(square - mean**2, 0.0) + norm.eps) ** 0.5


def _positions(convolution: Any, length: int) -> int:
    """How many outputs there are of so many inputs."""
    return max(0, (length - int(convolution.kernel_size[0])) // int(convolution.stride[0]) + 1)
