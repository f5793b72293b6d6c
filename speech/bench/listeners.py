"""What the speech benchmark lets listen to a recording: ours, fixed chunks, and the package moonshine-voice."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload

from ..audio.endpoint import RATE
from ..audio.recordings import Recording
from ..decoding.cross_cache import CrossCache
from ..decoding.redecode import Hypothesis, decode
from ..families.adapter import Encoded, SpeechAdapter, Word
from ..stream.emission_latency import Emission, emissions_of
from ..stream.events import Endpoint, Event, Final, Partial
from ..stream.recognizer import StreamingRecognizer
from ..stream.stats import Lags, RealTimeClock
from ..stream.stream import SpeechStream

CHUNK = RATE // 10  # samples of a push, as in moonshine-voice's own example
UPDATE = 0.5  # seconds between hypotheses, the default of both


class MeasuredRecognizer(StreamingRecognizer):
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
        hypothesis = super()._decode(encoded, prompt, draft if self.drafts else (), cache)
        self.decoding += self.timer() - began
        return hypothesis


class Listener(ABC):
    """Takes in audio, and says what it shows.

    Attributes
    ----------
    promised, shown
        Words that it says will stay, and all that it shows.
    ended
        Seconds at which speech ended whose final text came since this list was last emptied.
    """

    def __init__(self) -> None:
        self.promised: list[str] = []
        self.shown: list[str] = []
        self.ended: list[float] = []

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
        for event in events:
            if isinstance(event, Endpoint):
                self._pause = event.time
            elif isinstance(event, Final):
                self._end(event, over)
            else:
                self._show(event)

    def _show(self, partial: Partial) -> None:
        self.promised = self._final + partial.stable.split()
        self.shown = self._final + (partial.stable + partial.unstable).split()

    def _end(self, final: Final, over: bool) -> None:
        self._final += final.text.split()
        self.promised = self.shown = list(self._final)
        if self._pause is None and over and final.words:
            self._pause = final.words[-1].end
        if self._pause is not None:  # else it was cut in the middle of speech
            self.ended.append(self._pause)
        self._pause = None


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
            self.ended.append(line.start_time + line.duration)
        self.lines[line.line_id] = line
        self.shown = [word for line in self.lines.values() for word in line.text.split()]
        self.promised = [word for line in self.lines.values() if line.is_complete for word in line.text.split()]


@dataclass
class Playback:
    """What a listener showed of one recording, and when.

    Attributes
    ----------
    cpu_seconds, wall_seconds
        Of all pushes.
    history
        After each push that changed something: seconds of audio that had come, seconds at which it was there with
        computing, words that were promised, and all words.
    finals
        For each pause: seconds at which speech ended, as the listener says, and both clocks when its final text came.
    """

    audio_seconds: float
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    history: list[tuple[Any, ...]] = field(default_factory=list)
    finals: list[tuple[float, float, float]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join(self.history[-1][3]) if self.history else ""

    def emissions(self, clock: int, kind: int) -> list[Emission]:
        """When each word came for good: `clock` 0 or 1, and `kind` 2 or 3, are places in :attr:`history`."""
        return emissions_of((step[clock], step[kind]) for step in self.history)

    def finalisation(self, words: Sequence[Word]) -> Lags:
        """From the end of speech to its final text.

        Speech ends with the last of `words` that began before the pause: where a pause begins, each listener says
        with a padding of its own.
        """
        lags = Lags()
        for end, heard, ready in self.finals:
            before = [word.end for word in words if word.start < end]
            lags.add(before[-1] if before else end, heard, ready)
        return lags

    def first(self, clock: int) -> float | None:
        """Seconds of the stream at which the first word was shown."""
        return next((step[clock] for step in self.history if step[3]), None)


def play(listener: Listener, samples: torch.Tensor) -> Playback:
    """Push samples `[n]` in chunks of 0.1 s, and note what is shown after each, on both clocks."""
    playback, clock, heard = Playback(len(samples) / RATE), RealTimeClock(), 0
    for chunk in [*samples.split(CHUNK), None]:
        began, wall = time.process_time(), time.perf_counter()
        listener.finish() if chunk is None else listener.push(chunk)
        seconds = time.process_time() - began
        playback.cpu_seconds += seconds
        playback.wall_seconds += time.perf_counter() - wall
        heard += 0 if chunk is None else len(chunk)
        _note(playback, listener, heard / RATE, clock.spend(heard / RATE, seconds))
    return playback


def _note(playback: Playback, listener: Listener, heard: float, ready: float) -> None:
    before = playback.history[-1][2:] if playback.history else ([], [])
    if (listener.promised, listener.shown) != before:
        playback.history.append((heard, ready, list(listener.promised), list(listener.shown)))
    playback.finals += [(end, heard, ready) for end in listener.ended]
    listener.ended.clear()


@dataclass
class Played:
    """What one way to listen made of all recordings."""

    playbacks: list[Playback]
    listeners: list[Any]

    @property
    def cpu_seconds(self) -> float:
        return sum(playback.cpu_seconds for playback in self.playbacks)

    @property
    def decoder_calls(self) -> int:
        """Passes of the decoder, where the listeners are ours or chunks."""
        return sum(listener.decoder_calls for listener in self.listeners)


class Playing(Workload):
    """A recording played to a listener that the target makes; a seed is the number of a recording."""

    timer = staticmethod(time.process_time)

    def __init__(self, recordings: list[Recording]) -> None:
        self.recordings = recordings

    def run(self, target: Any, seed: int, fewer: int | None = None) -> tuple[Playback, Listener]:
        listener = target()
        return play(listener, self.recordings[seed].samples), listener

    def judge(self, plain: Any, other: tuple[Playback, Listener]) -> dict[str, Any]:
        return dict(zip(("playback", "listener"), other, strict=True))


def listen(ways: Mapping[str, Callable[[], Listener]], recordings: list[Recording]) -> dict[str, Played]:
    """Play every recording to a listener of each way, in turns."""
    entries = [Entry(label, "method", setup=_making(make)) for label, make in ways.items()]
    entries[0].kind = PLAIN  # which is judged first; each is judged by itself
    Runner(Playing(recordings), entries, range(len(recordings))).run(warm_up=False)
    return {entry.label: Played(*(_all(entry, key) for key in ("playback", "listener"))) for entry in entries}


def _making(make: Callable[[], Listener]) -> Callable[[Any], AbstractContextManager[Any]]:
    return lambda _: nullcontext(make)


def _all(entry: Entry, key: str) -> list[Any]:
    return [figures[key] for figures in entry.metrics.values()]
