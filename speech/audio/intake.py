"""Chunks as somebody has them, into samples as streams have them."""

from __future__ import annotations

from typing import Any

import torch

from mmaccel.errors import SettingError
from mmaccel.method import is_count

from .audio import MOST_CHANNELS, Resampler, to_samples


class Intake:
    """Takes chunks of any type and rate, of one or several channels; gives samples at 16,000 a second.

    Parameters
    ----------
    rate
        Samples a second of the chunks.
    channels
        Channels of the chunks; None (default) to read them from the shape of each, where a side of 1 is one channel.
        A chunk so short that it may be either way round has as many as those before it.

    Raises
    ------
    SettingError
        If the rate is not a usual one, or such a number of channels cannot be.

    Examples
    --------
    >>> Intake(16_000).push(torch.zeros(2, 160)).shape
    torch.Size([160])
    """

    def __init__(self, rate: float, channels: int | None = None) -> None:
        if channels is not None and not is_count(channels, 1, 64):
            raise SettingError(f"channels={channels!r}: pass how many there are, such as 2, or None")
        self.channels = channels
        self._resampler = Resampler(rate)
        self._heard: int | None = None  # channels of the last chunk that has several, and is longer than they are many
        self._is_second = False  # whether it has them on its second side

    @property
    def rate(self) -> float:
        """Samples a second of the last chunk."""
        return self._resampler.rate

    def push(self, chunk: Any, rate: float | None = None) -> torch.Tensor:
        """The samples `[n]` that are known by a chunk; `rate` if it changes. Without effect if it raises."""
        channels = self._channels_of(shape := tuple(getattr(chunk, "shape", ())))
        samples = to_samples(chunk, channels)
        following = None if rate is None or rate == self.rate else Resampler(rate)
        if channels is None and len(shape) == 2 and min(shape) > 1:
            self._heard = min(shape)
            self._is_second = shape[1] == self._heard
        if following is None:
            return self._resampler.push(samples)
        before, self._resampler = self._resampler.finish(), following
        return torch.cat([before, following.push(samples)])

    def finish(self) -> torch.Tensor:
        """What was still held back."""
        return self._resampler.finish()

    def _channels_of(self, shape: tuple[int, ...]) -> int | None:
        """How many a chunk has; those of the chunks before it where it is so short that it may be either way."""
        if self.channels is not None or len(shape) != 2 or self._heard not in shape:
            return self.channels
        # a square is read as [samples, channels]
        is_clear = shape[0] != shape[1] or self._is_second
        return self._heard if is_clear and (1 in shape or max(shape) <= MOST_CHANNELS) else None
