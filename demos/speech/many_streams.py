"""What many streams cost on one model: passes of one after the other against passes that they share.

    python -m mmaccel.demos.speech.many_streams --output docs/benchmarks/long/speech_streams

Each stream hears the recordings of the benchmark from another place on. Beside the curve, eight streams go on for ten
minutes in all, in which nothing may grow.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.speech.audio.endpoint import RATE
from mmaccel.speech.audio.recordings import all_recordings
from mmaccel.speech.families.weights import load
from mmaccel.speech.stream.events import Event, Final
from mmaccel.speech.stream.recognizer import StreamingRecognizer

COUNTS = (1, 2, 4, 8, 16, 32)
CHUNK = RATE // 2  # samples of a push: what comes between two looks
LONG, MINUTES = 8, 10  # streams, and minutes of audio of all of them
KINDS = {"passes": "_passes", "encodings": "encode_together"}  # and what the gathering calls them
INTRO = """
What a stream of Moonshine tiny costs where several share one model, by `python -m mmaccel.demos.speech.many_streams`:
{seconds:g} s of human speech for each, from another place on, pushed to `asr.streams(n)` half a second at a time.
Processor seconds, of a machine that others used too; *alone* are the same streams one after the other; both ways hear
each half second in turn. *A batch* is how many texts a pass of the decoder served, and pieces a pass of the encoder.
*Equal* are streams with the same events as alone: words, times, promises. All rows are in
[speech_streams.json](speech_streams.json).

![seconds of audio that a processor second is enough for](speech_streams.png)
"""


def inputs(count: int, seconds: float) -> list[torch.Tensor]:
    """Samples `[n]` for each stream: the recordings, each from another place on."""
    whole = torch.cat([one.samples for one in all_recordings()])
    size = round(seconds * RATE)
    return [whole.roll(-len(whole) * number // count).repeat(1 + size // len(whole))[:size] for number in range(count)]


class MeasuredStreams:
    """Streams that are pushed to, with their events and the processor seconds that they took."""

    def __init__(self, asr: StreamingRecognizer, count: int, is_shared: bool) -> None:
        self.group = asr.streams(count) if is_shared else None
        self.streams = [] if is_shared else [asr.stream() for _ in range(count)]
        self.events: list[list[Event]] = [[] for _ in range(count)]
        self.cpu_seconds = 0.0

    def push(self, chunks: Sequence[torch.Tensor] | None) -> None:
        """Hear half a second of each, None for the end."""
        began = time.process_time()
        if self.group is not None:
            found = self.group.finish() if chunks is None else self.group.push(chunks)
        elif chunks is None:
            found = [stream.finish() for stream in self.streams]
        else:
            found = [stream.push(chunk) for stream, chunk in zip(self.streams, chunks, strict=True)]
        self.cpu_seconds += time.process_time() - began
        for events, new in zip(self.events, found, strict=True):
            events += new


def curve(asr: StreamingRecognizer, counts: tuple[int, ...], seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each number of streams; both ways hear each half second in turn, so that noise meets both."""
    for count in counts:
        ways = alone, together = [MeasuredStreams(asr, count, is_shared) for is_shared in (False, True)]
        for chunks in [*zip(*(one.split(CHUNK) for one in inputs(count, seconds)), strict=True), None]:
            for way in ways:
                way.push(chunks)
        assert together.group is not None
        yield {
            "table": "curve",
            "streams": count,
            "cpu_seconds": together.cpu_seconds,
            "alone_cpu_seconds": alone.cpu_seconds,
            "audio_seconds": count * seconds,
            "share": together.cpu_seconds / alone.cpu_seconds,
            "equal": sum(map(operator.eq, alone.events, together.events)),
            "batch": _means(together.group.gathering.sizes),
        }


def _means(sizes: Any) -> dict[str, float | None]:
    """Mean size of batches, of each kind of work."""
    found: dict[str, float | None] = {}
    for kind, name in KINDS.items():
        counts = {size: batches for (work, size), batches in sizes.items() if work == name}
        items = sum(size * batches for size, batches in counts.items())
        found[kind] = items / sum(counts.values()) if counts else None
    return found


def long(asr: StreamingRecognizer, count: int, minutes: float, seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each round of streams that go on."""
    import resource  # Windows has none

    heard, before = MeasuredStreams(asr, count, is_shared=True), 0.0
    chunks = [*zip(*(one.split(CHUNK) for one in inputs(count, seconds)), strict=True)]
    for number in range(max(1, round(60 * minutes / (count * seconds)))):
        for one in chunks:
            heard.push(one)
        words = sum(len(event.words) for events in heard.events for event in events if isinstance(event, Final))
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cpu, before = heard.cpu_seconds - before, heard.cpu_seconds
        heard.events = [[] for _ in range(count)]
        yield {"table": "long", "round": number + 1, "cpu_seconds": cpu, "words": words, "peak_bytes": peak}
    heard.push(None)


def page(result: dict[str, Any]) -> str:
    """The page of a result."""
    rows = [row for row in result["rows"] if row["table"] == "curve"]
    rounds = [row for row in result["rows"] if row["table"] == "long"]
    lines = [_line(row) for row in rows]
    headings = (
        "streams",
        "alone, CPU s of each",
        "together",
        "share",
        "audio s a CPU s",
        "passes a batch",
        "encodings",
        "equal",
    )
    steady = [
        (str(r["round"]), f"{r['cpu_seconds']:.1f}", str(r["words"]), f"{r['peak_bytes'] / 2**20:.0f}") for r in rounds
    ]
    around = ("round", "CPU s", "words", "most memory so far, MiB")
    tables = {"Streams": pages.markdown(headings, lines), f"{LONG} streams that go on": pages.markdown(around, steady)}
    return pages.page(
        result, "Many streams", INTRO.format(seconds=rows[0]["audio_seconds"] / rows[0]["streams"]), tables
    )


def _line(row: dict[str, Any]) -> list[str]:
    count, batch = row["streams"], row["batch"]
    each = [f"{row[name] / count:.2f}" for name in ("alone_cpu_seconds", "cpu_seconds")]
    fill = [f"{batch[kind]:.1f}" if batch[kind] else "" for kind in KINDS]
    speed = f"{row['audio_seconds'] / row['cpu_seconds']:.1f}"
    return [str(count), *each, f"{row['share']:.2f}", speed, *fill, f"{row['equal']} of {count}"]


def plot(result: dict[str, Any], path: Path) -> None:
    """Seconds of audio that a processor second is enough for, by the number of streams."""
    from matplotlib.figure import Figure

    rows = [row for row in result["rows"] if row["table"] == "curve"]
    figure = Figure((6, 3.6), layout="constrained")
    axes = figure.subplots()
    counts = [row["streams"] for row in rows]
    for name, label in (("cpu_seconds", "together"), ("alone_cpu_seconds", "one after the other")):
        axes.plot(counts, [row["audio_seconds"] / row[name] for row in rows], "o-", label=label)
    axes.set(
        xscale="log", xlabel="streams", ylabel="seconds of audio a processor second", title="Many streams on one model"
    )
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, dpi=110)


def measure(seconds: float) -> dict[str, Any]:
    """The streams that go on, then the curve."""
    asr = StreamingRecognizer(*load("moonshine-tiny"))
    steady = [*tqdm(long(asr, LONG, MINUTES, seconds))]  # first, while memory is that of eight
    return results.result([*tqdm(curve(asr, COUNTS, seconds)), *steady])


if __name__ == "__main__":
    seconds = {"type": float, "default": 20, "help": "of audio for each stream (default 20)"}
    pages.run(__doc__, page, measure, plot, seconds=seconds)
