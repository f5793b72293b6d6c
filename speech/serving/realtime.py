"""Live speech in the messages of OpenAI's realtime transcription."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool

from mmaccel.errors import AudioError, MmaccelError, SettingError, shown
from mmaccel.serve.endpoint import Fields
from mmaccel.serve.sockets import Connection

from ..stream.events import Endpoint, Final, Partial
from ..stream.recognizer import StreamingRecognizer
from ..stream.units import joined_text
from .listening import Heard, Listening, Started
from .session_settings import TURNS, SessionSettings

TRANSCRIBED = "conversation.item.input_audio_transcription"
BUFFER = "input_audio_buffer"
# Messages, and what each holds.
APPEND, COMMIT, CLEAR = f"{BUFFER}.append", f"{BUFFER}.commit", f"{BUFFER}.clear"
UPDATES = ("session.update", "transcription_session.update")
HOLDS = {APPEND: "audio", COMMIT: "", CLEAR: "", **dict.fromkeys(UPDATES, "session")}


async def talk(connection: Connection, recognizer: StreamingRecognizer, name: str) -> None:
    """Take samples, and answer with their words as they become stable."""
    Fields(connection.query).only("model", None, name)
    await connection.open()
    conversation = RealtimeConversation(recognizer, name)
    await connection.give(conversation.event("session.created", session=conversation.session))
    while True:
        for event in await run_in_threadpool(conversation.take, await connection.take()):
            await connection.give(event)


class RealtimeConversation:
    """One client's messages, and what is answered to each.

    A text that was promised is sent in deltas; the text of the end may correct it.
    """

    def __init__(self, recognizer: StreamingRecognizer, name: str) -> None:
        self._base, self.name = recognizer, name
        self._settings = SessionSettings(turns=TURNS)
        self._listening = Listening(recognizer, self._settings.rate)
        self._sent, self._texts = "", list[str]()
        self._item = _number("item")
        self._before: str | None = None
        self._about = {"type": "transcription", "id": _number("sess"), "object": "realtime.transcription_session"}

    @property
    def session(self) -> dict[str, Any]:
        """The settings, as the client is told them."""
        return {**self._about, "audio": {"input": self._settings.told(self.name)}}

    @property
    def _waits(self) -> bool:
        """Whether all words wait for a commit, instead of a pause."""
        return self._settings.turns is None

    def event(self, kind: str, **more: Any) -> dict[str, Any]:
        """A message to the client."""
        return {"type": kind, "event_id": _number("event"), **more}

    def take(self, message: str | bytes) -> list[dict[str, Any]]:
        """Answers to a message; where something is wrong with it, an error that names it by the client's own number."""
        asked: dict[str, Any] = {}
        try:
            asked = _read(message)
            return self._answered(*_held(asked))
        except MmaccelError as error:
            number = asked.get("event_id")
            told = {"type": "invalid_request_error", "message": str(error), "code": None, "param": None}
            return [self.event("error", error={**told, "event_id": number if isinstance(number, str) else None})]

    def _answered(self, kind: str, held: Any) -> list[dict[str, Any]]:
        if kind == APPEND:
            return self._answers(self._listening.push(_samples(held)))
        if kind == COMMIT:
            return self._answers(self._listening.end(), goes_on=False, is_committed=True)
        if kind == CLEAR:
            self._listening.clear()
            self._next()
            return [self.event(f"{BUFFER}.cleared")]
        return [*self._update(held), self.event(f"{kind}d", session=self.session)]

    def _update(self, session: Any) -> list[dict[str, Any]]:
        """Other settings, from the next words on; what was said so far ends before them."""
        settings = self._settings.updated(session, self.name)
        if settings == self._settings:
            return []
        listens = settings.listener(self._base)
        ended = self._answers(self._listening.end(), goes_on=False)
        listening = Listening(listens, settings.rate, before=self._listening.time)
        self._settings, self._listening = settings, listening
        return [*ended, *(self._completed() if self._texts and not self._waits else [])]

    def _answers(
        self, events: Sequence[Heard], goes_on: bool = True, is_committed: bool = False
    ) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        for before, event in zip([None, *events], events, strict=False):
            if isinstance(event, Partial):
                told += [] if self._waits else self._delta(event.delta)
            elif isinstance(event, Started | Endpoint) and not self._waits:
                told += self._speech(isinstance(event, Started), event.time)
            elif isinstance(event, Final):
                self._texts.append(event.text)
                is_cut = goes_on and not isinstance(before, Endpoint)  # in the middle of speech, which is an item more
                if not self._waits:
                    told += self._speech(False, event.end) if is_cut else []
                    told += self._completed()
                    told += self._speech(True, event.end) if is_cut else []
        was_final = any(isinstance(event, Final) for event in events)
        if is_committed and (self._texts or not was_final):
            told += self._completed()
        return told

    def _speech(self, started: bool, time: float) -> list[dict[str, Any]]:
        """That speech of an item began or ended."""
        kind, side = ("started", "start") if started else ("stopped", "end")
        at = {f"audio_{side}_ms": round(1000 * time)}
        return [self.event(f"{BUFFER}.speech_{kind}", **at, item_id=self._item)]

    def _delta(self, text: str) -> list[dict[str, Any]]:
        text = text if self._sent else text.lstrip()
        self._sent += text
        return [self.event(f"{TRANSCRIBED}.delta", item_id=self._item, content_index=0, delta=text)] if text else []

    def _completed(self) -> list[dict[str, Any]]:
        """What ends an item, the rest of its text with it."""
        text = joined_text(self._texts)
        told = self._delta(text[len(self._sent) :]) if text.startswith(self._sent) else []
        item = {"item_id": self._item, "previous_item_id": self._before}
        told.insert(0, self.event(f"{BUFFER}.committed", **item))
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


def _held(asked: dict[str, Any]) -> tuple[str, Any]:
    """The type of a message, and what it holds."""
    fields = Fields(asked)
    kind, _ = fields.take("type"), fields.take("event_id")
    if kind not in list(HOLDS):
        raise SettingError(f"a message of type {shown(kind)}: send session.update, or {APPEND}")
    held = fields.take(HOLDS[kind])
    if kind in UPDATES and (held is None or fields.left):  # some clients write settings beside it
        raise SettingError(f"{kind} holds its settings in `session`, and nothing beside it: send session={{...}}")
    fields.end()
    return kind, held


def _samples(audio: Any) -> bytes:
    try:
        return base64.b64decode(audio, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise AudioError("audio is no base64: send 16-bit samples in base64") from None


def _number(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(10)}"
