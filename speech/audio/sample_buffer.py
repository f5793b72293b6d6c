"""Audio that grows at the end and is let go at the start."""

from __future__ import annotations

import torch


class SampleBuffer:
    """Samples addressed by their position in the stream; memory is bounded by what is not let go.

    Attributes
    ----------
    start
        Position of the first sample that is still held.

    Examples
    --------
    >>> buffer = SampleBuffer()
    >>> buffer.append(torch.arange(5.0))
    >>> buffer.drop_before(2)
    >>> buffer.read(3, 5)
    tensor([3., 4.])
    """

    def __init__(self) -> None:
        self.start = 0
        self._samples = torch.empty(0, dtype=torch.float32, device="cpu")
        self._first = self._last = 0  # of what is held, in `_samples`

    @property
    def end(self) -> int:
        """Position behind the last sample."""
        return self.start + self._last - self._first

    def append(self, samples: torch.Tensor) -> None:
        """Put samples `[n]` behind the last one."""
        count = samples.numel()
        if self._last + count > self._samples.numel():
            self._make_room(count)
        self._samples[self._last : self._last + count] = samples
        self._last += count

    def read(self, start: int, end: int) -> torch.Tensor:
        """A copy of the samples from position `start` to `end`."""
        if start < self.start or end > self.end:
            raise IndexError(f"samples {start} to {end} requested from a buffer that holds {self.start} to {self.end}")
        shift = self._first - self.start
        return self._samples[start + shift : end + shift].clone()

    def drop_before(self, position: int) -> None:
        """Let go of all samples before `position`."""
        count = min(max(position - self.start, 0), self._last - self._first)
        self._first += count
        self.start += count

    def _make_room(self, count: int) -> None:
        """Move what is held to the front, of a memory twice as large as is needed: each sample moves rarely."""
        held = self._samples[self._first : self._last]
        larger = torch.empty(max(2 * (held.numel() + count), 16_000), dtype=torch.float32, device="cpu")
        larger[: held.numel()] = held
        self._samples, self._first, self._last = larger, 0, held.numel()
