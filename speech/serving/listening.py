"""What a client says over a websocket, which may end what it says on the way and go on."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from mmaccel.errors import AudioError

from ..stream.events import Endpoint, Event, Final
from ..stream.recognizer import StreamingRecognizer

SHORTEST_PAUSE = 100  # milliseconds that a detector of pauses can tell from a gap between two sounds


@dataclass(frozen=True)
class Started:
    """Speech began, at this second."""

    time: float


Heard = Event | Started


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

    Attributes
    ----------
    speaks
        Whether speech is on.
    rest
        Bytes of a sample that is not complete.
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
        self.speaks = False

    @property
    def time(self) -> float:
        """Seconds that came so far."""
        return self._before + self._stream.time

    def push(self, samples: bytes) -> list[Heard]:
        """Take in 16-bit samples."""
        return self._told(self._stream.push(samples))

    def feed(self, data: bytes) -> list[Heard]:
        """Take in bytes of one stream, however it is cut: what is left of a sample waits for the next ones."""
        data = self.rest + data
        whole = len(data) // self._size * self._size
        self.rest = data[whole:]
        return self.push(data[:whole])

    def end(self) -> list[Heard]:
        """What was still held back; what is pushed then begins anew."""
        events = self._told(self._stream.finish())
        self.clear()
        return events

    def clear(self) -> None:
        """Forget what was held back."""
        self._before, self.speaks = self.time, False
        self._stream.close()
        self._stream = self._recognizer.stream(*self._settings)

    def _told(self, events: list[Event]) -> list[Heard]:
        """Events with times from the beginning, and the beginnings of speech in their places."""
        told, starts = list[Heard](), self._stream.starts
        for event in (*events, None):
            while starts and (event is None or starts[0] < _moment(event)):
                told += [Started(starts.popleft())]
                self.speaks = True
            told += [] if event is None else [event]
            self.speaks &= not isinstance(event, Endpoint)
        return [_later(event, self._before) if self._before else event for event in told]


def _moment(event: Event) -> float:
    return event.end if isinstance(event, Final) else event.time


def _later(event: Heard, seconds: float) -> Heard:
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
