"""Live speech in the messages of Deepgram's `listen`."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool

from mmaccel.errors import SettingError, shown
from mmaccel.serve.endpoint import Fields
from mmaccel.serve.sockets import Connection

from ..audio.wav_header import RATES
from ..families.languages import AUTO
from ..stream.events import Endpoint, Final, Partial
from ..stream.recognizer import StreamingRecognizer
from .listening import Heard, Listening, Started, asked, pause

# What other recognisers can be asked for, and this one writes as it is.
IGNORED = ("punctuate", "smart_format", "filler_words", "no_delay", "tag", "version", "mip_opt_out")
UNABLE = ("diarize", "multichannel", "profanity_filter", "numerals")
MULTILINGUAL = "multi"  # asks Deepgram for the language that is heard
CHANNEL = [0, 1]  # the first of one
ENDS = (b"", b"\0")  # messages that end a stream, the second one that of Deepgram's own client for .NET
CONFIDENCE = {"confidence": 1.0}  # not measured; clients need one, and some leave out words with a low one


async def talk(connection: Connection, recognizer: StreamingRecognizer, name: str) -> None:
    """Take raw 16-bit samples, and answer with `Results`."""
    listening, has_partials, tells_starts, gap = _begun(connection.query, recognizer, name)
    await connection.open()
    # Deepgram's own clients take no result without it
    model = {"name": name, "version": "", "arch": ""}
    about = {"metadata": {"request_id": secrets.token_hex(16), "model_uuid": "", "model_info": model}}
    reached, is_open = 0.0, False
    spoken = math.inf  # end of the last word, until it is told that no more came
    while True:
        message = await connection.take()
        if isinstance(message, str):
            samples, kind = b"", asked(message, "KeepAlive", "Finalize", "CloseStream")
        else:
            ends = message in ENDS and not (message and listening.rest)  # else it is the rest of a sample
            samples, kind = message, "CloseStream" if ends else ""
        if kind == "KeepAlive":
            continue
        events = await (run_in_threadpool(listening.end) if kind else run_in_threadpool(listening.feed, samples))
        for said in _results(events, has_partials, reached, is_open, kind == "Finalize"):
            if said.get("is_final"):
                reached, is_open = said["start"] + said["duration"], not said["speech_final"]
                spoken = next((word["end"] for word in reversed(_words(said))), spoken)
            if said.get("timestamp", 0.0) - spoken >= gap:
                await connection.give(_utterance_end(spoken))
                spoken = math.inf
            if tells_starts or said["type"] == "Results":
                await connection.give({**said, **about} if said["type"] == "Results" else said)
        if not listening.speaks and listening.time - spoken >= gap:
            await connection.give(_utterance_end(spoken))
            spoken = math.inf
        if kind == "CloseStream":
            await connection.give({"type": "Metadata", "duration": listening.time, "channels": 1, "models": [name]})
            return


def _begun(query: dict[str, str], recognizer: StreamingRecognizer, name: str) -> tuple[Listening, bool, bool, float]:
    """What listens as the address asks for it, whether partials and starts are told, and the seconds without words."""
    fields = Fields(query)
    rate, channels = whole(fields, "sample_rate", 16_000, RATES[1]), whole(fields, "channels", 1, 8)
    silence = _silence(fields.take("endpointing", "false"))
    has_partials = fields.said("interim_results")
    check_raw(fields)
    fields.only("model", None, name)
    language = fields.take("language")
    language = AUTO if language == MULTILINGUAL else language
    tells_starts, gap = fields.said("vad_events"), whole(fields, "utterance_end_ms", 0, 60_000) / 1000 or math.inf
    for ignored in IGNORED:
        fields.take(ignored)
    for unable in UNABLE:
        if fields.said(unable):
            raise SettingError(f"{unable}='true': this server takes 'false' only")
    fields.end()
    listens = recognizer.told(language, silence=silence)
    heard = Listening(listens, rate, channels, 0.5 if has_partials else None)
    return heard, has_partials, tells_starts, gap


def check_raw(fields: Fields) -> None:
    """Refuse recordings in a container, such as WebM: a client that names no encoding sends one."""
    given = fields.take("encoding")
    if given != "linear16":
        named = "encoding is missing" if given is None else f"encoding={shown(given)}"
        raise SettingError(f"{named}: this server takes raw 16-bit samples, say encoding=linear16")


def words_of(final: Final) -> list[dict[str, Any]]:
    """The words of a final, as Deepgram's messages have them."""
    return [{"word": word.text.strip(), "start": word.start, "end": word.end, **CONFIDENCE} for word in final.words]


def whole(fields: Fields, name: str, default: int, most: int) -> int:
    """A number of the address."""
    return _number(name, fields.take(name, str(default)), most)


def _number(name: str, text: str, most: int) -> int:
    if not text.isdecimal() or len(text) > len(str(most)) or int(text) > most:
        raise SettingError(f"{name}={shown(text)}: give a whole number of at most {most}")
    return int(text)


def _silence(endpointing: str) -> float | None:
    """Seconds of silence that end a segment, None for those of the server."""
    milliseconds = 0 if endpointing.lower() in ("true", "false") else _number("endpointing", endpointing, 10_000)
    return pause(milliseconds) if milliseconds else None


def _results(
    events: Sequence[Heard], has_partials: bool, reached: float, is_open: bool, flushed: bool
) -> list[dict[str, Any]]:
    """Messages for events; what was said ends with a final behind a pause, or behind a cut with one without words."""
    found = []
    for before, event, after in zip([None, *events], events, [*events[1:], None], strict=False):
        if isinstance(event, Final):
            reached, is_open = event.end, not (isinstance(before, Endpoint) or flushed)
            lasts = {"start": event.start, "end": event.end}
            found.append(_final(event.text, words_of(event), **lasts, ends=not is_open, from_finalize=flushed))
        elif isinstance(event, Endpoint) and is_open and not isinstance(after, Final):
            is_open = False
            found.append(_final("", [], reached, max(event.time, reached), ends=True, from_finalize=flushed))
        elif isinstance(event, Started):
            found.append({"type": "SpeechStarted", "channel": CHANNEL, "timestamp": event.time})
        elif has_partials and isinstance(event, Partial):
            lasts = {"start": reached, "duration": max(event.time - reached, 0.0)}
            found.append(_result(event.stable + event.unstable, [], is_final=False, speech_final=False, **lasts))
    if flushed and is_open:
        found.append(_final("", [], reached, reached, ends=True, from_finalize=True))
    return found


def _final(text: str, words: list[Any], start: float, end: float, *, ends: bool, **more: Any) -> dict[str, Any]:
    return _result(text, words, start=start, duration=end - start, is_final=True, speech_final=ends, **more)


def _result(text: str, words: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    said = {"alternatives": [{"transcript": text.strip(), "words": words, **CONFIDENCE}]}
    return {"type": "Results", "channel_index": CHANNEL, "channel": said, **more}


def _utterance_end(spoken: float) -> dict[str, Any]:
    """What tells that nobody has spoken for so long; `spoken`, the end of the last word, comes with a final alone.

    So it is told no sooner than the pause that ends a segment, which is the server's where `endpointing` says none, and
    with Kyutai's model, whose words come later than they are said, than its final.
    """
    return {"type": "UtteranceEnd", "channel": CHANNEL, "last_word_end": spoken}


def _words(result: dict[str, Any]) -> list[dict[str, Any]]:
    return result["channel"]["alternatives"][0]["words"]
