"""Feed a stream an hour of speech, silence and noise, and write down whether anything drifts.

    python -m mmaccel.demos.hour_of_speech --minutes 60 --output docs/benchmarks/long/speech_hour

Each round is both recordings of the benchmark with silence and noise behind them. What is wanted: rounds that take
the same CPU time, memory that stays, and as many word errors at the end as at the start, so that nothing is lost or
said again and again. Every sixth round a new stream hears it too, since a machine with other work to do is slower at
one time than at another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mmaccel import speech
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.speech.audio.endpoint import RATE
from mmaccel.speech.audio.recordings import TEXTS, load_recordings, word_errors

CHUNK = RATE // 10
FRESH = 6  # rounds from one new stream to the next
SILENCE, NOISE, LOUDNESS = 5, 6, 0.01  # seconds, seconds, standard deviation


def one_round() -> torch.Tensor:
    """Samples `[n]`: each recording, then silence, then noise."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for recording in load_recordings(list(TEXTS)):
        noise = LOUDNESS * torch.randn(NOISE * RATE, generator=generator)
        parts += [recording.samples, torch.zeros(SILENCE * RATE), noise]
    return torch.cat(parts)


def resident_bytes(process: int | str = "self") -> int:
    """Memory of a process, by default this one (Linux), 0 elsewhere."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return 1024 * int(status.split("VmRSS:")[1].split()[0])


def listen(stream: Any, samples: torch.Tensor, text: str) -> dict[str, Any]:
    """Push one round, in chunks of 0.1 s, and measure it."""
    began, finals, before = time.process_time(), [], len(stream.stats.finalisation.ready)
    for chunk in samples.split(CHUNK):
        finals += [event for event in stream.push(chunk) if isinstance(event, speech.Final)]
    seconds = time.process_time() - began
    heard = " ".join(final.text for final in finals)
    lags = sorted(list(stream.stats.finalisation.ready)[before:])
    return {
        "audio_seconds": len(samples) / RATE,
        "cpu_seconds": seconds,
        "real_time_factor": seconds * RATE / len(samples),
        "final_lag_p90": lags[int(0.9 * (len(lags) - 1))] if lags else None,
        "words": len(heard.split()),
        "word_error_rate": word_errors([text], [heard]),
        "resident_bytes": resident_bytes(),
    }


def rounds(recognizer: Any, count: int) -> Iterator[dict[str, Any]]:
    """Each round of one long stream, and of every `FRESH`-th the CPU seconds of a new one."""
    samples, text = one_round(), " ".join(TEXTS.values())
    with recognizer.stream() as stream:
        for number in tqdm(range(count), unit="round"):
            row = listen(stream, samples, text)
            if number % FRESH == 0 or number == count - 1:
                with recognizer.stream() as fresh:
                    row["fresh_cpu_seconds"] = listen(fresh, samples, text)["cpu_seconds"]
            yield row
        stream.finish()


def page(result: dict[str, Any]) -> str:
    rows = result["rows"]
    shown = [i for i, row in enumerate(rows) if "fresh_cpu_seconds" in row]
    lines = [
        (
            f"{sum(r['audio_seconds'] for r in rows[: i + 1]) / 60:.0f}",
            f"{rows[i]['cpu_seconds']:.1f}",
            f"{rows[i]['fresh_cpu_seconds']:.1f}",
            f"{rows[i]['final_lag_p90']:.2f}",
            str(rows[i]["words"]),
            f"{rows[i]['word_error_rate']:.1%}",
            f"{rows[i]['resident_bytes'] / 2**20:.0f}",
        )
        for i in shown
    ]
    headings = ("minute", "CPU s a round", "of a new stream", "final lag p90, s", "words", "WER", "memory, MiB")
    intro = (
        "One stream of Moonshine tiny with LocalAgreement, by `python -m mmaccel.demos.hour_of_speech`: 54 s of speech,"
        " with silence and noise between, again and again. Nothing may drift. On one thread, in CPU seconds; lags count"
        f" computing. A new stream heard the same round at the same time. All {len(rows)} rounds are in"
        " [speech_hour.json](speech_hour.json)."
    )
    return pages.page(result, "An hour of speech", intro, {"Round by round": pages.markdown(headings, lines)})


def main(argv: list[str] | None = None) -> None:
    parser = pages.output_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    recognizer = speech.StreamingRecognizer(*speech.load("moonshine-tiny"), timer=time.process_time)
    count = max(1, round(args.minutes * 60 * RATE / len(one_round())))
    result = results.result(rounds(recognizer, count))
    pages.write(args.output, result, page)


if __name__ == "__main__":
    main()
