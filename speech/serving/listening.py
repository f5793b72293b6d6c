"""What a client says over a websocket, which may end what it says on the way and go on."""

from __future__ import annotations

import json
from dataclasses import replace

from mmaccel.errors import AudioError

from ..stream.events import Event, Final
from ..stream.recognizer import StreamingRecognizer

SHORTEST_PAUSE = 100  # milliseconds that a detector of pauses can tell from a gap between two sounds


class Listening:
    """A stream that can be ended and begun anew; times go on from the beginning of the first.

    Parameters
    ----------
    recognizer
        What listens.
    sample_rate, channels
        Of what is pushed.
    update_interval
        Seconds between two hypotheses, None for finals only.
    before
        Seconds that came before.
    """

    def __init__(
        self,
        recognizer: StreamingRecognizer,
        sample_rate: float,
        channels: int = 1,
        update_interval: float | None = 0.5,
        before: float = 0.0,
    ) -> None:
        self._recognizer, self._settings = recognizer, (sample_rate, update_interval, channels)
        self._stream, self._before = recognizer.stream(*self._settings), before
        self.rest, self._size = b"", 2 * channels  # bytes of a sample of all channels

    @property
    def time(self) -> float:
        """Seconds that came so far."""
        return self._before + self._stream.time

    def push(self, samples: bytes) -> list[Event]:
        """Take in 16-bit samples."""
        return self._shifted(self._stream.push(samples))

    def feed(self, data: bytes) -> list[Event]:
        """Take in bytes of one stream, however it is cut: what is left of a sample waits for the next ones."""
        data = self.rest + data
        whole = len(data) // self._size * self._size
        self.rest = data[whole:]
        return self.push(data[:whole])

    def end(self) -> list[Event]:
        """What was still held back; what is pushed then begins anew."""
        events = self._shifted(self._stream.finish())
        self.clear()
        return events

    def clear(self) -> None:
        """Forget what was held back."""
        self._before = self.time
        self._stream.close()
        self._stream = self._recognizer.stream(*self._settings)

    def _shifted(self, events: list[Event]) -> list[Event]:
        return [_later(event, self._before) for event in events] if self._before else events


def _later(event: Event, seconds: float) -> Event:
    if isinstance(event, Final):
        words = tuple(replace(word, start=word.start + seconds, end=word.end + seconds) for word in event.words)
        return replace(event, words=words, start=event.start + seconds, end=event.end + seconds)
    return replace(event, time=event.time + seconds)


def pause(milliseconds: float) -> float:
    """Seconds of silence that end what is said, for a client that asks for so many milliseconds.

    Examples
    --------
    >>> pause(500), pause(10)
    (0.5, 0.1)
    """
    return max(milliseconds, SHORTEST_PAUSE) / 1000


def asked(message: str, *allowed: str) -> str:
    """What a message of JSON asks for; `AudioError` if that is none of these."""
    try:
        kind = json.loads(message).get("type")
    except (ValueError, AttributeError, RecursionError):
        kind = None
    if kind not in allowed:
        raise AudioError(f"a text that is no {' or '.join(allowed)}: send samples as bytes")
    return str(kind)
