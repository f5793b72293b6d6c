"""What listeners show of recordings, and when: a recording is played to each, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload

from ..audio.endpoint import RATE
from ..audio.recordings import Recording
from ..families.adapter import Word
from ..stream.emission_latency import Emission, emissions_of
from ..stream.stats import Lags, RealTimeClock
from .listeners import Listener

CHUNK = RATE // 10  # samples of a push, as in moonshine-voice's own example


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
    early
        The same for those whose text had been told early, with the clocks when it was.
    told, tellings
        Both clocks when the text that is on was told early, and how often a text was, right or not.
    """

    audio_seconds: float
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    history: list[tuple[Any, ...]] = field(default_factory=list)
    finals: list[tuple[float, float, float]] = field(default_factory=list)
    early: list[tuple[float, float, float]] = field(default_factory=list)
    told: tuple[float, float] | None = None
    tellings: int = 0

    @property
    def text(self) -> str:
        return " ".join(self.history[-1][3]) if self.history else ""

    def emissions(self, clock: int, kind: int, alone: bool = False) -> list[Emission]:
        """When each word came for good: `clock` 0 or 1, and `kind` 2 or 3, are places in :attr:`history`."""
        return emissions_of(((step[clock], step[kind]) for step in self.history), alone=alone)

    @staticmethod
    def lags(ends: Sequence[tuple[float, float, float]], words: Sequence[Word]) -> Lags:
        """From the end of speech to its text, as :attr:`finals` or :attr:`early` say.

        Speech ends with the last of `words` that began before the pause: where a pause begins, each listener says
        with a padding of its own.
        """
        lags = Lags()
        for end, heard, ready in ends:
            before = [word.end for word in words if word.start < end]
            lags.add(before[-1] if before else end, heard, ready)
        return lags

    def first(self, clock: int) -> float | None:
        """Seconds of the stream at which the first word was shown."""
        return next((step[clock] for step in self.history if step[3]), None)


def play(listener: Listener, samples: torch.Tensor, chunk: int = CHUNK) -> Playback:
    """Push samples `[n]`, `chunk` at a time, and note what is shown after each push, on both clocks."""
    playback, clock, heard = Playback(len(samples) / RATE), RealTimeClock(), 0
    for pushed in [*samples.split(chunk), None]:
        began, wall = time.process_time(), time.perf_counter()
        listener.finish() if pushed is None else listener.push(pushed)
        seconds = time.process_time() - began
        playback.cpu_seconds += seconds
        playback.wall_seconds += time.perf_counter() - wall
        heard += 0 if pushed is None else len(pushed)
        _note(playback, listener, heard / RATE, clock.spend(heard / RATE, seconds))
    return playback


def _note(playback: Playback, listener: Listener, heard: float, ready: float) -> None:
    before = playback.history[-1][2:] if playback.history else ([], [])
    if (listener.promised, listener.shown) != before:
        playback.history.append((heard, ready, list(listener.promised), list(listener.shown)))
    for end, was_early in listener.ended:
        playback.finals.append((end, heard, ready))
        playback.early += [(end, *playback.told)] if was_early and playback.told else []
    listener.ended.clear()
    if listener.is_early and playback.told is None:
        playback.tellings += 1
    playback.told = (playback.told or (heard, ready)) if listener.is_early else None


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

    def __init__(self, recordings: list[Recording], chunk: int) -> None:
        self.recordings, self.chunk = recordings, chunk

    def run(self, target: Any, seed: int, fewer: int | None = None) -> tuple[Playback, Listener]:
        listener = target()
        return play(listener, self.recordings[seed].samples, self.chunk), listener

    def judge(self, plain: Any, other: tuple[Playback, Listener]) -> dict[str, Any]:
        return dict(zip(("playback", "listener"), other, strict=True))


def listen(
    ways: Mapping[str, Callable[[], Listener]], recordings: list[Recording], chunk: int = CHUNK
) -> dict[str, Played]:
    """Play every recording to a listener of each way, in turns, `chunk` samples at a time."""
    entries = [Entry.using(label, make) for label, make in ways.items()]
    entries[0].kind = PLAIN  # which is judged first; each is judged by itself
    Runner(Playing(recordings, chunk), entries, range(len(recordings))).run(warm_up=False)
    return {entry.label: Played(*(_all(entry, key) for key in ("playback", "listener"))) for entry in entries}


def _all(entry: Entry, key: str) -> list[Any]:
    return [figures[key] for figures in entry.metrics.values()]
