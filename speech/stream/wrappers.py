"""Streams that run while other work goes on: over an async source of chunks, or in a thread with a callback."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any, Self

from mmaccel.errors import SettingError, StreamFinishedError
from mmaccel.machine import with_autocast
from mmaccel.method import is_count

from ..audio.audio import copied
from .events import Event
from .stream import SpeechStream

BEHIND = 0.15  # seconds of sound that wait: the time of a look, and no sign of a machine that is too slow


async def stream_events(stream: SpeechStream, chunks: AsyncIterable[Any]) -> AsyncIterator[Event]:
    """Events of an async source of chunks; the model runs in a thread, the event loop goes on.

    The stream is finished when the source ends, and closed whatever happens.

    Parameters
    ----------
    stream
        A new stream.
    chunks
        What :meth:`SpeechStream.push` takes, such as the messages of a web socket.

    Raises
    ------
    AudioError
        At a chunk that is no audio. To go on behind one, call `push` in a thread of your own.

    Examples
    --------
    >>> async for event in speech.stream_events(asr.stream(), websocket):  # doctest: +SKIP
    ...     await websocket.send(str(event))
    """
    try:
        async for chunk in chunks:
            for event in await asyncio.to_thread(with_autocast(stream.push), chunk):
                yield event
        for event in await asyncio.to_thread(with_autocast(stream.finish)):
            yield event
    finally:
        await asyncio.to_thread(stream.close)


class BackgroundStream:
    """Recognise in a thread: `push` returns at once, and events go to a callback there.

    Where more than one chunk has to wait, and more than 0.15 s of sound, because the machine is busy, hypotheses on the
    way are left out until the stream has caught up: lag does not grow. Finals do not depend on it.

    Parameters
    ----------
    stream
        A new stream.
    callback
        Called with each event, in the thread.
    on_error
        Called with what went wrong with a chunk or in the callback, in the thread; the stream goes on. Without one,
        the next `push` or `finish` raises it, as it does what `on_error` raises. Behind what is no `Exception`, such
        as `sys.exit()` in a callback, nothing more is heard, and each of them raises it.
    waiting
        Most chunks that wait; default 1000, after which `push` waits too.

    Examples
    --------
    >>> with speech.BackgroundStream(asr.stream(), print) as background:  # doctest: +SKIP
    ...     microphone.start(background.push)
    """

    def __init__(
        self,
        stream: SpeechStream,
        callback: Callable[[Event], object],
        on_error: Callable[[Exception], object] | None = None,
        waiting: int = 1000,
    ) -> None:
        if not is_count(waiting, 1):
            raise SettingError(f"waiting={waiting!r}: pass at least 1 chunk, such as 1000")
        self.stream = stream
        self._callback, self._on_error = callback, on_error
        self._chunks: queue.Queue[tuple[Any, int | None] | None] = queue.Queue(waiting)
        self._errors: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        self._fatal: BaseException | None = None
        self._dropped = self._finished = False
        self._thread = threading.Thread(target=with_autocast(self._run), name="mmaccel speech", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self.finish()
        else:
            self.close()

    def push(self, chunk: Any, sample_rate: int | None = None) -> None:
        """Hand over a copy of a chunk; raises what went wrong with an earlier one, after which more may be pushed."""
        if self._finished:
            raise StreamFinishedError("the stream is finished: open another with recognizer.stream()")
        self._chunks.put((copied(chunk), sample_rate))  # devices use their memory again
        self._raise()

    def finish(self) -> None:
        """The audio has ended: waits until the last event was called back, unless a callback says so."""
        self._end()
        self._raise()

    def close(self) -> None:
        """Stop without the rest; chunks that wait are dropped."""
        self._dropped = True
        self._end()

    def _end(self) -> None:
        is_called_back = threading.current_thread() is self._thread
        if not self._finished:
            self._finished = True
            if is_called_back:  # it makes room itself
                threading.Thread(target=self._chunks.put, args=(None,), daemon=True).start()
            else:
                self._chunks.put(None)
        if not is_called_back:
            self._thread.join()

    def _raise(self) -> None:
        if self._fatal is not None:
            raise self._fatal
        if not self._errors.empty():
            raise self._errors.get()

    def _run(self) -> None:
        count = 0
        while (item := self._chunks.get()) is not None:
            if not self._dropped:
                chunk, sample_rate = item
                behind = self._is_behind(count)
                count += 1
                self._outlive(lambda: self.stream.push(chunk, sample_rate, partials=not behind))  # noqa: B023
        if not self._dropped:
            self._outlive(self.stream.finish)
        self.stream.close()

    def _is_behind(self, count: int) -> bool:
        """Whether more than a moment waits, by the mean length of the `count` chunks before."""
        waiting = self._chunks.qsize()
        return waiting > 1 and (not count or waiting * self.stream.time / count > BEHIND)

    def _outlive(self, step: Callable[[], list[Event]]) -> None:
        """Deliver, and empty the queue from then on whatever happens: nobody waits for a thread that has ended."""
        try:
            self._deliver(step)
        except BaseException as error:
            self._fatal, self._dropped = error, True
            self.stream.close()

    def _deliver(self, step: Callable[[], list[Event]]) -> None:
        events: list[Event] = []
        self._try(lambda: events.extend(step()))
        for event in events:
            self._try(lambda: self._callback(event))  # noqa: B023

    def _try(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:
            tell = self._on_error or self._errors.put
            try:
                tell(error)
            except Exception as another:
                self._errors.put(another)
