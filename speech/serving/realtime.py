"""Live speech in the messages of OpenAI's realtime transcription."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from typing import Any

from starlette.concurrency import run_in_threadpool

from mmaccel.errors import AudioError, MmaccelError, SettingError, shown
from mmaccel.method import is_number
from mmaccel.serve.sockets import Line

from ..stream.events import Endpoint, Event, Final, Partial
from ..stream.recognizer import StreamingRecognizer
from .listening import Listening

RATE = 24_000  # of OpenAI's samples
TRANSCRIBED = "conversation.item.input_audio_transcription"


async def talk(line: Line, recognizer: StreamingRecognizer, name: str) -> None:
    """Take samples, and answer with their words as they become stable."""
    await line.open()
    conversation = Conversation(recognizer, name)
    await line.give(conversation.event("session.created", session=conversation.session))
    while True:
        message = await line.take()
        try:
            events = await run_in_threadpool(conversation.take, message)
        except MmaccelError as error:
            told = {"type": "invalid_request_error", "message": str(error), "code": None, "param": None}
            events = [conversation.event("error", error=told)]
        for event in events:
            await line.give(event)


class Conversation:
    """One client's messages, and what is answered to each.

    A text that was promised is sent in deltas; the text of the end may correct it.
    """

    def __init__(self, recognizer: StreamingRecognizer, name: str) -> None:
        self._base, self.name = recognizer, name
        self._waits = False  # with all words for a commit, instead of a pause
        self._listening = Listening(recognizer, RATE)
        self._sent, self._texts = "", list[str]()
        self._item = _number("item")
        self._before: str | None = None
        self.session: dict[str, Any] = {
            "type": "transcription",
            "id": _number("sess"),
            "object": "realtime.transcription_session",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": RATE},
                    "transcription": {"model": name},
                    "turn_detection": {"type": "server_vad"},
                }
            },
        }

    def event(self, kind: str, **more: Any) -> dict[str, Any]:
        """A message to the client."""
        return {"type": kind, "event_id": _number("event"), **more}

    def take(self, message: str | bytes) -> list[dict[str, Any]]:
        """Answers to a message; raises a `MmaccelError` that says what is wrong with it."""
        asked = _read(message)
        kind = asked.get("type")
        if kind == "input_audio_buffer.append":
            return self._answers(self._listening.push(_samples(asked.get("audio"))))
        if kind == "input_audio_buffer.commit":
            return self._answers(self._listening.end(), is_committed=True)
        if kind == "input_audio_buffer.clear":
            self._listening.clear()
            self._next()
            return [self.event("input_audio_buffer.cleared")]
        if kind in ("session.update", "transcription_session.update"):
            self._update(asked.get("session"))
            return [self.event(f"{kind}d", session=self.session)]
        raise SettingError(f"a message of type {shown(kind)}: send session.update, or input_audio_buffer.append")

    def _update(self, session: Any) -> None:
        """Other settings, from the next words on."""
        given = _object(session, "session")
        heard = _object(_object(given.get("audio"), "audio").get("input"), "audio.input") or given
        words = _object(heard.get("transcription") or heard.get("input_audio_transcription"), "transcription")
        turns = heard.get("turn_detection", {})
        silence = _object(turns, "turn_detection").get("silence_duration_ms")
        if words.get("model") not in (None, self.name):
            raise SettingError(f"unknown model {shown(words['model'])}: this server has {self.name!r}")
        if not (silence is None or is_number(silence, 1, 10_000)):
            raise SettingError(f"silence_duration_ms={shown(silence)}: give milliseconds, such as 500")
        rate = _rate(heard)
        seconds = None if silence is None else silence / 1000
        listens = self._base.told(words.get("language"), prompt=words.get("prompt") or "", silence=seconds)
        self._listening, self._waits = Listening(listens, rate), turns is None
        kept = self.session["audio"]["input"]
        kept["format"]["rate"], kept["turn_detection"] = rate, turns
        kept["transcription"] = {**words, "model": self.name}

    def _answers(self, events: list[Event], is_committed: bool = False) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        for event in events:
            if isinstance(event, Partial):
                told += [] if self._waits else self._delta(event.delta)
            elif isinstance(event, Endpoint) and not self._waits:
                end = round(1000 * event.time)
                told.append(self.event("input_audio_buffer.speech_stopped", audio_end_ms=end, item_id=self._item))
            elif isinstance(event, Final):
                self._texts.append(event.text)
                told += [] if self._waits else self._completed()
        if is_committed and (self._texts or not events):
            told += self._completed()
        return told

    def _delta(self, text: str) -> list[dict[str, Any]]:
        text = text if self._sent else text.lstrip()
        self._sent += text
        return [self.event(f"{TRANSCRIBED}.delta", item_id=self._item, content_index=0, delta=text)] if text else []

    def _completed(self) -> list[dict[str, Any]]:
        """What ends an item, the rest of its text with it."""
        text = " ".join(text for text in self._texts if text)
        told = self._delta(text[len(self._sent) :]) if text.startswith(self._sent) else []
        item = {"item_id": self._item, "previous_item_id": self._before}
        told.insert(0, self.event("input_audio_buffer.committed", **item))
        told.append(self.event(f"{TRANSCRIBED}.completed", item_id=self._item, content_index=0, transcript=text))
        self._before = self._item
        self._next()
        return told

    def _next(self) -> None:
        self._item, self._sent, self._texts = _number("item"), "", []


def _read(message: str | bytes) -> dict[str, Any]:
    try:
        asked = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise SettingError(f"a message is no JSON: {error}") from None
    if not isinstance(asked, dict):
        raise SettingError("a message is no JSON object: send {...}")
    return asked


def _object(value: Any, name: str) -> dict[str, Any]:
    """A part of a message; empty where there is none."""
    if not (value is None or isinstance(value, dict)):
        raise SettingError(f"{name} is no JSON object: send {{...}}")
    return value or {}


def _rate(heard: dict[str, Any]) -> Any:
    """Samples a second, as the messages of today or of the beta say it."""
    form = _object(heard.get("format"), "format")
    kind, old = form.get("type", "audio/pcm"), heard.get("input_audio_format", "pcm16")
    if kind != "audio/pcm" or old != "pcm16":
        raise SettingError("samples of 16 bits are taken here, and no other format: send audio/pcm")
    return form.get("rate", RATE)


def _samples(audio: Any) -> bytes:
    try:
        return base64.b64decode(audio, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise AudioError("audio is no base64: send 16-bit samples in base64") from None


def _number(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(10)}"
