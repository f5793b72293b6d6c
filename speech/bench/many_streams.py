"""What many streams cost on one model: passes of one after the other against passes that they share.

    python -m mmaccel.speech.bench.many_streams --output docs/benchmarks/long/speech_streams

Each stream hears the recordings of the benchmark from another place on. Behind the curve, eight streams go on for ten
minutes in all, in which nothing may grow.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mmaccel.bench import pages
from mmaccel.comparison import results

from ..audio.endpoint import RATE
from ..audio.recordings import TEXTS, load_recordings, own_recordings
from ..families.weights import load
from ..stream.events import Event
from ..stream.recognizer import StreamingRecognizer
from ..stream.stream_group import StreamGroup

COUNTS = (1, 2, 4, 8, 16, 32)
CHUNK = RATE // 2  # samples of a push: what comes between two looks
LONG, MINUTES = 8, 10  # streams, and minutes of audio of all of them
KINDS = {"passes": "_passes", "encodings": "_encode_all"}  # and what the gathering calls them
INTRO = """
What a stream of Moonshine tiny costs where several share one model, by `python -m mmaccel.speech.bench.many_streams`:
{seconds:g} s of human speech for each, from another place on, pushed to `asr.streams(n)` half a second at a time.
Processor seconds on one thread, of a machine that others used too; *alone* are the same streams one after the other,
in the same run. *A batch* is how many texts a pass of the decoder served, and pieces a pass of the encoder. *Equal* are
streams with the same events as alone: words, times, promises. All rows are in
[speech_streams.json](speech_streams.json).

![processor seconds of a stream](speech_streams.png)
"""


def inputs(count: int, seconds: float) -> list[torch.Tensor]:
    """Samples `[n]` for each stream: the recordings, each from another place on."""
    whole = torch.cat([one.samples for one in [*load_recordings(list(TEXTS)), *own_recordings()]])
    size = round(seconds * RATE)
    return [whole.roll(-len(whole) * number // count).repeat(1 + size // len(whole))[:size] for number in range(count)]


def heard_alone(asr: StreamingRecognizer, samples: torch.Tensor) -> tuple[list[Event], float]:
    """Events of one stream, and processor seconds."""
    began = time.process_time()
    with asr.stream() as stream:
        events = [event for chunk in samples.split(CHUNK) for event in stream.push(chunk)] + stream.finish()
    return events, time.process_time() - began


def heard_together(group: StreamGroup, samples: list[torch.Tensor]) -> tuple[list[list[Event]], float]:
    """Events of each stream, and processor seconds of all; the streams go on."""
    began, found = time.process_time(), [list[Event]() for _ in samples]
    for chunks in zip(*(one.split(CHUNK) for one in samples), strict=True):
        for events, new in zip(found, group.push(chunks), strict=True):
            events += new
    return found, time.process_time() - began


def curve(asr: StreamingRecognizer, counts: tuple[int, ...], seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each number of streams."""
    given = inputs(max(counts), seconds)
    alone = [heard_alone(asr, samples) for samples in given]
    for count in counts:
        # spread over the recordings, as those of the largest number are
        chosen = range(0, len(given), len(given) // count)
        with asr.streams(count) as group:
            events, cpu = heard_together(group, [given[number] for number in chosen])
            began = time.process_time()
            rest = group.finish()
            cpu += time.process_time() - began
            sizes = group.gathering.sizes
        equal = [had + more == alone[number][0] for number, had, more in zip(chosen, events, rest, strict=True)]
        before = sum(alone[number][1] for number in chosen)
        audio = count * seconds
        costs = {"cpu_seconds": cpu, "alone_cpu_seconds": before, "audio_seconds": audio, "share": cpu / before}
        yield {"table": "curve", "streams": count, **costs, "equal": sum(equal), "batch": _means(sizes)}


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
    given = inputs(count, seconds)
    with asr.streams(count) as group:
        for number in range(max(1, round(60 * minutes / (count * seconds)))):
            found, cpu = heard_together(group, given)
            words = sum(len(event.words) for events in found for event in events if hasattr(event, "words"))
            peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            yield {"table": "long", "round": number + 1, "cpu_seconds": cpu, "words": words, "peak_bytes": peak}


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


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the result, its page and its picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="path of the result without .json, .md and .png")
    parser.add_argument("--seconds", type=float, default=20, help="of audio for each stream (default 20)")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    asr = StreamingRecognizer(*load("moonshine-tiny"))
    made = [*tqdm(curve(asr, COUNTS, args.seconds)), *tqdm(long(asr, LONG, MINUTES, args.seconds))]
    result = results.result(made)
    args.output.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    args.output.with_suffix(".md").write_text(page(result))
    plot(result, args.output.with_suffix(".png"))
    tqdm.write(page(result))


if __name__ == "__main__":
    main()
