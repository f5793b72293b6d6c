"""How soon words come by the length of what is pushed, such as the blocks of a sound card or of a socket.

    python -m mmaccel.demos.speech.pushes --output docs/benchmarks/long/speech_pushes

Streams of Moonshine tiny on the recordings of `mmaccel bench speech --full`, as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.speech.audio.endpoint import RATE
from mmaccel.speech.audio.recordings import Recording, all_recordings
from mmaccel.speech.bench.benchmark import offline_row, stream_row, streamed, streaming
from mmaccel.speech.bench.judged import described
from mmaccel.speech.bench.listeners import UPDATE, MeasuredRecognizer
from mmaccel.speech.bench.page import heard
from mmaccel.speech.bench.playback import listen
from mmaccel.speech.bench.stream_tables import both, points
from mmaccel.speech.families.weights import load

MODEL = "moonshine-tiny"
PUSHES = (0.02, 0.032, 0.1, 0.5)  # seconds: of a call, of a voice detector, of a page that listens, of a file
INTRO = """
Streams of Moonshine tiny with a look every {update:g} s, fed in pushes of other lengths: {seconds:.0f} s of human
speech, {heard}. By `python -m mmaccel.demos.speech.pushes`, in CPU seconds, on a machine that others
used too. What is heard does not depend on the pushes, but nothing is known before a push ends. Lags are in seconds of
audio that had to come, and in brackets with the computing on top: *final* and *eager* from the end of speech to its
text and to the same text told early, *right* where it was the final one, and *promised* from the end of a word until it
is shown as one that stays. The rows are in [speech_pushes.json](speech_pushes.json).
"""


def rows(recognizer: MeasuredRecognizer, recordings: list[Recording]) -> Iterator[dict[str, Any]]:
    """A row for each length."""
    baseline = offline_row(MODEL, recognizer, recordings)["quality"]
    for seconds in PUSHES:
        ways = {"LocalAgreement": streaming(recognizer)}
        recognizer.decoding = 0.0
        played = listen(ways, recordings, round(seconds * RATE))["LocalAgreement"]
        row = stream_row(
            MODEL, "LocalAgreement", recordings, played, baseline, {"n": 2}, **streamed(played, recognizer)
        )
        yield {**row, **described(recordings), "push": seconds}


def page(result: dict[str, Any]) -> str:
    """The page of a result: a line for each length."""
    first = result["rows"][0]
    intro = INTRO.format(update=UPDATE, seconds=first["audio_seconds"], heard=heard(first))
    lags = [f"{name} {percentile}" for name in ("final", "eager", "promised") for percentile in ("p50", "p90")]
    headings = ("push", "WER", "to offline", "RTF", *lags, "right")
    return pages.page(
        result,
        "What the length of a push changes",
        intro,
        {"Lags": pages.markdown(headings, [_line(row) for row in result["rows"]])},
    )


def _line(row: dict[str, Any]) -> list[str]:
    lags = [row[name] for name in ("finalisation", "eager", "promised_alone_lag")]
    cells = [both(lag[f"heard_{p}"], lag[f"ready_{p}"]) for lag in lags for p in ("p50", "p90")]
    right = f"{row['eager']['early']} of {row['eager']['tellings']}"
    first = [f"{row['push']:g} s", f"{row['quality']:.1%}", f"{points(row):+.1f}", f"{row['real_time_factor']:.3f}"]
    return [*first, *cells, right]


def measure() -> dict[str, Any]:
    """Every length of a push."""
    made = rows(MeasuredRecognizer(*load(MODEL)), all_recordings())
    return results.result(tqdm(made, total=len(PUSHES), unit="row"))


if __name__ == "__main__":
    pages.run(__doc__, page, measure)
