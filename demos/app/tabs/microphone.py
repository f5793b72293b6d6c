"""The microphones of all visitors: one stream each, on one shared model."""

from __future__ import annotations

import base64
import queue
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import gradio as gr
import numpy as np

from mmaccel import speech
from mmaccel.errors import AudioError, SettingError
from mmaccel.speech.stream.stats import StreamStats

from ..frame import Frame, visitor
from ..runs import Run, Stopped, readable
from .code import speech_code
from .live_words import LiveWords, page, remark
from .speech_run import SpeechRequest, recognizer

MICROPHONES = 8  # visitors who speak at once
MOST_SECONDS = 60  # of sound in one message
GONE = 30  # seconds without a message, which browsers send in silence too, after which nobody is there
BEHIND = 2  # chunks that wait, beyond which words on the way are left out until the machine has caught up
REFUSALS = count(1)  # of all visitors
FIRST_WORDS = "The first words take a moment: the model is loaded once for all visitors."


class Listening:
    """What one visitor says into a microphone, from the start of the recording to its end; in their own `gr.State`.

    The model is loaded and runs in a thread of its own, so that no sound is lost meanwhile: a browser that gets no
    answer stops sending.

    Parameters
    ----------
    load
        Makes the recogniser in a run that :meth:`close` stops; called in the thread.
    request
        How the visitor is heard.
    most
        Seconds of sound after which it ends. Without any for `GONE` seconds it ends too.

    Attributes
    ----------
    words
        What was said so far.
    seconds, answers
        Of sound that came; how often the browser was answered.
    stats
        Of the stream; None before it began.
    over, told
        Whether it has ended: what comes later is dropped; and whether the visitor was given all of it.
    run
        Tells how long it took to load the model.
    """

    def __init__(
        self, load: Callable[[Run, SpeechRequest], speech.StreamingRecognizer], request: SpeechRequest, most: float
    ) -> None:
        self.request, self.most, self.seconds, self.answers = request, most, 0.0, 0
        self.words, self.run = LiveWords(), Run()
        self.over = self.told = False
        self.stats: StreamStats | None = None
        self._load, self._error = load, list[Exception]()
        self._chunks: queue.SimpleQueue[tuple[float, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mmaccel microphone", daemon=True)
        self._thread.start()

    def hear(self, rate: float, samples: Any) -> None:
        """Take in a chunk; raises what went wrong with an earlier one."""
        if self._error:
            self.over = True
            raise self._error.pop()
        if not self.over:
            self.seconds += len(samples) / rate
            self._chunks.put((rate, samples))

    def finish(self) -> None:
        """The visitor stopped speaking: waits until all of it has become text."""
        self._chunks.put(None)
        self._thread.join()
        self.over = True
        if self._error:
            raise self._error.pop()

    def close(self) -> None:
        """The visitor stopped it, or left: let go of the sound, and of the place in the queue for the model."""
        self.over = True
        self.run.stop()
        self._chunks.put(None)

    def _run(self) -> None:
        try:
            with self._load(self.run, self.request).stream(update_interval=self.request.update_interval) as stream:
                self.stats = stream.stats
                while (chunk := self._chunks.get(timeout=GONE)) is not None and not self.over:
                    rate, samples = chunk
                    self.words.take(stream.push(samples, rate, partials=self._chunks.qsize() <= BEHIND))
                if not self.over:
                    self.words.take(stream.finish())
        except (queue.Empty, Stopped):  # gone without a word, or before the server knew that they began
            self.over = True
        except Exception as error:
            self._error.append(error)


class Microphone:
    """What the browser's microphone calls.

    Parameters
    ----------
    frame
        Of the app.
    asked
        Makes a checked request of the values of the tab.
    ended
        Makes the last values of all outputs: from the words, the run, the figures and the code.
    """

    def __init__(
        self,
        frame: Frame,
        asked: Callable[..., SpeechRequest],
        ended: Callable[[LiveWords, Run, str, str], list[Any]],
    ) -> None:
        self.frame, self.asked, self.ended = frame, asked, ended
        # A visitor's own state holds the stream; this only finds it when they close their tab.
        self.speakers: WeakValueDictionary[str, Listening] = WeakValueDictionary()
        frame.ends.append(lambda visitor: _close(self.speakers.get(visitor)))

    def connect(self, microphone: gr.HTML, inputs: list[Any], outputs: list[Any]) -> None:
        """Let sound become words while it is spoken; the script triggers one event after the other."""
        state = gr.State(None)
        quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        answer = [microphone, outputs[0]]
        microphone.click(self.begin, [state, *inputs], [state, *answer], **quiet)
        microphone.input(self.hear, [microphone, state], answer, **quiet)
        microphone.submit(self.finish, [state], outputs, **quiet)

    def begin(
        self, request: gr.Request, before: Listening | None, *values: Any
    ) -> tuple[Listening | None, dict[str, Any], str]:
        """A visitor starts to speak; the model is loaded meanwhile."""
        _close(before)
        try:
            with readable():
                wanted = self.asked(self.frame.limits, False, "", *values)
                self._make_room()
        except gr.Error as error:
            return None, _refused(error), page()
        listening = Listening(self._recognizer, wanted, self.frame.limits.audio_seconds)
        self.speakers[visitor(request)] = listening
        return listening, _answer(listening), page(remark(FIRST_WORDS))

    def _make_room(self) -> None:
        if sum(not one.over for one in self.speakers.values()) >= MICROPHONES:
            raise SettingError(
                f"{MICROPHONES} visitors are speaking, and the demo takes no more: try again in a minute"
            )

    def _recognizer(self, run: Run, request: SpeechRequest) -> speech.StreamingRecognizer:
        return recognizer(self.frame.models, run, request)

    def hear(self, message: Any, listening: Listening | None) -> tuple[Any, Any]:
        """Sound of a visitor: ``{"rate": samples a second, "sound": base64 of int16}``."""
        if listening is None:
            return {"heard": 0, "over": True}, gr.skip()
        try:
            with readable():
                listening.hear(*_decoded(message))
        except gr.Error as error:
            listening.close()
            return _refused(error), listening.words.page(over=True)
        if listening.seconds >= listening.most and not listening.over:
            gr.Info(f"One recording ends after {listening.most:g} s. Speak again to go on.")
            return {**_answer(listening), "over": True}, gr.skip()
        return _answer(listening), gr.skip() if listening.stats is None else listening.words.page(listening.over)

    def finish(self, listening: Listening | None) -> Iterator[list[Any]]:
        """A visitor stops speaking, or was stopped, by an error too: what was said until then is theirs."""
        if listening is None or listening.told or (listening.over and not listening.words.finals):
            return
        listening.told = True
        code = speech_code(listening.request, self.frame.models)
        try:
            if not listening.over:
                with readable():
                    listening.finish()
        finally:  # an error of the last words too
            if listening.over or listening.words.finals:
                yield self.ended(listening.words, listening.run, str(listening.stats), code)


def component() -> gr.HTML:
    """A button that records; its script says why where there is no microphone."""
    script = Path(__file__).with_name("microphone.js").read_text(encoding="utf-8")
    button = '<button class="lg secondary" type="button">Speak</button> <span role="status">into the microphone</span>'
    return gr.HTML(None, label="Microphone", show_label=False, container=True, html_template=button, js_on_load=script)


def _decoded(message: Any) -> tuple[float, np.ndarray]:
    """Rate and samples of a message; an `AudioError` where it is none."""
    try:
        rate, sound = float(message["rate"]), base64.b64decode(message["sound"], validate=True)
        if not 8_000 <= rate <= 384_000 or len(sound) > 2 * MOST_SECONDS * rate:
            raise ValueError("out of range")
        return rate, np.frombuffer(sound, "<i2")
    except (TypeError, KeyError, ValueError) as error:
        raise AudioError("this is not the sound of a microphone: reload the page, and speak again") from error


def _answer(listening: Listening) -> dict[str, Any]:
    """What the script waits for; never twice the same, so that it is noticed."""
    listening.answers += 1
    return {"heard": listening.answers, "over": listening.over}


def _refused(error: gr.Error) -> dict[str, Any]:
    """As :func:`_answer`: the page would go on recording after one that is the same as the last."""
    gr.Warning(f"<strong>{error.title}</strong><br>{error.message}")  # gradio leaves titles out
    return {"heard": 0, "over": True, "refusal": next(REFUSALS)}


def _close(listening: Listening | None) -> None:
    if listening is not None:
        listening.close()
