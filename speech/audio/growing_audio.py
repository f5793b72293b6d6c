"""Audio that grows at its end, for recognisers that hear the whole segment again at each update."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch

from ..decoding.cross_cache import CrossCache
from ..families.adapter import Encoded


class AudioStream(Protocol):
    """What a model makes of audio as it comes, each piece once."""

    @property
    def samples(self) -> int:
        """Samples taken in."""

    def push(self, samples: torch.Tensor) -> torch.Tensor:
        """Take in `samples` `[n]`; returns new states `[1, t, D]` that are final."""

    def peek(self) -> torch.Tensor:
        """The states `[1, t, D]` that would follow if the audio ended now; the stream goes on as before."""


@runtime_checkable
class Incremental(Protocol):
    """An adapter whose encoder can go on from where it was."""

    sample_rate: ClassVar[int]

    def begin(self) -> AudioStream:
        """A stream that takes in samples and returns frames."""


class GrowingAudio:
    """Encode a segment that grows, each frame once; what :meth:`encode` returns is that of the whole; exact.

    Parameters
    ----------
    adapter
        With a method `begin`, such as that of Moonshine v2.

    Attributes
    ----------
    cache
        To decode with: cross-attention keys and values of what has not changed since the last update.
    ends
        Whether the next audio is encoded as one that ends (default), or without what still waits for its lookahead.

    Examples
    --------
    >>> audio = GrowingAudio(adapter)  # doctest: +SKIP
    >>> for end in (8000, 16_000, 24_000):  # doctest: +SKIP
    ...     encoded = audio.encode(samples[:end])
    ...     found = decode(adapter, encoded, adapter.prompt(), draft=draft, cache=audio.cache)
    """

    def __init__(self, adapter: Incremental) -> None:
        self.adapter, self.ends = adapter, True
        self.reset()

    def reset(self) -> None:
        """Forget the audio: another segment begins."""
        self.cache = CrossCache()
        self._stream = self.adapter.begin()
        self._frames: torch.Tensor | None = None

    def encode(self, samples: torch.Tensor) -> Encoded:
        """States of `samples` `[n]`, those of the last call and new ones; fewer than last time start a new segment.

        The frames whose lookahead is not there yet are those of audio that ends here, as in the whole encoder.
        """
        if len(samples) < self._stream.samples:
            self.reset()
        before = getattr(self._stream, "passes", 0)  # which streams of tokens count
        try:
            new = self._stream.push(samples[self._stream.samples :])
            self._frames = new if self._frames is None else torch.cat([self._frames, new], 1)
            states = torch.cat([self._frames, self._stream.peek()], 1) if self.ends else self._frames
        except BaseException:  # half a push may be lost: the next call hears all of it again
            self.reset()
            raise
        passes = getattr(self._stream, "passes", 1) - before
        return Encoded(states, len(samples) / self.adapter.sample_rate, passes, self._frames.shape[1])
