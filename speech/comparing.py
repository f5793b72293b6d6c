"""How `compare` runs, judges and shows a recogniser; of Whisper, the simple alternative is a shorter window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from numbers import Number
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers.modeling_outputs import BaseModelOutput

from mmaccel.adapter import Adapter
from mmaccel.comparison.trial import BaseTrial, Metric, Shown, seeded
from mmaccel.errors import AudioError, SettingError, required
from mmaccel.linears.packed import has_twin
from mmaccel.report import Report
from mmaccel.session import Session

from .audio.audio import RATE, read_audio, to_samples
from .audio.endpoint import FRAME, EndpointPolicy, decibels, find_endpoint
from .audio.recordings import word_errors
from .families.adapter import SpeechAdapter
from .families.languages import language_code
from .families.timed import features_of
from .families.weights import names
from .families.whisper import CONTEXT_FRAMES, WhisperAdapter, shortened
from .stream.segmenter import Cut, Segmenter
from .stream.units import joined_text

ERRORS = Metric(
    "errors",
    "word errors",
    "word error rate against the reference, English as leaderboards normalise it, Chinese and the like by characters",
    ".1%",
    higher_is_better=False,
)
CHANGED = Metric(
    "changed",
    "words changed",
    "word error rate against the text of the plain model, normalised in the same way",
    ".1%",
    higher_is_better=False,
    relative=True,
)
SAME = Metric(
    "same", "same text", "share of recordings whose text equals that of the plain model, letter for letter", ".0%"
)
SHORTEST = RATE // 10  # samples of a recording


@dataclass(frozen=True)
class Transcription:
    """The output of one run on all recordings.

    Attributes
    ----------
    tokens
        Of each recording, for each of its segments.
    reports
        Of each call of `generate` of a session.
    """

    tokens: list[list[list[int]]] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)


class RecognizerTrial(BaseTrial):
    """Transcribes recordings: `audio` for the processor to prepare, or the arguments of one `generate`.

    Recordings are cut at pauses first, as :func:`~mmaccel.speech.transcribe` does, and `generate` writes down one
    segment after the other; cutting and preparing are not timed. One session hears all recordings, and the next run
    begins without what that one remembers: the same words would come again, as they do in no other recording.

    Its own inputs are `audio` (samples `[n]` at 16 kHz, a path, or a list of these), `reference` (the words of
    each recording) and `endpoint` (as in :class:`~mmaccel.speech.StreamingRecognizer`; None leaves recordings whole).
    """

    unit: ClassVar[str] = "window seconds"
    remembers: ClassVar[bool] = False

    def __init__(self, adapter: Adapter, inputs: dict[str, Any], processor: Any = None) -> None:
        super().__init__(adapter, dict(inputs), processor)
        assert isinstance(adapter, SpeechAdapter)
        required("jiwer", 'counting word errors needs jiwer: pip install "mmaccel[metrics]"')
        if processor is None:
            raise SettingError("processor= is missing, and tokens cannot become words without it: pass the model's own")
        self.recogniser, adapter.processor = adapter, processor
        self.model = name_of(self.target)
        reference, endpoint = self.inputs.pop("reference", None), self.inputs.pop("endpoint", "auto")
        audio = self.inputs.pop("audio", None)
        self.names: list[str] = []
        self.seconds = 0.0  # of the longest segment; 0 where nobody says
        self.is_batch = audio is None
        self.languages: list[str] = []  # of the text of each recording
        self.calls = [[self._own_call()]] if audio is None else self._calls(audio, endpoint)
        self.draws = bool(self.inputs.get("do_sample"))
        self.seedless = "" if self.draws else "without do_sample=True nothing is drawn"
        self.references = checked_texts(reference, len(self.names))
        self.metrics = (CHANGED, SAME) if self.references is None else (ERRORS, CHANGED, SAME)
        self._allow_simple()
        if audio is not None:  # as it is told on the page: a path can tell more than one wants to show
            self.inputs["audio"] = list(self.names)

    def _own_call(self) -> dict[str, Any]:
        """The arguments of `generate` as they were given, a recording in each row."""
        rows = [len(value) for name, value in self.inputs.items() if name.startswith("input_")]
        if not rows:
            raise SettingError("nothing to transcribe: give audio='talk.wav', samples, or the arguments of generate")
        self.names = [f"row {number + 1}" for number in range(rows[0])] if rows[0] > 1 else [""]
        self.languages = [self._language(None)] * len(self.names)
        return dict(self.inputs)

    def _calls(self, audio: Any, endpoint: str | EndpointPolicy | None) -> list[list[dict[str, Any]]]:
        """Arguments of `generate` for each segment of each recording."""
        many = isinstance(audio, list | tuple) and not (audio and isinstance(audio[0], Number))
        recordings = list(audio) if many else [audio]
        if not recordings:
            raise AudioError("audio is empty: give at least one recording, such as audio='talk.wav'")
        policy = None if endpoint is None else find_endpoint(endpoint)
        return [self._segments(item, policy, number) for number, item in enumerate(recordings, 1)]

    def _segments(self, item: Any, policy: EndpointPolicy | None, number: int) -> list[dict[str, Any]]:
        name, samples = recording(item, number)
        parts = [samples] if policy is None else spoken(name, samples, policy)
        self.names.append(name)
        prepared = [self._prepared(part) for part in parts]
        self.languages.append(self._language(parts[0]))
        return prepared

    def _language(self, samples: torch.Tensor | None) -> str:
        """The language of a text: that of the call, the only one of the model, or heard; empty where none is known."""
        adapter, told = self.recogniser, self.inputs.get("language")
        if (self.inputs.get("task") or adapter.task) == "translate":
            return "en"
        if isinstance(told, str):
            return language_code(told)
        heard = adapter.encode(samples) if adapter.detects and samples is not None else None
        return adapter.only_language or adapter.language_of(heard)

    def _prepared(self, samples: torch.Tensor) -> dict[str, Any]:
        """Arguments of `generate` for samples `[n]`; greedy and no longer than speech can be, unless asked for."""
        seconds, longest = len(samples) / RATE, self.recogniser.longest
        if longest is not None and seconds > longest:
            raise AudioError(f"{seconds:.1f} s in one call, where {longest:.0f} s fit: leave out endpoint=None")
        self.seconds = max(self.seconds, seconds)
        prepare = self.processor if callable(self.processor) else self.processor.feature_extractor
        made = features_of(prepare, samples, RATE, self.target)
        return {**made, "do_sample": False, **self._limit(seconds), **self.inputs}

    def _limit(self, seconds: float) -> dict[str, Any]:
        """The most tokens that this much speech can hold, unless the user gives a limit."""
        if {"max_new_tokens", "max_length", "generation_config"} & self.inputs.keys():
            return {}
        start = 0 if isinstance(self.recogniser, WhisperAdapter) else 1  # Whisper does not count its prompt
        return {"max_length": start + self.recogniser.limit(seconds)}  # of `max_new_tokens` it warns in every call

    def _allow_simple(self) -> None:
        """Whisper's encoder always processes 30 s, which can be cut; others process only the given audio."""
        self.no_simple = "every token of a text has to be decoded, and no audio can be left out"
        if not isinstance(self.recogniser, WhisperAdapter):
            return
        self.no_simple = "give audio=, so that the window can be cut to the length of the speech"
        encoder = self.target.get_encoder()
        if not has_twin(encoder):
            self.no_simple = "a part of the encoder is compiled or replaced, so that no shorter one can be made of it"
        elif self.seconds:
            self.count = math.floor(encoder.config.max_source_positions * self.recogniser.frame_seconds)
            self.least = math.ceil(self.seconds + CONTEXT_FRAMES / 100)
            self.no_simple = "the speech fills the window, so none of it can be left out"

    def run(self, target: Any, seed: int, fewer: int | None = None) -> Transcription:
        made = Transcription()
        with seeded(seed):
            for recording in self.calls:
                rows = [row for call in recording for row in self._generated(target, call, fewer, made)]
                made.tokens.extend([[row] for row in rows] if self.is_batch else [rows])
        return made

    def _generated(self, target: Any, call: dict[str, Any], fewer: int | None, made: Transcription) -> list[list[int]]:
        asked = call if fewer is None else self._shorter(call, fewer)
        result = target.generate(**self.arguments(target, asked))
        if isinstance(target, Session):
            made.reports.append(deepcopy(target.report))  # it starts anew with the next call
        tokens: torch.Tensor = result if isinstance(result, torch.Tensor) else result["sequences"]
        return tokens.tolist()

    @torch.no_grad()
    def _shorter(self, call: dict[str, Any], seconds: int) -> dict[str, Any]:
        """The same call with an encoder window of this many seconds."""
        assert isinstance(self.recogniser, WhisperAdapter)
        positions = round(seconds / self.recogniser.frame_seconds)
        encoder = self.target.get_encoder()
        features = call["input_features"][..., : positions * encoder.conv1.stride[0] * encoder.conv2.stride[0]]
        states = shortened(encoder, positions)(features).last_hidden_state
        rest = {name: value for name, value in call.items() if name != "input_features"}
        return {**rest, "encoder_outputs": BaseModelOutput(last_hidden_state=states)}

    def report(self, session: Session, output: Transcription) -> dict[str, Any]:
        return _total(output.reports).to_dict()

    def equal(self, one: Transcription, other: Transcription) -> bool:
        return one.tokens == other.tokens

    def judge(self, plain: Transcription, other: Transcription) -> dict[str, float]:
        english = [language == "en" for language in self.languages]
        return judged_texts(self.references, self.texts(plain), self.texts(other), english)

    def show(self, output: Transcription) -> Shown:
        return Shown(texts=self.texts(output), names=self.names)

    def texts(self, output: Transcription) -> list[str]:
        """The text of each recording."""
        return [joined_text(map(self.recogniser.text, segments)) for segments in output.tokens]


def recording(item: Any, number: int) -> tuple[str, torch.Tensor]:
    """Samples `[n]` at 16 kHz of a file or of samples, and what they are called, with their seconds."""
    is_file = isinstance(item, str | PathLike)
    samples = read_audio(item) if is_file else to_samples(item)
    name = Path(item).name if is_file else f"recording {number}"
    if len(samples) < SHORTEST:
        raise AudioError(f"{name} holds {len(samples)} samples, too few for a word: give at least {SHORTEST}")
    return f"{name}, {len(samples) / RATE:.1f} s", samples


def checked_texts(reference: Any, count: int) -> list[str] | None:
    """What is said in each of `count` recordings; None where that is not known."""
    if reference is None:
        return None
    texts = [reference] if isinstance(reference, str) else list(reference)
    if len(texts) != count or not all(isinstance(text, str) and text.strip() for text in texts):
        raise SettingError(f"reference={reference!r}: give what is said in each of {count} recordings, as words")
    return texts


def judged_texts(
    references: list[str] | None, plain: list[str], other: list[str], english: Sequence[bool]
) -> dict[str, float]:
    """Word errors of texts where references are known, their distance to the plain ones, and how many are equal."""
    found = {} if references is None else {ERRORS.key: word_errors(references, other, english)}
    same = sum(one == two for one, two in zip(plain, other, strict=True)) / len(plain)
    return {**found, CHANGED.key: word_errors(plain, other, english), SAME.key: same}


def name_of(model: Any) -> str:
    """The name by which :func:`~mmaccel.speech.load` knows a model that it converted; empty for others."""
    name = Path(str(getattr(model, "name_or_path", ""))).name.rpartition("-")[0]  # behind it stands a digest
    return name if name in names() else ""


def spoken(name: str, samples: torch.Tensor, policy: EndpointPolicy) -> list[torch.Tensor]:
    """The speech of a recording, see :func:`cut`; an error where there is none."""
    parts = cut(samples, policy)
    if not parts:
        raise AudioError(f"no speech in {name}: give a recording in which somebody speaks")
    return parts


def cut(samples: torch.Tensor, policy: EndpointPolicy) -> list[torch.Tensor]:
    """The speech of samples `[n]` at 16 kHz, cut where a stream would cut it; none where nobody speaks."""
    segmenter, listener = Segmenter(policy, None), policy.listen()
    padded = torch.nn.functional.pad(samples, (0, -len(samples) % FRAME))
    told = [task for frame in padded.split(FRAME) for task in segmenter.feed(listener(frame), decibels(frame))]
    told += segmenter.flush(len(samples))
    return [samples[task.start : task.end] for task in told if isinstance(task, Cut)]


def _total(reports: list[Report]) -> Report:
    """One report of all calls of a run."""
    total = Report.total(reports)
    total.warnings = list(dict.fromkeys(text for r in reports if r.engaged for text in r.warnings))
    idle = [report for report in reports if not report.engaged]
    if idle:
        reason = next((text for report in idle for text in report.warnings), "it did not engage")
        total.warnings.append(reason if len(reports) == 1 else f"in {len(idle)} of {len(reports)} calls {reason}")
    return total
