"""What the speech benchmark lets listen to a recording: ours, fixed chunks, and the package moonshine-voice."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch

from ..audio.endpoint import RATE
from ..decoding.cross_cache import CrossCache
from ..decoding.redecode import Hypothesis, decode
from ..families.adapter import Encoded, SpeechAdapter
from ..stream.events import Eager, Endpoint, Event, Final, Partial
from ..stream.stream import SpeechStream
from ..stream.stream_comparing import PlainStreams

UPDATE = 0.5  # seconds between hypotheses, the default of both


class MeasuredRecognizer(PlainStreams):
    """A recogniser that counts the seconds of its decoder, and can leave drafts out.

    Attributes
    ----------
    drafts
        False decodes each hypothesis from its start, as if the one before were not known.
    decoding
        Seconds of decoding up to now, by `timer`.
    """

    def __init__(self, model: Any, processor: Any = None, drafts: bool = True, **settings: Any) -> None:
        super().__init__(model, processor, timer=time.process_time, **settings)
        self.drafts, self.decoding = drafts, 0.0

    def _decode(
        self, encoded: Encoded, prompt: Sequence[int], draft: Sequence[int], cache: CrossCache | None
    ) -> Hypothesis:
        began = self.timer()
        hypothesis = super()._decode(encoded, prompt, draft, cache)
        self.decoding += self.timer() - began
        return hypothesis


class Listener(ABC):
    """Takes in audio, and says what it shows.

    Attributes
    ----------
    promised, shown
        Words that it says will stay, and all that it shows.
    ended
        Seconds at which speech ended whose final text came since this list was last emptied, and whether that text had
        been told early.
    is_early
        Whether the text that is on was told early, and no speech has come since.
    """

    def __init__(self) -> None:
        self.promised: list[str] = []
        self.shown: list[str] = []
        self.ended: list[tuple[float, bool]] = []
        self.is_early = False

    @abstractmethod
    def push(self, chunk: torch.Tensor) -> None:
        """Take in samples `[n]` at 16 kHz."""

    @abstractmethod
    def finish(self) -> None:
        """The audio is over."""


class StreamListener(Listener):
    """A stream of ours."""

    def __init__(self, stream: SpeechStream) -> None:
        super().__init__()
        self.stream = stream
        self.events: list[Event] = []
        self._final: list[str] = []
        self._pause: float | None = None

    @property
    def decoder_calls(self) -> int:
        return self.stream.stats.decoder_calls

    def push(self, chunk: torch.Tensor) -> None:
        self._take(self.stream.push(chunk), over=False)

    def finish(self) -> None:
        self._take(self.stream.finish(), over=True)

    def _take(self, events: list[Event], over: bool) -> None:
        self.events += events
        for event, following in zip_longest(events, events[1:]):
            if isinstance(event, Endpoint):  # of a noise without words no final follows
                self._pause = event.time if isinstance(following, Final) else None
            elif isinstance(event, Final):
                self._end(event, over)
            elif isinstance(event, Partial):
                self._show(event)
            else:
                self.is_early = isinstance(event, Eager)

    def _show(self, partial: Partial) -> None:
        self.promised = self._final + partial.stable.split()
        self.shown = self._final + (partial.stable + partial.unstable).split()

    def _end(self, final: Final, over: bool) -> None:
        self._final += final.text.split()
        self.promised = self.shown = list(self._final)
        if self._pause is None and over and final.words:
            self._pause = final.words[-1].end
        if self._pause is not None:  # else it was cut in the middle of speech
            self.ended.append((self._pause, self.is_early))
        self._pause, self.is_early = None, False


class ChunkListener(Listener):
    """The simple alternative: pieces of equal length, each decoded by itself."""

    def __init__(self, adapter: SpeechAdapter, seconds: float) -> None:
        super().__init__()
        self.adapter, self.samples = adapter, round(seconds * RATE)
        self.decoder_calls = 0
        self._waiting = torch.zeros(0)

    def push(self, chunk: torch.Tensor) -> None:
        self._waiting = torch.cat([self._waiting, chunk])
        while len(self._waiting) >= self.samples:
            self._decode(self._waiting[: self.samples])
            self._waiting = self._waiting[self.samples :]

    def finish(self) -> None:
        if len(self._waiting):
            self._decode(self._waiting)

    def _decode(self, samples: torch.Tensor) -> None:
        hypothesis = decode(self.adapter, self.adapter.encode(samples), self.adapter.prompt())
        self.decoder_calls += hypothesis.forwards
        self.promised = self.shown = self.shown + self.adapter.text(hypothesis.tokens).split()


class MoonshineVoiceListener(Listener):
    """A stream of the package moonshine-voice; a line stays once it is complete."""

    def __init__(self, transcriber: Any) -> None:
        super().__init__()
        self.lines: dict[int, Any] = {}
        self.stream = transcriber.create_stream(UPDATE)
        self.stream.add_listener(self._hear)
        self.stream.start()

    def push(self, chunk: torch.Tensor) -> None:
        self.stream.add_audio(chunk.tolist(), RATE)

    def finish(self) -> None:
        self.stream.stop()
        self.stream.close()

    def _hear(self, event: Any) -> None:
        line = event.line
        if type(event).__name__ == "LineCompleted":
            self.ended.append((line.start_time + line.duration, False))
        self.lines[line.line_id] = line
        self.shown = [word for line in self.lines.values() for word in line.text.split()]
        self.promised = [word for line in self.lines.values() if line.is_complete for word in line.text.split()]
