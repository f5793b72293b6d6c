"""What a client of OpenAI's realtime transcription asks for: in the messages of today and those of the beta."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from mmaccel.errors import SettingError, shown
from mmaccel.method import is_number
from mmaccel.serve.endpoint import Fields

from ..audio.wav_header import RATES
from ..stream.recognizer import StreamingRecognizer
from .listening import pause

RATE = 24_000  # of OpenAI's samples
PROMPT = 1_000  # characters
TURNS = {"type": "server_vad"}
# What says who asks, and what other recognisers can be asked for where this one does what it does.
IGNORED = ("id", "object", "expires_at", "client_secret", "include", "noise_reduction", "input_audio_noise_reduction")
IGNORED_OF_TURNS = ("threshold", "prefix_padding_ms", "create_response", "interrupt_response", "idle_timeout_ms")


@dataclass(frozen=True)
class SessionSettings:
    """The settings of one client.

    Attributes
    ----------
    rate
        Samples a second.
    language, prompt
        As the client says them; None for those of the server.
    turns
        What ends a turn, as the client says it; None where all words wait for a commit.
    """

    rate: int = RATE
    language: str | None = None
    prompt: str | None = None
    turns: dict[str, Any] | None = None

    def updated(self, session: Any, model: str) -> Self:
        """With what a client mentions; the rest stays.

        Raises
        ------
        SettingError
            Names what is no setting here, or has a value that it cannot have.
        """
        outer = dict(part(session, "session"))
        audio = dict(part(outer.pop("audio", None), "audio"))
        heard = {**outer, **part(audio.pop("input", None), "audio.input")}
        Fields(audio).end()
        turns = _turns(heard.pop("turn_detection")) if "turn_detection" in heard else self.turns
        fields = Fields(heard)
        fields.only("type", "transcription")
        words = fields.take("transcription") or fields.take("input_audio_transcription")
        words = Fields(part(words, "transcription"))
        if (named := words.take("model", model)) != model:
            raise SettingError(f"unknown model {shown(named)}: this server has {model!r}")
        language, prompt = (_text(words, name) for name in ("language", "prompt"))
        words.end()
        fields.only("input_audio_format", "pcm16")
        form = Fields(part(fields.take("format"), "format"))
        if (kind := form.take("type", "audio/pcm")) != "audio/pcm":
            raise SettingError(f"format {shown(kind)}: send audio/pcm, samples of 16 bits, and no other")
        rate = form.whole("rate", *RATES)
        form.end()
        for ignored in IGNORED:
            fields.take(ignored)
        fields.end()
        return replace(
            self,
            rate=self.rate if rate is None else rate,
            language=self.language if language is None else language,
            prompt=self.prompt if prompt is None else prompt,
            turns=turns,
        )

    def listener(self, recognizer: StreamingRecognizer) -> StreamingRecognizer:
        """The recogniser, told so."""
        silence = (self.turns or {}).get("silence_duration_ms")
        return recognizer.told(self.language, prompt=self.prompt, silence=None if silence is None else pause(silence))

    def told(self, model: str) -> dict[str, Any]:
        """The settings as a client is told them."""
        words = {"model": model, "language": self.language, "prompt": self.prompt}
        return {
            "format": {"type": "audio/pcm", "rate": self.rate},
            "transcription": {name: value for name, value in words.items() if value is not None},
            "turn_detection": self.turns,
        }


def part(value: Any, name: str) -> dict[str, Any]:
    """A part of a message; empty where there is none."""
    if not (value is None or isinstance(value, dict)):
        raise SettingError(f"{name} is no JSON object: send {{...}}")
    return value or {}


def _turns(given: Any) -> dict[str, Any] | None:
    """What ends a turn, None where nothing does."""
    if given is None:
        return None
    fields = Fields(part(given, "turn_detection"))
    fields.only("type", TURNS["type"])
    silence = fields.take("silence_duration_ms")
    if not (silence is None or is_number(silence, 1, 10_000)):
        raise SettingError(f"silence_duration_ms={shown(silence)}: give milliseconds, such as 500")
    for ignored in IGNORED_OF_TURNS:
        fields.take(ignored)
    fields.end()
    return {**TURNS, **given}


def _text(fields: Fields, name: str) -> str | None:
    """A text of at most `PROMPT` characters, None where there is none."""
    value = fields.take(name)
    if not (value is None or isinstance(value, str)):
        raise SettingError(f"{name}={shown(value)}: give a text")
    if value is not None and len(value) > PROMPT:
        raise SettingError(f"{name} has {len(value)} characters: shorten it to {PROMPT} or fewer")
    if value is not None and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise SettingError(f"{name} has half of a character: send texts in UTF-8")
    return value
