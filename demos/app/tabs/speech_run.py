"""Write down what a visitor says or uploads, while it is heard, and compare with decoding anew each time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from mmaccel import speech
from mmaccel.files.user_cache import cache_folder
from mmaccel.kernels.skinny_linear import measure
from mmaccel.speech.bench.listeners import MeasuredRecognizer
from mmaccel.speech.families.weights import names
from mmaccel.speech.policies.policy import StreamingPolicy
from mmaccel.speech.stream.stats import StreamStats

from ..looks.board import ACCELERATED, PLAIN
from ..models import Models
from ..runs import Run
from .live_words import LiveWords

RATE = 16_000
PUSH = RATE // 2  # samples of a file that are heard at a time
COSTS = {
    True: "Exact: the same words at the same moments as without drafts. Nothing is lost.",
    False: "The words differ from those without drafts, but should not: please report it.",
}


@dataclass(frozen=True)
class SpeechRequest:
    """How a visitor wants to be heard.

    Attributes
    ----------
    file
        The recording's name, for the code; empty for a microphone.
    language, prompt
        As of the recogniser: a language, None for the one that is heard, and names and rare words.
    """

    model: str
    policy: StreamingPolicy
    endpoint: speech.EndpointPolicy
    update_interval: float
    file: str = ""
    compare: bool = False
    language: str | None = None
    prompt: str = ""

    def told(self) -> dict[str, str]:
        """What the recogniser is told beyond its defaults."""
        given = {"language": self.language or "", "prompt": self.prompt}
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True)
class PartialTranscript:
    """What was heard so far."""

    words: LiveWords
    stats: StreamStats
    events: list[speech.Event]


def recognizer(models: Models, run: Run, request: SpeechRequest, **measured: Any) -> speech.StreamingRecognizer:
    """A recogniser of the shared model; with `measured` settings one that counts its seconds.

    All recognisers of one model take turns with it, so that any number of visitors may be heard at once.
    """
    if request.model in names() and not any((cache_folder() / "speech").glob(f"{request.model}-*")):
        with run.stage("convert weights, once"):
            models.check("speech", request.model)
            speech.load(request.model)
    with models.borrow("speech", request.model, run) as shared:
        kind: Any = MeasuredRecognizer if measured else speech.StreamingRecognizer
        made = kind(*shared.loaded, policy=request.policy, endpoint=request.endpoint, **request.told(), **measured)
        made.lock = shared.memory.setdefault("speech", {}).setdefault("lock", made.lock)
    return made


def listen(
    run: Run, listener: speech.StreamingRecognizer, samples: torch.Tensor, request: SpeechRequest
) -> Iterator[PartialTranscript]:
    """Push a recording as a microphone would, as fast as it can be heard; what is known after each piece with news."""
    heard = 0
    with listener.stream(update_interval=request.update_interval) as stream:
        words, events = LiveWords(), list[speech.Event]()
        for piece in samples.split(PUSH):
            new = stream.push(piece)
            heard += len(piece)
            run.tell(heard, len(samples))
            words.take(new)
            events += new
            if new:
                yield PartialTranscript(words, stream.stats, events)
        rest = stream.finish()
        words.take(rest)
        yield PartialTranscript(words, stream.stats, events + rest)


@dataclass(frozen=True)
class Saved:
    """What drafts saved: CPU seconds of the plain and the accelerated stream, in words, and as a report."""

    seconds: tuple[float, float]
    cost: str
    report: str


Transcribing = Iterator[tuple[PartialTranscript, Saved | None]]


def transcribed(run: Run, models: Models, samples: torch.Tensor, request: SpeechRequest) -> Transcribing:
    """Hear a recording; what is known as it goes on, with nothing to report beside it."""
    listener = recognizer(models, run, request)
    with run.stage(ACCELERATED):
        for heard in listen(run, listener, samples, request):
            yield heard, None


def compared(run: Run, models: Models, samples: torch.Tensor, request: SpeechRequest) -> Transcribing:
    """Hear a recording without drafts, then with them; the second as it goes on, with a report at the end."""
    plain: Any = recognizer(models, run, request, drafts=False)
    with run.stage("warm up"):  # the first call of a model in a process is slow
        plain.hear(samples[:RATE], plain.adapter.prompt())
        measure()  # drafts bring passes of many lengths, each of which is measured at its first use on a machine
        plain.decoding = 0.0
    with run.stage(PLAIN):
        *_, before = listen(run, plain, samples, request)
    drafted: Any = recognizer(models, run, request, drafts=True)
    with run.stage(ACCELERATED):
        for heard in listen(run, drafted, samples, request):
            yield heard, None
    yield heard, _report(before, plain.decoding, heard, drafted.decoding)


def _report(before: PartialTranscript, plain_decoding: float, heard: PartialTranscript, decoding: float) -> Saved:
    """What the drafts saved; seconds are of all cores."""
    plain, fast = before.stats, heard.stats
    same = "the same, event for event" if before.events == heard.events else "NOT the same"
    cost = COSTS[before.events == heard.events]
    pairs = (
        ("decoder", "calls", fast.decoder_calls, plain.decoder_calls),
        ("decoding", "CPU s", decoding, plain_decoding),
        ("in all", "CPU s", fast.compute_seconds, plain.compute_seconds),
    )
    lines = [_less(*pair) for pair in pairs if pair[2]]
    report = "\n".join(("hypotheses as drafts of the next: exact", *lines, f"  text        {same}"))
    return Saved((plain.compute_seconds, fast.compute_seconds), cost, report)


def _less(label: str, unit: str, now: float, before: float) -> str:
    shown = "d" if isinstance(now, int) else ".2f"
    return f"  {label:<11} {now:{shown}} {unit} instead of {before:{shown}}, {before / now:.2f}x less"
