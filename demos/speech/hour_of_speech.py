"""Feed streams an hour of speech with pauses and an hour without, and write down whether anything drifts.

    python -m mmaccel.demos.speech.hour_of_speech --minutes 60 --output docs/benchmarks/long/speech_hour

Each round is both recordings of the benchmark: once with silence and noise behind them, and once without any pause, so
that segments end only where they grow too long. What is wanted: rounds that take the same CPU time, memory that stays,
and as many word errors at the end as at the start, so that nothing is lost or said again and again. Every sixth round a
new stream hears it too, since a machine with other work to do is slower at one time than at another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psutil
import torch
from tqdm import tqdm

from mmaccel import speech
from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.speech.audio.endpoint import RATE, EndpointPolicy
from mmaccel.speech.audio.recordings import TEXTS, load_recordings, word_errors

from .altered_recordings import without_pauses

CHUNK = RATE // 10
FRESH = 6  # rounds from one new stream to the next
SILENCE, NOISE, LOUDNESS = 5, 6, 0.01  # seconds, seconds, standard deviation
HOURS = {True: "With pauses", False: "Without a pause"}


def one_round(endpoint: EndpointPolicy, has_pauses: bool) -> torch.Tensor:
    """Samples `[n]`: each recording, silence and noise; or each with its pauses shortened, and nothing between."""
    recordings = load_recordings(list(TEXTS))
    if not has_pauses:
        return torch.cat([without_pauses(recording, endpoint).samples for recording in recordings])
    generator = torch.Generator().manual_seed(0)
    parts = []
    for recording in recordings:
        noise = LOUDNESS * torch.randn(NOISE * RATE, generator=generator)
        parts += [recording.samples, torch.zeros(SILENCE * RATE), noise]
    return torch.cat(parts)


def listen(stream: Any, samples: torch.Tensor, text: str) -> dict[str, Any]:
    """Push one round, in chunks of 0.1 s, and measure it."""
    began, finals, before = time.process_time(), [], len(stream.stats.finalisation.ready)
    for chunk in samples.split(CHUNK):
        finals += [event for event in stream.push(chunk) if isinstance(event, speech.Final)]
    seconds = time.process_time() - began
    heard = " ".join(final.text for final in finals)
    lags = sorted(list(stream.stats.finalisation.ready)[before:])
    return {
        "finals": len(finals),
        "audio_seconds": len(samples) / RATE,
        "cpu_seconds": seconds,
        "real_time_factor": seconds * RATE / len(samples),
        "final_lag_p90": lags[int(0.9 * (len(lags) - 1))] if lags else None,
        "words": len(heard.split()),
        "word_error_rate": word_errors([text], [heard]),
        "resident_bytes": psutil.Process().memory_info().rss,
    }


def rounds(recognizer: Any, minutes: float, has_pauses: bool) -> Iterator[dict[str, Any]]:
    """Each round of one long stream, and of every `FRESH`-th the CPU seconds of a new one."""
    samples, text = one_round(recognizer.endpoint, has_pauses), " ".join(TEXTS.values())
    count = max(1, round(minutes * 60 * RATE / len(samples)))
    with recognizer.stream() as stream:
        for number in tqdm(range(count), unit="round", desc=HOURS[has_pauses]):
            row = {"has_pauses": has_pauses, **listen(stream, samples, text)}
            if number % FRESH == 0 or number == count - 1:
                with recognizer.stream() as fresh:
                    row["fresh_cpu_seconds"] = listen(fresh, samples, text)["cpu_seconds"]
            yield row
        stream.finish()


def page(result: dict[str, Any]) -> str:
    """The page of a result: a table for each hour."""
    hours = {heading: [row for row in result["rows"] if row["has_pauses"] is had] for had, heading in HOURS.items()}
    seconds = result["rows"][0]["audio_seconds"]
    intro = (
        "Streams of Moonshine tiny with LocalAgreement, by `python -m mmaccel.demos.speech.hour_of_speech`: the same"
        f" speech again and again, with silence and noise between in rounds of {seconds:.0f} s, and without any pause,"
        " where a segment ends because it is too long. Nothing may drift. In CPU seconds; lags are from the end of"
        " speech at a pause and count computing. A new stream heard the same round at the same time. All"
        f" {len(result['rows'])} rounds are in [speech_hour.json](speech_hour.json)."
    )
    return pages.page(result, "An hour of speech", intro, {heading: _table(rows) for heading, rows in hours.items()})


def _table(rows: list[dict[str, Any]]) -> str:
    headings = (
        "minute",
        "CPU s a round",
        "of a new stream",
        "finals",
        "final lag p90, s",
        "words",
        "WER",
        "memory, MiB",
    )
    shown = [i for i, row in enumerate(rows) if "fresh_cpu_seconds" in row]
    lines = [
        (
            f"{sum(r['audio_seconds'] for r in rows[: i + 1]) / 60:.0f}",
            f"{rows[i]['cpu_seconds']:.1f}",
            f"{rows[i]['fresh_cpu_seconds']:.1f}",
            str(rows[i]["finals"]),
            "" if rows[i]["final_lag_p90"] is None else f"{rows[i]['final_lag_p90']:.2f}",
            str(rows[i]["words"]),
            f"{rows[i]['word_error_rate']:.1%}",
            f"{rows[i]['resident_bytes'] / 2**20:.0f}",
        )
        for i in shown
    ]
    return pages.markdown(headings, lines)


def measure(minutes: float) -> dict[str, Any]:
    """Both streams."""
    recognizer = speech.StreamingRecognizer(*speech.load("moonshine-tiny"), timer=time.process_time)
    return results.result(row for had in HOURS for row in rounds(recognizer, minutes, had))


if __name__ == "__main__":
    minutes = {"type": float, "default": 60, "help": "of audio, for each of the two streams"}
    pages.run(__doc__, page, measure, minutes=minutes)
