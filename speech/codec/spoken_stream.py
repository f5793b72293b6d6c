"""One text that is spoken: a thread generates, whoever listens takes the sound."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch

from mmaccel.errors import MmaccelError
from mmaccel.machine import synchronize, with_autocast

from .streaming_codec_decoder import CodecStream

if TYPE_CHECKING:
    from .streaming_speech import StreamingSpeech

# One stream at a time for each model, also where several objects speak with it: its methods are wrapped meanwhile.
_TURNS: weakref.WeakKeyDictionary[Any, threading.Lock] = weakref.WeakKeyDictionary()


class SpokenStream(Iterator[torch.Tensor]):
    """The blocks of sound of :meth:`mmaccel.speech.StreamingSpeech.stream`, `[B, channels, samples]`.

    Also a context manager, which closes it.
    """

    def __init__(self, voice: StreamingSpeech, blocks: Iterable[int], inputs: dict[str, Any]) -> None:
        self._run = _Run(voice, blocks, inputs)
        # Nobody listens once this is gone, nor when Python ends: no thread may be within torch then.
        weakref.finalize(self, self._run.leave)

    def __next__(self) -> torch.Tensor:
        run = self._run
        try:
            run.start()
            audio = None if run.left.is_set() else run.ready.get()
        except BaseException:
            self.close()
            raise
        if audio is not None and not run.left.is_set():
            return audio
        self.close()
        error, run.error = run.error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Stop generating, from any thread; whoever waits for the next block gets no more."""
        self._run.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Left(Exception):  # noqa: N818  no error: nobody listens any more
    pass


class _Run:
    """What is generated in a thread, and the sound that is ready; knows nothing of who listens."""

    def __init__(self, voice: StreamingSpeech, blocks: Iterable[int], inputs: dict[str, Any]) -> None:
        self.voice, self.blocks, self.inputs = voice, blocks, inputs
        self.ready: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()
        self.left = threading.Event()
        self.error: BaseException | None = None
        self._stream: CodecStream | None = None
        self._thread: threading.Thread | None = None
        self._begins = threading.Lock()  # also where two threads ask for the first block
        self._turn = _TURNS.setdefault(voice.speaker.model, threading.Lock())

    def start(self) -> None:
        """Begin to generate, the first time."""
        with self._begins:
            if self._thread is None and not self.left.is_set():
                self._thread = self._begun()

    def _begun(self) -> threading.Thread:
        if not self._turn.acquire(blocking=False):
            raise MmaccelError("this model speaks already: close that stream, or take all of it, first")
        try:
            self.voice.meter.restart()
            self.voice.generated = None
            speak = with_autocast(self._speak)
            thread = threading.Thread(target=self._generate, args=(speak,), name="mmaccel speech out", daemon=True)
            thread.start()  # which raises where there are too many
        except BaseException:
            self._turn.release()
            raise
        return thread

    def leave(self) -> None:
        """Nobody listens any more."""
        self.left.set()
        self.ready.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():  # which may be collecting garbage
            thread.join()

    def _generate(self, speak: Callable[[], None]) -> None:
        try:
            speak()
        except _Left:
            pass
        except BaseException as error:  # whoever listens is to hear of it, whatever it is
            self.error = error
        finally:
            self._turn.release()
            self.ready.put(None)

    def _speak(self) -> None:
        speaker = self.voice.speaker
        with ExitStack() as stack:
            self.voice.generated = speaker.model.generate(**self.inputs, **speaker.follow(stack, self._take))
        if self._stream is not None:
            self._give(self._stream.finish())

    def _take(self, frame: torch.Tensor) -> None:
        """A frame `[B, Q, 1]`."""
        if self.left.is_set():
            raise _Left
        if self._stream is None:
            self._stream = self.voice.decoder.stream(len(frame), self.blocks)
        codec = self.voice.decoder.model
        dtype = codec.dtype if frame.is_floating_point() else frame.dtype
        self._give(self._stream.push(frame.to(codec.device, dtype)))

    def _give(self, audio: torch.Tensor) -> None:
        if audio.shape[-1]:
            if audio.device.type != "cpu":  # where it is only queued until now
                synchronize()
            self.voice.meter.add(audio)
            self.ready.put(audio)
