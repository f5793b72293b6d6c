"""`mmaccel bench speech`: word error rate, lag and CPU seconds of streams on human speech, and of the parts.

On one thread and in CPU seconds, which a busy machine does not change much. What promises equality is checked first;
a row whose check fails has no figures and says why. To hear more than the recordings of the speech extra, name a folder
with a `texts.json` in the environment variable `MMACCEL_RECORDINGS`.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from mmaccel.bench.benchmark import Benchmark, Section, in_one
from mmaccel.comparison import results

from ..audio.endpoint import RATE, find_endpoint
from ..audio.recordings import Recording, all_recordings, load_recordings, word_errors
from ..comparing import cut
from ..families.adapter import SpeechAdapter
from ..families.finding import recognising
from ..families.weights import load
from ..families.whisper import WhisperAdapter
from ..policies.align_att import AlignAtt
from ..policies.local_agreement import LocalAgreement
from ..stream.emission_latency import Utterance, emission_latency
from ..stream.stats import Lags
from ..stream.transcribe import transcribe_samples
from . import findings, page
from .drafts import draft_row, growing_row
from .judged import described, judged
from .listeners import UPDATE, ChunkListener, Listener, MeasuredRecognizer, MoonshineVoiceListener, StreamListener
from .parts import codec_rows, encoder_rows, generate_rows, speech_row
from .playback import Playback, Played, listen

SEGMENT = 15  # seconds of the longest segment of a stream
CHUNKS = (1.0, 3.0)  # seconds of the pieces of the simple alternative
POLICIES = (LocalAgreement(2), AlignAtt())  # the default first


def rows(full: bool = False) -> Iterator[dict[str, Any]]:
    """One row for each way to listen and each part; `full` takes all recordings and more rounds."""
    recordings = all_recordings() if full else load_recordings(["beckett.wav"])
    for made in _all(recordings, full):
        seconds = "" if made["cpu_seconds"] is None else f"{made['cpu_seconds']:.2f} CPU s"
        print(f"{made['model']}: {made['method']} {seconds}{made['refused'] or ''}", file=sys.stderr, flush=True)  # noqa: T201
        yield made


def _all(recordings: list[Recording], full: bool) -> Iterator[dict[str, Any]]:
    moonshine, processor = load("moonshine-tiny")
    adapter = MeasuredRecognizer(moonshine, processor).adapter
    yield from _model_rows("moonshine-tiny", adapter, recordings)
    yield moonshine_voice_row(recordings)
    yield from encoder_rows(rounds=3 if full else 1)
    yield from codec_rows(frames=32 if full else 16)
    texts = [recording.text for recording in recordings]
    segments = [cut(one.samples, find_endpoint("auto")) for one in recordings]
    yield from generate_rows("moonshine-tiny", adapter, segments, texts, word_errors)
    whisper, processor = load("whisper-tiny.en")
    whisper = recognising(whisper, packed=False)
    for context in (None, 200):
        adapter = WhisperAdapter(whisper, context_frames=context)
        adapter.processor = processor
        name = "whisper-tiny.en" if context else "whisper-tiny.en, 30 s context"
        yield from _model_rows(name, adapter, recordings, streams=context is not None)


def _model_rows(
    name: str, adapter: SpeechAdapter, recordings: list[Recording], streams: bool = True
) -> Iterator[dict[str, Any]]:
    offline = offline_row(name, MeasuredRecognizer(adapter), recordings)
    yield offline
    if not streams:
        return
    baseline = offline["quality"]
    recognizers = {type(policy).__name__: MeasuredRecognizer(adapter, policy=policy) for policy in POLICIES}
    recognizers["plain"] = MeasuredRecognizer(adapter, policy=POLICIES[0], drafts=False)
    recognizers["packed"] = MeasuredRecognizer(adapter.target, adapter.processor, policy=POLICIES[0], packed=True)
    ways: dict[str, Callable[[], Listener]] = {label: streaming(one) for label, one in recognizers.items()}
    ways |= {f"chunks {seconds:g}": partial(ChunkListener, adapter, seconds) for seconds in CHUNKS}
    played = listen(ways, recordings)
    for policy in POLICIES:
        label = type(policy).__name__
        told = streamed(played[label], recognizers[label])
        yield stream_row(name, label, recordings, played[label], baseline, asdict(policy), **told)
    default = type(POLICIES[0]).__name__
    for label, way in (("drafts in the stream", default), ("drafts in the stream, packed weights", "packed")):
        yield draft_row(name, label, played[way], recognizers[way], played["plain"], recognizers["plain"])
    longest = max((recording.samples for recording in recordings), key=len)
    yield growing_row(name, adapter, longest[: SEGMENT * RATE])
    for seconds in CHUNKS:
        pieces = played[f"chunks {seconds:g}"]
        more: dict[str, Any] = {"settings": {"seconds": seconds}, "decoder_calls": pieces.decoder_calls}
        yield stream_row(name, "fixed chunks", recordings, pieces, baseline, **more)


def streaming(recognizer: MeasuredRecognizer) -> Callable[[], Listener]:
    """Begins a stream of its own for each recording."""
    return lambda: StreamListener(recognizer.stream(update_interval=UPDATE))


def offline_row(name: str, recognizer: MeasuredRecognizer, recordings: list[Recording]) -> dict[str, Any]:
    """Errors and cost of transcripts of whole recordings; words of those that know none are taken from them."""
    offline = [transcribe_samples(one.samples, recognizer) for one in recordings]
    for one, found in zip(recordings, offline, strict=True):
        one.words = one.words or found.words
    errors = judged(recordings, [found.text for found in offline])
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
        baseline_quality=errors["quality"],
        **errors,
        **described(recordings),
    )


def stream_row(
    name: str,
    label: str,
    recordings: list[Recording],
    played: Played,
    baseline: float | None,
    settings: dict[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """Errors, cost and lags of one way to listen, over all recordings."""
    audio = sum(playback.audio_seconds for playback in played.playbacks)
    texts = [playback.text for playback in played.playbacks]
    return speech_row(
        table="streams",
        model=name,
        method=label,
        settings=settings,
        exact=False,
        cpu_seconds=played.cpu_seconds,
        wall_seconds=sum(playback.wall_seconds for playback in played.playbacks),
        audio_seconds=audio,
        real_time_factor=played.cpu_seconds / audio,
        **judged(recordings, texts),
        baseline_quality=baseline,
        **{"retracted_share": None, "decoder_calls": None, **lags(recordings, played.playbacks), **more},
    )


def lags(recordings: list[Recording], playbacks: list[Playback]) -> dict[str, Any]:
    """Seconds from speech to text, each on both clocks: `heard` counts audio only, `ready` has computing too."""
    found: dict[str, Any] = {}
    for name, kind in (("finalisation", "finals"), ("eager", "early")):
        pooled = Lags()
        for playback, recording in zip(playbacks, recordings, strict=True):
            one = playback.lags(getattr(playback, kind), recording.words)
            pooled.heard.extend(one.heard)
            pooled.ready.extend(one.ready)
        found[name] = pooled.to_dict()
    counts = {name: sum(len(getattr(one, name)) for one in playbacks) for name in ("early", "finals")}
    found["eager"] |= {**counts, "tellings": sum(one.tellings for one in playbacks)}
    for kind, what in (("promised", (2, False)), ("promised_alone", (2, True)), ("shown", (3, False))):
        found[f"{kind}_lag"] = {}
        for number, clock in enumerate(("heard", "ready")):
            said = zip(playbacks, recordings, strict=True)
            words = emission_latency([Utterance(playback.emissions(number, *what), r.words) for playback, r in said])
            found[f"{kind}_lag"] |= {f"{clock}_p50": words.delay50, f"{clock}_p90": words.delay90}
    found["first_text"] = {
        clock: _first(recordings, playbacks, number) for number, clock in enumerate(("heard", "ready"))
    }
    return found


def _first(recordings: list[Recording], playbacks: list[Playback], clock: int) -> float | None:
    """From the start of the first word to the first text, median over recordings."""
    both = [
        (playback.first(clock), r.words[0].start) for playback, r in zip(playbacks, recordings, strict=True) if r.words
    ]
    late = [first - start for first, start in both if first is not None]
    return results.median(late) if late else None


def streamed(played: Played, recognizer: MeasuredRecognizer) -> dict[str, Any]:
    """Figures that only our streams have."""
    stats = [listener.stream.stats for listener in played.listeners]
    promised = sum(one.committed for one in stats)
    return {
        "decoder_calls": played.decoder_calls,
        "decoding_seconds": recognizer.decoding,
        "retracted_share": sum(one.retracted for one in stats) / promised if promised else 0.0,
        "stats": [one.to_dict() for one in stats],
    }


def moonshine_voice_row(recordings: list[Recording]) -> dict[str, Any]:
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
        played = listen({"package": lambda: MoonshineVoiceListener(transcriber)}, recordings)["package"]
    more = {"offline_cpu_seconds": seconds, "loading_seconds": loading}
    return stream_row(
        "moonshine-tiny", f"moonshine-voice {module.__version__}", recordings, played, baseline, {}, **more
    )


def _groups(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The longest recordings of the first model, and the parts."""
    told = [r for r in rows if r.get("refused") is None]
    first = told[0]["model"]
    streams = [r for r in told if r["table"] == "streams" and r["model"] == first]
    longest = max((r["audio_seconds"] for r in streams), default=0)
    parts = [r for r in told if r["speedup"] is not None and (r["model"] == first or r["model"].endswith("untrained"))]
    return {
        f"Words of {longest:.0f} s of speech": [r for r in streams if r["audio_seconds"] == longest],
        "Parts": [r for r in parts if r.get("audio_seconds") in (None, longest) or "seconds" in r["settings"]],
    }


SECTION = Section(
    _groups,
    "fixed chunks without a stream. Time is that of the processor.",
    plot="word errors against processor seconds for each second of audio",
    quality="word error rate (lower is better)",
    higher_is_better=False,
    form=".1%",
    is_mixed=True,
    picture=page.picture,
    said=findings.said,
)
BENCHMARK = Benchmark(
    "speech", page.TITLE, in_one(rows), SECTION, page.INTRO, page.tables, page.LIMITS, page.facts, page.plot
)
