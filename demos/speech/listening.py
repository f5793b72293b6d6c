"""Minutes of human speech, clean, in noise and without pauses, to our streams and to others, on the same recordings.

    python -m mmaccel.demos.speech.listening --output docs/benchmarks/long/speech_listening

Ours with both models, moonshine-voice, and whisper_streaming as published where the environment variable
`MMACCEL_WHISPER_STREAMING` names a clone of it. Recordings as of `mmaccel bench speech --full`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tqdm import tqdm

from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.speech.audio.endpoint import RATE, find_endpoint
from mmaccel.speech.audio.recordings import Recording, all_recordings
from mmaccel.speech.bench.benchmark import moonshine_voice_row, offline_row, stream_row, streamed, streaming
from mmaccel.speech.bench.judged import table as each_recording
from mmaccel.speech.bench.listeners import MeasuredRecognizer
from mmaccel.speech.bench.page import heard
from mmaccel.speech.bench.playback import listen
from mmaccel.speech.bench.stream_tables import STREAMS, streams
from mmaccel.speech.families.weights import load

from .altered_recordings import in_noise, without_pauses
from .whisper_streaming import WhisperStreamingListener, published

MODELS = ("moonshine-tiny", "whisper-tiny.en")
LOUD, SEED = 10, 0  # decibels from speech to noise
LONG, SHORTER = 44, 0.85  # seconds of recordings that are heard in noise; length of those whose pauses are shortened
CONDITIONS = {
    "clean": "As recorded; sentences of one voice have pauses of a second between them.",
    "noise": f"Recordings of {LONG} s and more under pink noise, {LOUD} dB quieter than the speech, with a seed.",
    "no pauses": "Pauses shortened to 0.3 s in the recordings that have most: segments end by their length.",
}
INTRO = """
{seconds:.0f} s of human speech: {heard}. Of these, {noise:.0f} s again in noise, and {shortened:.0f} s again without
pauses. By `python -m mmaccel.demos.speech.listening`: one short run, in CPU seconds, on a machine
that others used too. *whisper_streaming* is the published code, with the same models as ours as its recogniser, whose
segments are sentences here; *moonshine-voice* is the package with its own engine and weights of 8 bits. The rows are in
[speech_listening.json](speech_listening.json).
"""


def recordings() -> dict[str, list[Recording]]:
    """The recordings of each condition."""
    clean = all_recordings()
    loud = [in_noise(one, LOUD, SEED) for one in clean if len(one.samples) >= LONG * RATE]
    shortened = [(one, without_pauses(one, find_endpoint("auto"))) for one in clean]
    quick = [short for one, short in shortened if len(short.samples) <= SHORTER * len(one.samples)]
    return {"clean": clean, "noise": loud, "no pauses": quick}


def rows(conditions: dict[str, list[Recording]], models: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row for each way to listen under each condition."""
    recognizers = {name: MeasuredRecognizer(*load(name)) for name in models}
    for condition, chosen in conditions.items():
        for name, recognizer in recognizers.items():
            for row in _model_rows(name, recognizer, chosen):
                yield {**row, "condition": condition}
        yield {**moonshine_voice_row(chosen), "condition": condition}


def _model_rows(name: str, recognizer: MeasuredRecognizer, chosen: list[Recording]) -> Iterator[dict[str, Any]]:
    offline = offline_row(name, recognizer, chosen)
    yield offline
    ways = {"LocalAgreement": streaming(recognizer)}
    module = published()
    if module is not None:
        rival = copy.copy(recognizer)  # which counts its own seconds of decoding
        ways["whisper_streaming"] = partial(WhisperStreamingListener, module, rival)
    recognizer.decoding = 0.0
    played = listen(ways, chosen)
    ours, baseline = played["LocalAgreement"], offline["quality"]
    yield stream_row(name, "LocalAgreement", chosen, ours, baseline, {"n": 2}, **streamed(ours, recognizer))
    if module is not None:
        theirs = played["whisper_streaming"]
        more = {"decoder_calls": theirs.decoder_calls, "retracted_share": 0.0}
        yield stream_row(name, "whisper_streaming", chosen, theirs, baseline, {}, **more)


def page(result: dict[str, Any]) -> str:
    """The page of a result."""
    found = {name: [row for row in result["rows"] if row["condition"] == name] for name in CONDITIONS}
    audio = {name: group[0]["audio_seconds"] if group else 0.0 for name, group in found.items()}
    facts = {"seconds": audio["clean"], "noise": audio["noise"], "shortened": audio["no pauses"]}
    intro = INTRO.format(heard=heard(found["clean"][0]), **facts)
    sections = {"How to read the tables": STREAMS.strip()}
    for name, group in found.items():
        if group:
            body = (CONDITIONS[name], streams(group), "Word error rates of each recording:", each_recording(group))
            sections[name.capitalize()] = "\n\n".join(body)
    return pages.page(result, "Streams on minutes of speech", intro, sections)


def measure(models: list[str]) -> dict[str, Any]:
    """Every condition and model."""
    return results.result(tqdm(rows(recordings(), models), unit="row"))


if __name__ == "__main__":
    models = {"nargs": "+", "default": list(MODELS), "help": "names for `mmaccel.speech.load`"}
    pages.run(__doc__, page, measure, models=models)
