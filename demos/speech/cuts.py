"""How many words cuts cost: finals for each silence that ends a segment and each tail of it that is heard.

    python -m mmaccel.demos.speech.cuts --output docs/benchmarks/long/speech_cuts

Defaults are to be chosen by the recordings of the folder in `MMACCEL_RECORDINGS`, and are reported on those of the
wheel `moonshine-voice`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.speech.audio.endpoint import RATE, EndpointPolicy, find_endpoint
from mmaccel.speech.audio.recordings import TEXTS, Recording, load_recordings, own_recordings, word_errors
from mmaccel.speech.families.weights import load
from mmaccel.speech.stream.recognizer import StreamingRecognizer
from mmaccel.speech.stream.transcribe import Transcript, transcribe_samples

SILENCES = (0.3, EndpointPolicy.silence, 0.5, 0.8)  # seconds
TAILS = (0.1, EndpointPolicy.tail, 0.3)  # seconds; none is longer than its silence
REJOIN = 14.0  # seconds that are decoded together, at the default silence and tail
SETS = {
    "others": "The recordings to choose by",
    "benchmark": "The recordings of the benchmark",
}
INTRO = """
Word error rates of Moonshine tiny's finals when other silences end a segment, and more or less of them belongs to it
(the defaults are {silence:g} s and {tail:g} s), by `python -m mmaccel.demos.speech.cuts`. In brackets how many segments
there were, and processor seconds for each second of audio, on a machine that others used too. *Rejoined*
segments are decoded again with those before them up to {rejoin:g} s, where only a breath is between
(`StreamingRecognizer(rejoin={rejoin:g})`). *The recordings to choose by*: {others:.0f} s, {others_words} words,
{names}, of a folder that is not shipped; one word is {word:.1f} points. *The recordings of the benchmark*:
{benchmark:.0f} s, {benchmark_words} words, {benchmark_word:.1f} points each. The rows, with the errors of each
recording, are in [speech_cuts.json](speech_cuts.json).
"""


def settings() -> list[dict[str, float]]:
    """All silences with all tails that fit, and the defaults with segments rejoined."""
    cuts = [{"silence": s, "tail": t, "rejoin": 0.0} for s in SILENCES for t in TAILS if t <= s]
    return [*cuts, {"silence": EndpointPolicy.silence, "tail": EndpointPolicy.tail, "rejoin": REJOIN}]


def rows(
    model: Any, processor: Any, chosen: dict[str, list[Recording]], endpoint: EndpointPolicy
) -> Iterator[dict[str, Any]]:
    """A row for each setting and set."""
    for setting in settings():
        cut = {name: setting[name] for name in ("silence", "tail")}
        asr = StreamingRecognizer(
            model, processor, endpoint=replace(endpoint, **cut), rejoin=setting["rejoin"], timer=time.process_time
        )
        for name, recordings in chosen.items():
            found = [transcribe_samples(one.samples, asr) for one in recordings]
            yield {"set": name, **setting, **figures(recordings, found)}


def figures(recordings: list[Recording], found: list[Transcript]) -> dict[str, Any]:
    """Errors of whole transcripts, and what they cost."""
    said, heard = [one.text for one in recordings], [one.text for one in found]
    audio = sum(len(one.samples) for one in recordings) / RATE
    return {
        "errors": {one.name: word_errors([one.text], [text]) for one, text in zip(recordings, heard, strict=True)},
        "word_error_rate": word_errors(said, heard),
        "segments": sum(len(one.segments) for one in found),
        "words": sum(len(text.split()) for text in said),
        "audio_seconds": audio,
        "real_time_factor": sum(one.stats.compute_seconds for one in found) / audio,
    }


def page(result: dict[str, Any]) -> str:
    """The page of a result: a table for each set."""
    groups = {name: [row for row in result["rows"] if row["set"] == name] for name in SETS}
    first = {name: group[0] for name, group in groups.items()}
    facts = {
        "others": first["others"]["audio_seconds"],
        "others_words": first["others"]["words"],
        "names": ", ".join(f"`{name}`" for name in first["others"]["errors"]),
        "benchmark": first["benchmark"]["audio_seconds"],
        "benchmark_words": first["benchmark"]["words"],
        "word": 100 / first["others"]["words"],
        "benchmark_word": 100 / first["benchmark"]["words"],
        "rejoin": REJOIN,
        "silence": EndpointPolicy.silence,
        "tail": EndpointPolicy.tail,
    }
    return pages.page(
        result,
        "What cuts cost",
        INTRO.format(**facts),
        {heading: _table(groups[name]) for name, heading in SETS.items()},
    )


def _table(group: list[dict[str, Any]]) -> str:
    cells = {(row["silence"], row["tail"], row["rejoin"]): _cell(row) for row in group}
    lines = [[f"{s:g} s", *(cells.get((s, t, 0.0), "") for t in TAILS)] for s in SILENCES]
    silence = EndpointPolicy.silence
    lines.append([f"{silence:g} s, rejoined", *(cells.get((silence, t, REJOIN), "") for t in TAILS)])
    return pages.markdown(("silence", *(f"{tail:g} s heard" for tail in TAILS)), lines)


def _cell(row: dict[str, Any]) -> str:
    return f"{row['word_error_rate']:.1%} ({row['segments']}, {row['real_time_factor']:.2f})"


def measure() -> dict[str, Any]:
    """Every condition and setting."""
    chosen = {"others": own_recordings(), "benchmark": load_recordings(list(TEXTS))}
    made = rows(*load("moonshine-tiny"), chosen, find_endpoint("auto"))
    return results.result(tqdm(made, unit="row"))


if __name__ == "__main__":
    pages.run(__doc__, page, measure)
