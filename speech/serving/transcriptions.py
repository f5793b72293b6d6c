"""Recordings over HTTP, as OpenAI's `audio/transcriptions` asks for their text."""

from __future__ import annotations

import queue
import re
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from mmaccel.errors import SettingError, shown
from mmaccel.serve.endpoint import FILES, Answer, Endpoint, Fields, Left, Request
from mmaccel.serve.forms import Upload
from mmaccel.serve.sockets import Connection

from ..audio.endpoint import RATE
from ..audio.uploaded_audio import read_recording
from ..decoding.loops import compression_ratio
from ..families.languages import AUTO, language_code
from ..stream.events import Event, Final
from ..stream.recognizer import StreamingRecognizer
from ..stream.subtitles import FORMATS
from ..stream.transcribe import Transcript, pieces, transcript
from ..stream.units import joined_text
from . import deepgram, flux, realtime
from .session_settings import PROMPT

HOLDS = ("json", "text", "srt", "vtt", "verbose_json")
TEXTS = {"response_format": "json", "language": "", "prompt": ""}  # fields, and what they are else
GRANULARITIES = ("segment", "word")
LONGEST_NAME = 60  # letters, which are 240 bytes at most
# What OpenAI's segments have too: clients compare some of these with bounds, which let these values pass.
UNMEASURED = {"avg_logprob": 0.0, "no_speech_prob": 0.0, "temperature": 0.0, "seek": 0}


@dataclass(kw_only=True)
class TranscriptionRequest(Request):
    """A recording to write down.

    Attributes
    ----------
    samples
        At 16 kHz.
    form
        How its text is told, one of `HOLDS`.
    recognizer
        Told the language and the words of the request.
    has_words
        Whether ``"verbose_json"`` has the words too.
    said
        What a stream of events has told so far.
    last
        The text that it was given to tell last.
    """

    samples: torch.Tensor
    form: str
    recognizer: StreamingRecognizer
    has_words: bool
    said: list[str] = field(default_factory=list)
    last: str = ""


class TranscriptionEndpoint(Endpoint[TranscriptionRequest]):
    """Writes recordings down, one after the other, and listens to streams meanwhile."""

    path = "/v1/audio/transcriptions"
    takes_forms = True
    opened: StreamingRecognizer

    def parse(self, body: Mapping[str, Any]) -> TranscriptionRequest:
        fields = Fields(body)
        if not isinstance(body.get("file"), Upload):
            raise SettingError("file is missing: send a recording, such as talk.wav, as multipart/form-data")
        given, times = fields.take("file"), fields.take("timestamp_granularities", [])
        texts = {name: fields.take(name, default) for name, default in TEXTS.items()}
        streams = fields.said("stream")
        fields.only("temperature", "0", "0.0")
        fields.only("chunking_strategy", "auto")
        fields.end()
        for name, value in texts.items():
            if not isinstance(value, str):
                raise SettingError(f"{name} is no text: send files as `file`")
        form, prompt, language = texts["response_format"], texts["prompt"], texts["language"] or None
        times = times if isinstance(times, list) else [times]
        if unknown := [one for one in times if one not in GRANULARITIES]:
            raise SettingError(f"timestamp_granularities={shown(unknown[0])}: give {' or '.join(GRANULARITIES)}")
        if form not in HOLDS:
            raise SettingError(f"response_format={form!r}: give one of {', '.join(HOLDS)}")
        _check_used(form, times, streams)
        if len(prompt) > PROMPT:
            raise SettingError(f"prompt has {len(prompt)} characters: shorten it to {PROMPT} or fewer")
        return TranscriptionRequest(
            samples=_samples(given),
            form=form,
            recognizer=self.opened.told(language, prompt=prompt or None),
            has_words="word" in times,
            pieces=queue.SimpleQueue() if streams else None,
        )

    def answer(self, requests: list[TranscriptionRequest]) -> list[Answer]:
        """Write down the recording of the only request."""
        (request,) = requests
        with request.recognizer.stream(update_interval=None) as stream:
            events: list[Event] = []
            for piece in pieces(request.samples, progress=False):
                if request.left.is_set():
                    raise Left
                events += _handed_on(stream.push(piece), request)
            events += _handed_on(stream.finish(), request)
        return [_written(transcript(events, stream.stats), request)]

    def piece(self, request: TranscriptionRequest, text: str | None) -> dict[str, Any]:
        if text is None:
            return {"type": "transcript.text.done", "text": "".join(request.said)}
        request.said.append(text)
        return {"type": "transcript.text.delta", "delta": text}

    def sockets(self) -> Mapping[str, Callable[[Connection], Awaitable[None]]]:
        return {
            "/v1/realtime": lambda connection: realtime.talk(connection, self.opened, self.name),
            "/v1/listen": lambda connection: deepgram.talk(connection, self.opened, self.name),
            "/v2/listen": lambda connection: flux.talk(connection, self.opened, self.name),
        }

    def pages(self) -> Mapping[str, str]:
        page = files(__package__).joinpath("microphone.html").read_text(encoding="utf-8")
        return {"/": page}


def _check_used(form: str, times: list[Any], streams: bool) -> None:
    """Refuse what would have no effect: OpenAI's events tell text alone, and only one form has times of choice."""
    if streams and form != "json":
        raise SettingError(f"response_format={form!r} with stream=true, which tells text alone: leave out one of them")
    if times and form != "verbose_json":
        raise SettingError(f"timestamp_granularities with response_format={form!r}: ask for 'verbose_json'")


def _samples(given: Upload) -> torch.Tensor:
    """The sound of a file that came with a request."""
    name = re.sub(r"[^\w .-]", "_", PurePosixPath(given.name.replace("\\", "/")).name)[-LONGEST_NAME:].strip(" .-")
    with tempfile.TemporaryDirectory(prefix="mmaccel-serve-") as folder:
        path = Path(folder) / (name or "recording")  # as errors call it
        path.write_bytes(given.data)
        return read_recording(path, FILES)


def _handed_on(events: list[Event], request: TranscriptionRequest) -> Iterator[Event]:
    """Events, of which finals go into the stream of the request too."""
    for event in events:
        if request.pieces is not None and isinstance(event, Final) and event.text:
            request.pieces.put(joined_text([request.last, event.text])[len(request.last) :])
            request.last = event.text
        yield event


def _written(made: Transcript, request: TranscriptionRequest) -> Answer:
    """A transcript in the form of the request."""
    if request.form == "text":
        return f"{made.text}\n"
    if request.form in ("srt", "vtt"):
        return FORMATS[f".{request.form}"](list(made.segments), None)
    if request.form == "json":
        return {"text": made.text}
    segments = [_segment(number, segment) for number, segment in enumerate(made.segments)]
    words = [{"word": word.text.strip(), "start": word.start, "end": word.end} for word in made.words]
    return {
        "task": request.recognizer.adapter.task,
        "language": _language(made, request.recognizer),
        "duration": len(request.samples) / RATE,
        "text": made.text,
        "segments": segments,
        **({"words": words} if request.has_words else {}),
    }


def _language(made: Transcript, recognizer: StreamingRecognizer) -> str:
    """The language that was heard; where nobody speaks, the one that the recogniser was told."""
    heard = [one.language for one in made.segments]
    told = language_code(recognizer.language or AUTO)
    return next(filter(None, (*heard, recognizer.adapter.only_language)), "unknown" if told == AUTO else told)


def _segment(number: int, segment: Final) -> dict[str, Any]:
    return {
        "id": number,
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.tokens),
        "compression_ratio": compression_ratio(segment.text),
        **UNMEASURED,
    }


ENDPOINT = TranscriptionEndpoint
