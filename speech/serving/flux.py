"""Live speech in the messages of Deepgram's Flux, which tell the end of a turn early."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool

from mmaccel.serve.endpoint import Fields
from mmaccel.serve.sockets import Connection

from ..audio.wav_header import RATES
from ..stream.events import Eager, Endpoint, Final, Partial, Resumed
from ..stream.recognizer import StreamingRecognizer
from ..stream.units import joined_text
from .deepgram import check_raw, whole, words_of
from .listening import Heard, Listening, asked

# Thresholds of a model's own likelihood of an end, which this recogniser does not have, a pause longer than what ends a
# turn here, and what changes nothing.
IGNORED = ("eot_threshold", "eot_timeout_ms", "tag", "mip_opt_out")


async def talk(connection: Connection, recognizer: StreamingRecognizer, name: str) -> None:
    """Take raw 16-bit samples, and answer with `TurnInfo`."""
    listening, turns = _begun(connection.query, recognizer, name)
    await connection.open()
    await connection.give(turns.message("Connected"))
    while True:
        message = await connection.take()
        if isinstance(message, str):
            asked(message, "CloseStream")
            message = b""
        events = await (run_in_threadpool(listening.feed, message) if message else run_in_threadpool(listening.end))
        for told in turns.take(events, listening.time, is_over=not message):
            await connection.give(told)
        if not message:
            return


def _begun(query: dict[str, str], recognizer: StreamingRecognizer, name: str) -> tuple[Listening, Turns]:
    """What listens as the address asks for it; early ends are told where it has a threshold for them."""
    fields = Fields(query)
    rate = whole(fields, "sample_rate", 16_000, RATES[1])
    check_raw(fields)
    fields.only("model", None, name)
    is_eager = fields.take("eager_eot_threshold") is not None
    language = fields.take("language_hint")
    for ignored in IGNORED:
        fields.take(ignored)
    fields.end()
    return Listening(recognizer.told(language), rate), Turns(is_eager)


class Turns:
    """What is told of each turn: from the first words up to a pause, whatever is cut in between.

    The text of an end is that of the `EagerEndOfTurn` before, or `TurnResumed` came in between.

    Parameters
    ----------
    is_eager
        Whether ends are told early.
    """

    def __init__(self, is_eager: bool) -> None:
        self.is_eager = is_eager
        self._about = {"request_id": secrets.token_hex(16)}
        self._count = self._index = 0
        self._since = 0.0
        self._texts, self._words = list[str](), list[dict[str, Any]]()
        self._has_begun = self._paused = False

    def message(self, kind: str, **more: Any) -> dict[str, Any]:
        """The next message."""
        told = {"type": kind, **self._about, "sequence_id": self._count, **more}
        self._count += 1
        return told

    def take(self, events: Sequence[Heard], time: float, is_over: bool) -> list[dict[str, Any]]:
        """Messages for events, after `time` seconds."""
        told = list[dict[str, Any]]()
        for event in events:
            if self._paused and not isinstance(event, Final):  # behind a cut there were no more words
                told += self._end(time)
            told += self._of(event, time)
        return told + self._end(time) if self._paused or is_over else told

    def _of(self, event: Heard, time: float) -> list[dict[str, Any]]:
        if isinstance(event, Final):
            return self._final(event, time)
        self._paused = isinstance(event, Endpoint)  # a final of this pause is the next event; a noise has none
        if isinstance(event, Partial):
            return self._spoken("Update", event.stable + event.unstable, time)
        if isinstance(event, Eager | Resumed) and not self.is_eager:
            return []
        if isinstance(event, Eager):
            return self._spoken("EagerEndOfTurn", event.text, time)
        if isinstance(event, Resumed):
            return [self._turn("TurnResumed", joined_text(self._texts), time)]
        return []

    def _final(self, final: Final, time: float) -> list[dict[str, Any]]:
        self._texts += [final.text] if final.text else []
        self._words += words_of(final)
        return self._end(time) if self._paused else []

    def _spoken(self, event: str, text: str, time: float) -> list[dict[str, Any]]:
        """A message with the text of the turn so far; the first one begins it."""
        text = joined_text([*self._texts, text.strip()])
        begins = bool(text) and not self._has_begun
        self._has_begun |= begins
        told = [self._turn("StartOfTurn", text, time)] if begins else []
        return told if begins and event == "Update" else [*told, self._turn(event, text, time)]

    def _end(self, time: float) -> list[dict[str, Any]]:
        told = self._spoken("EndOfTurn", "", time) if self._texts or self._has_begun else []
        self._index += bool(told)
        self._since = time if told else self._since
        self._texts, self._words = [], []
        self._has_begun = self._paused = False
        return told

    def _turn(self, event: str, text: str, time: float) -> dict[str, Any]:
        window = {"audio_window_start": self._since, "audio_window_end": time}
        words = list(self._words)
        return self.message("TurnInfo", event=event, turn_index=self._index, **window, transcript=text, words=words)
