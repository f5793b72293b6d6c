"""What a stream gains: each hypothesis a verified draft of the next, beside a stream that decodes each one anew."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch

from mmaccel.adapter import Adapter
from mmaccel.comparison.compare import LEAST_RUNS, measured
from mmaccel.comparison.comparison import Comparison
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.ranks import Ranks
from mmaccel.comparison.trial import BaseTrial, Metric, Shown
from mmaccel.method import Method
from mmaccel.patching import override
from mmaccel.plan import Plan
from mmaccel.report import Report
from mmaccel.session import Session

from ..audio.endpoint import RATE, EndpointPolicy
from ..comparing import CHANGED, ERRORS, SAME, checked_texts, judged_texts, name_of, recording, spoken
from ..decoding.cross_cache import CrossCache
from ..decoding.redecode import Hypothesis
from ..families.adapter import Encoded
from .events import Event, Final
from .recognizer import StreamingRecognizer
from .stats import StreamStats, quantile
from .units import joined_text

UPDATE, SLOWEST = 0.5, 60.0  # seconds between looks: of the streams, and the most that a stream takes
CHUNK = RATE // 10  # samples of a push
LAG = Metric(
    "lag",
    "word lag s",
    "median seconds from the end of a word until it is shown for good, computing included",
    ".2f",
    higher_is_better=False,
)


class PlainStreams(StreamingRecognizer):
    """A recogniser that knows nothing of the hypothesis before, unless `drafts` is set."""

    drafts = False

    def _decode(
        self, encoded: Encoded, prompt: Sequence[int], draft: Sequence[int], cache: CrossCache | None
    ) -> Hypothesis:
        return super()._decode(encoded, prompt, draft if self.drafts else (), cache)

    @cached_property
    def packed(self) -> Any:
        """The adapter with packed weights."""
        twin = StreamingRecognizer(self.adapter.target, self.adapter.processor, self.policy, self.endpoint, packed=True)
        return twin.adapter


@dataclass(frozen=True)
class VerifiedDrafts(Method):
    """What :class:`StreamingRecognizer` does: each hypothesis is verified as the draft of the next; exact.

    With `packed` weights, which it is asked for, equal but for rounding.
    """

    packed: bool = False

    name: ClassVar[str] = "speech.StreamingRecognizer"
    paper: ClassVar[str] = "Fast Inference from Transformers via Speculative Decoding, 2023"

    @property
    def exact(self) -> bool:
        return not self.packed

    def attach(self, session: Session, stack: ExitStack) -> None:
        override(stack, session.target, "drafts", True)
        if self.packed:
            override(stack, session.target, "adapter", session.target.packed)


class StreamAdapter(Adapter):
    """Streams of one recogniser; sessions are made of it by name, so that it is not registered."""

    family, modality, classes = "speech stream", "speech", (PlainStreams.__name__,)


@dataclass
class Streamed:
    """Events and figures of a stream of each recording."""

    events: list[list[Event]] = field(default_factory=list)
    stats: list[StreamStats] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """Passes of the decoder."""
        return sum(one.decoder_calls for one in self.stats)

    @property
    def texts(self) -> list[str]:
        """The finals of each stream."""
        return [joined_text(event.text for event in events if isinstance(event, Final)) for events in self.events]

    @property
    def languages(self) -> list[set[str]]:
        """Those that were told or heard in each stream."""
        return [{event.language for event in events if isinstance(event, Final)} for events in self.events]

    @property
    def lag(self) -> float | None:
        """Median over all words, on the clock that includes computing."""
        return quantile([seconds for one in self.stats for seconds in one.word_lag.ready], 0.5)


class StreamTrial(BaseTrial):
    """Recordings that are pushed as fast as they are taken; what takes time is computing alone."""

    unit: ClassVar[str] = "looks"
    remembers: ClassVar[bool] = False

    def __init__(self, streams: PlainStreams, audio: Sequence[Any], reference: Sequence[str] | None) -> None:
        self.names, self.recordings = zip(
            *(recording(item, number) for number, item in enumerate(audio, 1)), strict=True
        )
        self.references = checked_texts(reference, len(self.names))
        for name, samples in zip(self.names, self.recordings, strict=True):
            spoken(name, samples, streams.endpoint)
        super().__init__(StreamAdapter(streams), {"audio": list(self.names), "update_interval": UPDATE})
        self.model = name_of(streams.adapter.target)
        self.metrics = (LAG, *([] if reference is None else [ERRORS]), CHANGED, SAME)
        seconds = sum(map(len, self.recordings)) / RATE
        self.count, self.least = max(1, round(seconds / UPDATE)), max(1, round(seconds / SLOWEST))
        self.about = f"plain is a stream that decodes each hypothesis from its start; all look every {UPDATE:g} s"
        self.plain_calls = 0

    def run(self, target: Any, seed: int, fewer: int | None = None) -> Streamed:
        interval = UPDATE if fewer is None else min(UPDATE * self.count / fewer, SLOWEST)
        made = Streamed()
        for samples in self.recordings:
            with target.stream(update_interval=interval) as stream:
                made.events.append([event for chunk in samples.split(CHUNK) for event in stream.push(chunk)])
                made.events[-1] += stream.finish()
                made.stats.append(stream.stats)
        if target is self.target and fewer is None:
            self.plain_calls = made.calls
        return made

    def accelerated(self, plan: Plan) -> Session:
        return Session(plan, self.adapter)

    def report(self, session: Session, output: Streamed) -> dict[str, Any]:
        told = Report(session.report.methods, session.report.exact, engaged=True)
        told.forwards, told.plain_forwards = output.calls, self.plain_calls
        return told.to_dict()

    def equal(self, one: Streamed, other: Streamed) -> bool:
        return one.events == other.events

    def judge(self, plain: Streamed, other: Streamed) -> dict[str, float]:
        adapter = self.target.adapter
        is_all = adapter.only_language == "en" or adapter.task == "translate"
        english = [is_all or languages == {"en"} for languages in plain.languages]
        found = judged_texts(self.references, plain.texts, other.texts, english)
        return found if other.lag is None else {**found, LAG.key: other.lag}

    def show(self, output: Streamed) -> Shown:
        return Shown(texts=output.texts, names=list(self.names))


def compare_streams(
    model: Any,
    processor: Any,
    audio: Sequence[Any],
    reference: Sequence[str] | None = None,
    rounds: int | None = None,
    simple: bool = True,
    endpoint: str | EndpointPolicy = "auto",
    ranks: bool = False,
) -> Comparison:
    """Words while they are spoken, with verified drafts and without, beside a stream that looks less often.

    Parameters
    ----------
    model, processor
        As of :class:`~mmaccel.speech.StreamingRecognizer`.
    audio
        Recordings: paths, or samples at 16 kHz.
    reference
        What is said in each, for word errors.
    rounds
        Runs of each entry; default 3.
    simple
        Whether the stream that looks less often runs too (default True).
    endpoint
        As of :class:`~mmaccel.speech.StreamingRecognizer`.
    ranks
        As of :func:`mmaccel.compare`.

    Raises
    ------
    MmaccelError
        If a recording cannot be read, or the model is no recogniser; before anything runs.
    """
    trial = StreamTrial(PlainStreams(model, processor, endpoint=endpoint), audio, reference)
    methods = [VerifiedDrafts(), *([VerifiedDrafts(packed=True)] if _can_pack(model) else [])]
    entries = [Entry(PLAIN, PLAIN)]
    entries += [Entry(str(method), "method", Plan((method,), trial.adapter.family)) for method in methods]
    return measured(trial, entries, [0], rounds or LEAST_RUNS, simple, Ranks.launched() if ranks else None)


def _can_pack(model: Any) -> bool:
    """Whether packed weights do anything: in float32 on a CPU."""
    weight = next(model.parameters(), None) if isinstance(model, torch.nn.Module) else None
    return weight is not None and weight.device.type == "cpu" and weight.dtype == torch.float32
