"""What a second hearing changes: texts that look like a loop, and short segments with what is before them.

    python -m mmaccel.demos.speech.heard_again --output docs/benchmarks/long/speech_heard_again

Whole transcripts of the recordings of `mmaccel bench speech --full`, clean and in noise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from tqdm import tqdm

from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.speech.audio.recordings import Recording, all_recordings
from mmaccel.speech.decoding import loops
from mmaccel.speech.families.adapter import Encoded
from mmaccel.speech.families.weights import load
from mmaccel.speech.stream.recognizer import StreamingRecognizer
from mmaccel.speech.stream.transcribe import transcribe_samples

from .altered_recordings import in_noise
from .cuts import REJOIN, figures
from .listening import LOUD, SEED

MODELS = ("moonshine-tiny", "whisper-tiny.en")
INTRO = """
Word error rates of whole transcripts where nothing is heard again (*once*), where texts that compress more than
{ratio:g} times are, with all that the encoder can be given (*loops again*, the default), and where short segments are
decoded with those before them up to {rejoin:g} s as well (*rejoined*, `StreamingRecognizer(rejoin={rejoin:g})`). By
`python -m mmaccel.demos.speech.heard_again` on {seconds:.0f} s of human speech, {words} words: {names}; those that are
no file of the wheel `moonshine-voice` are of a folder that is not shipped. *Noise* is pink, {loud} dB quieter than the
speech. In brackets processor seconds for each second of audio, on a machine that others used too. What
Moonshine's encoder is given is always all, so that a loop of it stays. The rows, with the errors of each recording, are
in [speech_heard_again.json](speech_heard_again.json).
"""


class Once(StreamingRecognizer):
    """A recogniser that hears nothing again."""

    def _encode_in_full(self, samples: torch.Tensor) -> Encoded | None:
        return None


# By their names: what hears, and seconds that are decoded together.
WAYS: dict[str, tuple[type[StreamingRecognizer], float]] = {
    "once": (Once, 0.0),
    "loops again": (StreamingRecognizer, 0.0),
    "rejoined": (StreamingRecognizer, REJOIN),
}


def conditions() -> dict[str, list[Recording]]:
    """All recordings, clean and in noise."""
    clean = all_recordings()
    return {"clean": clean, "noise": [in_noise(one, LOUD, SEED) for one in clean]}


def rows(names: tuple[str, ...], heard: dict[str, list[Recording]]) -> Iterator[dict[str, Any]]:
    """A row for each model, way and condition."""
    for name in names:
        model, processor = load(name)
        for condition, recordings in heard.items():
            for way, (kind, rejoin) in WAYS.items():
                asr = kind(model, processor, rejoin=rejoin, timer=time.process_time)
                found = [transcribe_samples(one.samples, asr) for one in recordings]
                yield {"model": name, "condition": condition, "way": way, **figures(recordings, found)}


def page(result: dict[str, Any]) -> str:
    """The page of a result: a line for each model and condition."""
    first = result["rows"][0]
    facts = {"seconds": first["audio_seconds"], "words": first["words"]}
    names = ", ".join(f"`{name}`" for name in first["errors"])
    intro = INTRO.format(ratio=loops.HIGHEST_RATIO, rejoin=REJOIN, names=names, loud=LOUD, **facts)
    cells: dict[tuple[str, str], list[str]] = {}
    for row in result["rows"]:
        cell = f"{row['word_error_rate']:.1%} ({row['real_time_factor']:.2f})"
        cells.setdefault((row["model"], row["condition"]), []).append(cell)
    table = pages.markdown(("model", "speech", *WAYS), [[*key, *found] for key, found in cells.items()])
    return pages.page(result, "What hearing again changes", intro, {"Word errors": table})


def measure() -> dict[str, Any]:
    """Every model and condition."""
    return results.result(tqdm(rows(MODELS, conditions()), unit="row"))


if __name__ == "__main__":
    pages.run(__doc__, page, measure)
