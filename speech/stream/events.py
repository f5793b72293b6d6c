"""The events of a stream: words while they are spoken, the text of a segment early and finally, and a pause."""

from __future__ import annotations

from dataclasses import dataclass

from ..families.adapter import Word


@dataclass(frozen=True)
class Partial:
    """Words of a segment that still goes on.

    Attributes
    ----------
    stable
        Text that the next partials of this segment keep; it only grows. The final may still correct it.
    unstable
        Text behind it that may change with more audio.
    delta
        Text added to `stable` since the partial before; the deltas of a segment together give `stable`.
    time
        Seconds of the stream so far.
    """

    stable: str
    unstable: str
    delta: str
    time: float = 0.0


@dataclass(frozen=True)
class Final:
    """The final text of a segment.

    Attributes
    ----------
    text
        Equal to one plain decode of the same audio as :class:`StreamingRecognizer` encodes it.
    words
        Its words with times in seconds of the stream.
    start, end
        Seconds of the stream that the segment spans.
    tokens
        The tokens of the text.
    language
        The language that was told, or that a multilingual Whisper heard, such as ``"de"``; empty where the model has
        no others, and where one that hears the language by itself, such as Qwen3-ASR, was told none.
    """

    text: str
    words: tuple[Word, ...]
    start: float
    end: float
    tokens: tuple[int, ...] = ()
    language: str = ""


@dataclass(frozen=True)
class Endpoint:
    """The speaker paused.

    Attributes
    ----------
    time
        Seconds of the stream at which the last speech ended; the pause was noticed `silence` seconds later.
    """

    time: float


@dataclass(frozen=True)
class Eager:
    """The speaker seems to have ended: the text that the final will have, unless speech goes on.

    Comes once the silence has lasted for the `tail` of the endpoint and the text ends like a sentence, `silence -
    tail` seconds before the final. What comes next of this segment is :class:`Resumed`, or a final of this text.

    Attributes
    ----------
    text
        Of the whole segment so far.
    time
        Seconds of the stream at which the last speech ended.
    """

    text: str
    time: float


@dataclass(frozen=True)
class Resumed:
    """Speech goes on in the segment of the last :class:`Eager`, whose text was not the whole.

    Attributes
    ----------
    time
        Seconds of the stream so far.
    """

    time: float


Event = Partial | Final | Endpoint | Eager | Resumed
