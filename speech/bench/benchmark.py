"""`mmaccel bench speech`: word error rate, lag and CPU seconds of streams on human speech, and of the parts.

On one thread and in CPU seconds, which a busy machine does not change much. What promises equality is checked first;
a row whose check fails has no figures and says why.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mmaccel.bench import result as bench

from ..audio.endpoint import RATE
from ..families.adapter import SpeechAdapter
from ..families.weights import load
from ..families.whisper import WhisperAdapter
from ..policies.align_att import AlignAtt
from ..policies.local_agreement import LocalAgreement
from ..policies.policy import StreamingPolicy
from ..stream.emission_latency import Utterance, emission_latency
from ..stream.stats import Lags
from ..stream.transcribe import Transcript, transcribe_samples
from .drafts import draft_row, growing_row
from .listeners import (
    UPDATE,
    ChunkListener,
    Heard,
    MeasuredRecognizer,
    MoonshineVoiceListener,
    StreamListener,
    Take,
    listen,
)
from .page import write_page
from .parts import codec_rows, encoder_rows, generate_rows, speech_row
from .recordings import TEXTS, Recording, load_recordings, word_errors

__all__ = ["THREADS", "rows", "write_page"]

THREADS = 1
SEGMENT = 15  # seconds of the longest segment of a stream
CHUNKS = (1.0, 3.0)  # seconds of the pieces of the simple alternative


def rows(full: bool = False) -> Iterator[dict[str, Any]]:
    """One row for each way to listen and each part; `full` takes both recordings and more rounds."""
    recordings = load_recordings(list(TEXTS) if full else ["beckett.wav"])
    for made in _all(recordings, full):
        _tell(made)
        yield made


def _all(recordings: list[Recording], full: bool) -> Iterator[dict[str, Any]]:
    moonshine, processor = load("moonshine-tiny")
    adapter = MeasuredRecognizer(moonshine, processor).adapter
    yield from _model_rows("moonshine-tiny", adapter, recordings)
    yield _moonshine_voice_row(recordings)
    yield from encoder_rows(rounds=3 if full else 1)
    yield from codec_rows(frames=32 if full else 16)
    texts = [recording.text for recording in recordings]
    yield from generate_rows("moonshine-tiny", adapter, _segments(adapter, recordings), texts, word_errors)
    whisper, processor = load("whisper-tiny.en")
    for context in (None, 200):
        adapter = WhisperAdapter(whisper, context_frames=context)
        adapter.processor = processor
        name = "whisper-tiny.en" if context else "whisper-tiny.en, 30 s context"
        yield from _model_rows(name, adapter, recordings, streams=context is not None)


def _tell(made: dict[str, Any]) -> None:
    """A line on standard error as soon as a row is there."""
    seconds = "" if made["cpu_seconds"] is None else f"{made['cpu_seconds']:.2f} CPU s"
    print(f"{made['model']}: {made['method']} {seconds}{made['refused'] or ''}", file=sys.stderr, flush=True)  # noqa: T201


def _model_rows(
    name: str, adapter: SpeechAdapter, recordings: list[Recording], streams: bool = True
) -> Iterator[dict[str, Any]]:
    offline = [transcribe_samples(r.samples, MeasuredRecognizer(adapter)) for r in recordings]
    for recording, found in zip(recordings, offline, strict=True):
        recording.words = recording.words or found.words  # the first model's
    baseline = word_errors([r.text for r in recordings], [found.text for found in offline])
    yield _offline_row(name, recordings, offline, baseline)
    if not streams:
        return
    for policy in (LocalAgreement(2), AlignAtt()):
        yield from _policy_rows(name, adapter, policy, recordings, baseline)
    for seconds in CHUNKS:
        heard = listen(lambda s=seconds: ChunkListener(adapter, s), recordings)  # type: ignore[misc]
        more: dict[str, Any] = {"settings": {"seconds": seconds}, "decoder_calls": heard.decoder_calls}
        yield stream_row(name, "fixed chunks", recordings, heard, baseline, **more)


def _policy_rows(
    name: str, adapter: SpeechAdapter, policy: StreamingPolicy, recordings: list[Recording], baseline: float
) -> Iterator[dict[str, Any]]:
    """The stream, and for the default policy what its drafts save."""
    drafted, heard = _stream(adapter, policy, recordings, drafts=True)
    label = type(policy).__name__
    yield stream_row(name, label, recordings, heard, baseline, _settings(policy), **_streamed(heard, drafted))
    if isinstance(policy, LocalAgreement):
        plain, plainly = _stream(adapter, policy, recordings, drafts=False)
        yield draft_row(name, "drafts in the stream", heard, drafted, plainly, plain)
        twin = MeasuredRecognizer(adapter.target, adapter.processor, policy=policy, packed=True)
        again = listen(lambda: StreamListener(twin.stream(update_interval=UPDATE)), recordings)
        yield draft_row(name, "drafts in the stream, packed weights", again, twin, plainly, plain)
        longest = max((recording.samples for recording in recordings), key=len)
        yield growing_row(name, adapter, longest[: SEGMENT * RATE])


def _stream(
    adapter: SpeechAdapter, policy: StreamingPolicy, recordings: list[Recording], drafts: bool
) -> tuple[MeasuredRecognizer, Heard]:
    recognizer = MeasuredRecognizer(adapter, policy=policy, drafts=drafts)
    return recognizer, listen(lambda: StreamListener(recognizer.stream(update_interval=UPDATE)), recordings)


def _segments(adapter: SpeechAdapter, recordings: list[Recording]) -> list[list[torch.Tensor]]:
    """The speech between pauses, of each recording."""
    recognizer = MeasuredRecognizer(adapter)
    found = [transcribe_samples(recording.samples, recognizer) for recording in recordings]
    return [  # seconds of the stream are those of the recording
        [recording.samples[round(s.start * RATE) : round(s.end * RATE)] for s in transcript.segments]
        for recording, transcript in zip(recordings, found, strict=True)
    ]


def _offline_row(name: str, recordings: list[Recording], offline: list[Transcript], baseline: float) -> dict[str, Any]:
    seconds = sum(found.stats.compute_seconds for found in offline)
    audio = sum(found.stats.audio_seconds for found in offline)
    return speech_row(
        table="streams",
        model=name,
        method="offline",
        exact=True,
        cpu_seconds=seconds,
        real_time_factor=seconds / audio,
        audio_seconds=audio,
        decoder_calls=sum(found.stats.decoder_calls for found in offline),
        quality_metric="word error rate",
        quality=baseline,
        baseline_quality=baseline,
        recordings=[recording.name for recording in recordings],
        said=sum(len(recording.text.split()) for recording in recordings),
        texts=[found.text for found in offline],
    )


def stream_row(
    name: str,
    label: str,
    recordings: list[Recording],
    heard: Heard,
    baseline: float | None,
    settings: dict[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """Errors, cost and lags of one way to listen, over all recordings."""
    audio = sum(take.audio_seconds for take in heard.takes)
    texts = [take.text for take in heard.takes]
    return speech_row(
        table="streams",
        model=name,
        method=label,
        settings=settings,
        exact=False,
        cpu_seconds=heard.cpu_seconds,
        wall_seconds=sum(take.wall_seconds for take in heard.takes),
        audio_seconds=audio,
        real_time_factor=heard.cpu_seconds / audio,
        quality_metric="word error rate",
        quality=word_errors([recording.text for recording in recordings], texts),
        baseline_quality=baseline,
        texts=texts,
        **{"retracted_share": None, "decoder_calls": None, **lags(recordings, heard.takes), **more},
    )


def lags(recordings: list[Recording], takes: list[Take]) -> dict[str, Any]:
    """Seconds from speech to text, each on both clocks: `heard` counts audio only, `ready` has computing too."""
    found: dict[str, Any] = {}
    pooled = Lags()
    for take, recording in zip(takes, recordings, strict=True):
        one = take.finalisation(recording.words)
        pooled.heard.extend(one.heard)
        pooled.ready.extend(one.ready)
    found["finalisation"] = pooled.to_dict()
    for kind, place in (("promised", 2), ("shown", 3)):
        found[f"{kind}_lag"] = {}
        for number, clock in enumerate(("heard", "ready")):
            said = zip(takes, recordings, strict=True)
            words = emission_latency([Utterance(take.emissions(number, place), r.words) for take, r in said])
            found[f"{kind}_lag"] |= {f"{clock}_p50": words.delay50, f"{clock}_p90": words.delay90}
    found["first_text"] = {clock: _first(recordings, takes, number) for number, clock in enumerate(("heard", "ready"))}
    return found


def _first(recordings: list[Recording], takes: list[Take], clock: int) -> float | None:
    """From the start of the first word to the first text, median over recordings."""
    both = [(take.first(clock), r.words[0].start) for take, r in zip(takes, recordings, strict=True) if r.words]
    late = [first - start for first, start in both if first is not None]
    return bench.median(late) if late else None


def _streamed(heard: Heard, recognizer: MeasuredRecognizer) -> dict[str, Any]:
    """Figures that only our streams have."""
    stats = [listener.stream.stats for listener in heard.listeners]
    promised = sum(one.committed for one in stats)
    return {
        "decoder_calls": heard.decoder_calls,
        "decoding_seconds": recognizer.decoding,
        "retracted_share": sum(one.retracted for one in stats) / promised if promised else 0.0,
        "stats": [one.to_dict() for one in stats],
    }


def _moonshine_voice_row(recordings: list[Recording]) -> dict[str, Any]:
    """The package itself, its own engine and weights of 8 bits, on the same audio."""
    module = importlib.import_module("moonshine_voice")
    began = time.process_time()
    with module.Transcriber(Path(module.get_assets_path()) / "tiny-en", module.ModelArch.TINY, UPDATE) as transcriber:
        loading = time.process_time() - began
        audio = [recording.samples.tolist() for recording in recordings]
        began = time.process_time()
        offline = [transcriber.transcribe_without_streaming(samples, RATE) for samples in audio]
        seconds = time.process_time() - began
        texts = [" ".join(line.text for line in found.lines) for found in offline]
        baseline = word_errors([recording.text for recording in recordings], texts)
        heard = listen(lambda: MoonshineVoiceListener(transcriber), recordings)
    more = {"offline_cpu_seconds": seconds, "loading_seconds": loading}
    return stream_row(
        "moonshine-tiny", f"moonshine-voice {module.__version__}", recordings, heard, baseline, {}, **more
    )


def _settings(policy: StreamingPolicy) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in policy.__dataclass_fields__}  # type: ignore[attr-defined]
