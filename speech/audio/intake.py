"""Chunks as somebody has them, into samples as streams have them."""

from __future__ import annotations

from typing import Any

import torch

from mmaccel.errors import SettingError
from mmaccel.method import is_count

from .audio import Resampler, to_samples


class Intake:
    """Takes chunks of any type and rate, of one or several channels; gives samples at 16,000 a second.

    Parameters
    ----------
    rate
        Samples a second of the chunks.
    channels
        Channels of the chunks; None (default) to read them from the shape of each, where a side of 1 is one channel.

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
        self._heard: int | None = None  # channels of the last chunk that has several

    @property
    def rate(self) -> float:
        """Samples a second of the last chunk."""
        return self._resampler.rate

    def push(self, chunk: Any, rate: float | None = None) -> torch.Tensor:
        """The samples `[n]` that are known by a chunk; `rate` if it changes. Without effect if it raises."""
        samples = to_samples(chunk, self._channels_of(shape := tuple(getattr(chunk, "shape", ()))))
        following = None if rate is None or rate == self.rate else Resampler(rate)
        if self.channels is None and len(shape) == 2 and min(shape) > 1:
            self._heard = min(shape)
        if following is None:
            return self._resampler.push(samples)
        before, self._resampler = self._resampler.finish(), following
        return torch.cat([before, following.push(samples)])

    def finish(self) -> torch.Tensor:
        """What was still held back."""
        return self._resampler.finish()

    def _channels_of(self, shape: tuple[int, ...]) -> int | None:
        """How many a chunk has; those of the chunks before it where it is a single sample, which may be either way."""
        return self._heard if self.channels is None and 1 in shape and self._heard in shape else self.channels
