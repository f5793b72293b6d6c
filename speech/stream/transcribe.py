"""Transcribe a recording with the parts that a stream is made of."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mmaccel.errors import SettingError
from mmaccel.progress import looks

from ..audio.audio import read_audio, to_samples
from ..audio.endpoint import RATE, EndpointPolicy
from ..families.adapter import Word
from ..families.weights import load
from .events import Event, Final
from .recognizer import StreamingRecognizer
from .stats import Lags, StreamStats
from .subtitles import SubtitleLayout, write_subtitles
from .units import joined_text

# A bar is drawn for recordings of more than this many seconds, and moves in steps of so many.
LONG, STEP = 60.0, 5.0


@dataclass(frozen=True)
class Transcript:
    """What was said in a recording.

    Attributes
    ----------
    text
        All of it.
    words
        Its words with times in seconds of the recording.
    segments
        Its parts between pauses.
    stats
        What it took. There are no lags where a whole recording was transcribed.
    """

    text: str
    words: tuple[Word, ...]
    segments: tuple[Final, ...]
    stats: StreamStats = field(compare=False)

    def save(self, path: Path | str, layout: SubtitleLayout | None = None) -> None:
        """Write subtitles; the ending says how: .srt, .vtt or .json. `SettingError` if it is another."""
        write_subtitles(path, self.segments, layout)


def transcribe(
    path: Path | str,
    model: Any = "moonshine-tiny",
    processor: Any = None,
    endpoint: str | EndpointPolicy = "auto",
    context: int = 200,
    progress: bool | None = None,
    language: str | None = None,
    task: str | None = None,
    prompt: str = "",
    rejoin: float = 0.0,
) -> Transcript:
    """Transcribe an audio or video file.

    Segments are those of a stream, and each is decoded once: the text is that of the finals of a
    :class:`~mmaccel.speech.StreamingRecognizer` with the same settings, token for token.

    Parameters
    ----------
    path
        A file that PyAV reads, in any format.
    model
        A name, hub id or folder for :func:`~mmaccel.speech.load` (default ``"moonshine-tiny"``), a model with its
        `processor`, or a recogniser.
    processor
        Of the model; by default, where that is a name, the one that comes with it.
    endpoint, context, rejoin
        As of :class:`~mmaccel.speech.StreamingRecognizer`; a recogniser has its own.
    language, task, prompt
        As of :class:`~mmaccel.speech.StreamingRecognizer`; a recogniser follows them in this file alone.
    progress
        Whether to draw a bar on standard error; by default for more than a minute of audio. Where that is no terminal,
        a line now and then.

    Raises
    ------
    AudioError
        If the file is missing, damaged or holds no audio.
    SettingError
        If a setting is out of range, the model cannot be told one of them, or a recogniser has its own.

    Examples
    --------
    >>> print(speech.transcribe("talk.wav").text)  # doctest: +SKIP
    """
    samples = read_audio(path)  # fails before seconds of loading
    told: dict[str, Any] = {"language": language, "task": task, "prompt": prompt, "rejoin": rejoin}
    return transcribe_samples(samples, as_recognizer(model, processor, endpoint, context, **told), progress)


def transcribe_samples(samples: Any, recognizer: StreamingRecognizer, progress: bool | None = None) -> Transcript:
    """As :func:`transcribe`, of all that :func:`~mmaccel.speech.to_samples` takes, at 16 kHz."""
    samples = to_samples(samples)
    with recognizer.stream(update_interval=None) as stream:
        events: list[Event] = []
        for piece in pieces(samples, progress):
            events += stream.push(piece)
        events += stream.finish()
    stats = stream.stats
    stats.word_lag, stats.finalisation = Lags(), Lags()  # nobody waited, and the steps are longer than any lag
    return transcript(events, stats)


def transcript(events: list[Event], stats: StreamStats) -> Transcript:
    """Put the finals of a stream together."""
    segments = tuple(event for event in events if isinstance(event, Final))
    words = tuple(word for segment in segments for word in segment.words)
    return Transcript(joined_text(segment.text for segment in segments), words, segments, stats)


def as_recognizer(
    model: Any, processor: Any, endpoint: str | EndpointPolicy, context: int, rejoin: float = 0.0, **told: Any
) -> StreamingRecognizer:
    """A recogniser of a name, a model with its processor, or a recogniser with other instructions."""
    if isinstance(model, StreamingRecognizer):
        _refuse_others(processor=processor, endpoint=endpoint, context=context, rejoin=rejoin)
        instructions = {name: value for name, value in told.items() if value}
        return model.told(**instructions) if instructions else model
    if isinstance(model, str | Path):
        model, own = load(str(model))
        processor = own if processor is None else processor
    return StreamingRecognizer(model, processor, endpoint=endpoint, context=context, rejoin=rejoin, **told)


def _refuse_others(**given: Any) -> None:
    """Raise a `SettingError` for settings that a recogniser has of its own."""
    usual = inspect.signature(transcribe).parameters
    for name, value in given.items():
        if value != usual[name].default:
            raise SettingError(
                f"{name}={value!r}: a recogniser has its own; leave it out, or make another with"
                f" speech.StreamingRecognizer(..., {name}=...)"
            )


def pieces(samples: torch.Tensor, progress: bool | None) -> Iterator[torch.Tensor]:
    """Samples in steps, with a bar that counts seconds."""
    seconds = samples.numel() / RATE
    hidden = seconds <= LONG if progress is None else not progress
    shown = {"unit": "s", "desc": "transcribe", **looks(), **({"delay": 0.0} if progress else {})}
    with tqdm(total=round(seconds), disable=hidden, **shown) as bar:
        for piece in samples.split(round(STEP * RATE)):
            yield piece
            bar.update(round(piece.numel() / RATE))
