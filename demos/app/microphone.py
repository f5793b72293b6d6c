"""The microphones of all visitors: one stream each, on one shared model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

import gradio as gr

from mmaccel import speech

from . import panels
from .frame import Frame, visitor
from .live_words import LiveWords, page, remark
from .models import Models
from .runs import Run, readable
from .speech_run import SpeechRequest, recognizer, speech_code

MICROPHONES = 8  # visitors who speak at once
CHUNK = 0.5  # seconds of sound that a browser sends at a time
LATE = 0.7  # seconds in which the last chunk of a browser still comes
CATCH_UP = 2.0  # seconds of a chunk from which on the words on the way are left out: the machine is behind
FIRST_WORDS = "The first words take a moment: the model is loaded once for all visitors."


class Listening:
    """What one visitor says into a microphone, from the start of the recording to its end; in their own `gr.State`.

    Parameters
    ----------
    request
        How it is heard.
    most
        Seconds after which it ends.

    Attributes
    ----------
    over
        Whether it has ended: what comes later is dropped.
    """

    def __init__(self, request: SpeechRequest, most: float) -> None:
        self.request, self.most = request, most
        self.words, self.over = LiveWords(), False
        self.stream: speech.SpeechStream | None = None
        self._guard = threading.Lock()  # a last chunk may come while the visitor leaves

    def hear(self, models: Models, run: Run, rate: int, samples: Any) -> bool:
        """Take in a chunk; returns whether it was the last one that is allowed."""
        with self._guard:
            if self.over:
                return False
            try:
                if self.stream is None:
                    listener = recognizer(models, run, self.request)
                    self.stream = listener.stream(update_interval=self.request.update_interval)
                self.words.take(self.stream.push(samples, rate, partials=len(samples) < CATCH_UP * rate))
            except BaseException:
                self._end()
                raise
            return self.stream.time >= self.most

    def finish(self) -> None:
        """The visitor stopped speaking: what was held back becomes text."""
        with self._guard:
            if self.stream is not None and not self.over:
                self.words.take(self.stream.finish())
            self._end()

    def close(self) -> None:
        """The visitor left: let go of the sound."""
        with self._guard:
            self._end()

    def _end(self) -> None:
        self.over = True
        if self.stream is not None:
            self.stream.close()


class Microphone:
    """What the browser's microphone calls.

    Parameters
    ----------
    frame
        Of the app.
    asked
        Makes a checked request of the values of the tab.
    ended
        Makes the last values of all outputs: from the words, and what is told beside them.
    """

    def __init__(
        self,
        frame: Frame,
        asked: Callable[..., SpeechRequest],
        ended: Callable[[LiveWords, list[Any]], Iterator[list[Any]]],
    ) -> None:
        self.frame, self.asked, self.ended = frame, asked, ended
        # A visitor's own state holds the stream; this only finds it when they close their tab.
        self.speakers: WeakValueDictionary[str, Listening] = WeakValueDictionary()
        frame.goodbyes.append(lambda visitor: _close(self.speakers.get(visitor)))

    def connect(self, microphone: gr.Audio, inputs: list[Any], outputs: list[Any]) -> None:
        """Let sound become words while it is spoken."""
        listening = gr.State(None, time_to_live=3 * self.frame.limits.audio_seconds, delete_callback=_close)
        quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        microphone.start_recording(self.begin, [listening, *inputs], [listening, outputs[0]], queue=False, **quiet)
        microphone.stream(
            self.hear,
            [microphone, listening],
            outputs[:1],
            stream_every=CHUNK,
            concurrency_id="microphones",
            concurrency_limit=MICROPHONES,
            **quiet,
        )
        microphone.stop_recording(self.finish, [listening], outputs, queue=False, **quiet)

    def begin(self, request: gr.Request, before: Listening | None, *values: Any) -> tuple[Listening, str]:
        """A visitor starts to speak; the model is loaded with the first sound."""
        with readable():
            wanted = self.asked(self.frame.limits, False, "", *values)
        _close(before)
        self.speakers[visitor(request)] = listening = Listening(wanted, self.frame.limits.audio_seconds)
        return listening, page(remark(FIRST_WORDS))

    def hear(self, request: gr.Request, chunk: Any, listening: Listening | None) -> Any:
        """A chunk of sound of a visitor: rate and samples."""
        if chunk is None or listening is None or listening.over:
            return gr.skip()
        with readable(), self.frame.runs.begin(visitor(request), lambda share, name: None) as run:
            full = listening.hear(self.frame.models, run, *chunk)
        if full:
            listening.finish()
            gr.Info(f"This is the most that is heard in one go: {listening.most:g} s. Start again to go on.")
        return listening.words.page(over=listening.over)

    def finish(self, listening: Listening | None) -> Iterator[list[Any]]:
        """A visitor stops speaking."""
        if listening is None:
            return
        time.sleep(LATE)
        with readable():
            listening.finish()
        report = "" if listening.stream is None else str(listening.stream.stats)
        yield from self.ended(listening.words, [report, "", "", panels.stage_table({}), speech_code(listening.request)])


def _close(listening: Listening | None) -> None:
    if listening is not None:
        listening.close()
