"""Streams that get their audio at the same time, and share the passes of one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Self

from mmaccel.errors import SettingError, StreamFinishedError
from mmaccel.machine import with_autocast

from ..decoding.gathering import Gathering
from .events import Event
from .stream import SpeechStream


class StreamGroup:
    """Several streams of one recogniser; made by :meth:`mmaccel.speech.StreamingRecognizer.streams`.

    Audio for all of them is pushed together. Where several are due for a look, it is one pass of the model for all.
    Each has the events that it would have alone.

    Attributes
    ----------
    streams
        Its streams, whose `stats` count as ever; computing time is that of all, where they compute at once.

    Examples
    --------
    >>> with asr.streams(2) as group:  # doctest: +SKIP
    ...     for left, right in zip(one, other):
    ...         events_of_left, events_of_right = group.push([left, right])
    ...     tails = group.finish()
    """

    def __init__(self, streams: Sequence[SpeechStream]) -> None:
        self.streams = tuple(streams)
        gathering = self.streams[0].recognizer.gathering
        assert gathering is not None
        self.gathering: Gathering = gathering
        self._held: list[list[Event]] = [[] for _ in self.streams]  # what an error, or Ctrl-C, kept from the caller
        self._is_closed = False
        self._threads = ThreadPoolExecutor(len(self.streams), "mmaccel speech")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def push(self, chunks: Sequence[Any], partials: bool = True) -> list[list[Event]]:
        """Take in one chunk for each stream, an empty one or None where there is none; returns the events of each.

        Raises
        ------
        SettingError
            If there are not as many chunks as streams.
        AudioError
            If one is no audio, which is left out; the next push returns what the others heard.
        StreamFinishedError
            After :meth:`finish` or :meth:`close`.
        """
        if len(chunks) != len(self.streams):
            raise SettingError(f"{len(chunks)} chunks for {len(self.streams)} streams: pass one for each, or None")
        given = [b"" if chunk is None else chunk for chunk in chunks]
        return self._each(
            [(stream.push, (chunk, None, partials)) for stream, chunk in zip(self.streams, given, strict=True)]
        )

    def finish(self) -> list[list[Event]]:
        """The audio has ended: returns what was still held back of each; a second call returns nothing."""
        if self._is_closed:
            return [[] for _ in self.streams]
        found = self._each([(stream.finish, ()) for stream in self.streams])
        self.close()
        return found

    def close(self) -> None:
        """Let go of the audio and the threads."""
        self._is_closed = True
        for stream in self.streams:
            stream.close()
        self._threads.shutdown()

    def _each(self, steps: Sequence[tuple[Callable[..., list[Event]], tuple[Any, ...]]]) -> list[list[Event]]:
        """The events of a step of each stream, once all are done."""
        if self._is_closed:
            raise StreamFinishedError("the streams are finished: open others with recognizer.streams()")
        work = with_autocast(self._joined)
        futures = [self._threads.submit(work, step, arguments) for step, arguments in steps]
        try:
            wait(futures)
        finally:
            wait(futures)  # also where the first was interrupted: no stream hears two chunks at once
            for held, future in zip(self._held, futures, strict=True):
                held += [] if future.exception() else future.result()
        _raise_first([future.exception() for future in futures])
        found, self._held = self._held, [[] for _ in self.streams]
        return found

    def _joined(self, step: Callable[..., list[Event]], arguments: tuple[Any, ...]) -> list[Event]:
        with self.gathering.joined():
            return step(*arguments)


def _raise_first(errors: Sequence[BaseException | None]) -> None:
    """Raise the first error of the streams, if there is one, with a note of each other."""
    first = next((error for error in errors if error is not None), None)
    if first is None:
        return
    for number, error in enumerate(errors):
        if error is not None and error is not first:  # one error may be that of a pass of several
            first.add_note(f"stream {number} failed too: {error}")
    raise first
