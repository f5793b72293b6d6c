"""Recordings of human speech with what is said in them, and how many words of a text are wrong."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch

from mmaccel.errors import MissingExtraError

from ..families.adapter import Word
from .audio import SAMPLE_RATE, read_audio

# What is said in the recordings of the package moonshine-voice: Beckett's Worstward Ho, Dickens's A Tale of Two Cities.
TEXTS = {
    "beckett.wav": "Ever tried. Ever failed. No matter. Try again. Fail again. Fail better.",
    "two_cities.wav": (
        "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness,"
        " it was the epoch of belief, it was the epoch of incredulity, it was the season of light, it was the season"
        " of darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had"
        " nothing before us, we were all going direct to heaven, we were all going direct the other way. In short, the"
        " period was so far like the present period that some of its noisiest authorities insisted on its being"
        " received, for good or for evil, in the superlative degree of comparison only."
    ),
}


@dataclass
class Recording:
    """Samples `[n]` at 16 kHz, what is said, and when, for lags: by Moonshine tiny's offline transcript."""

    name: str
    samples: torch.Tensor
    text: str
    words: tuple[Word, ...] = ()


def load_recordings(names: list[str]) -> list[Recording]:
    """The human speech that ships in the package moonshine-voice."""
    found = importlib.util.find_spec("moonshine_voice")
    if found is None or found.origin is None:
        raise MissingExtraError('the recordings come with the speech extra: pip install "mmaccel[speech]"')
    folder = Path(found.origin).parent / "assets"
    return [Recording(name, read_audio(folder / name), TEXTS[name]) for name in names]


def example() -> Recording:
    """Eight seconds of running speech, up to a pause."""
    whole = load_recordings(["two_cities.wav"])[0]
    text = whole.text.partition(", it was the epoch of belief")[0]
    return Recording(whole.name, whole.samples[: round(8.4 * SAMPLE_RATE)], text)


def word_errors(references: list[str], texts: list[str]) -> float:
    """Word error rate as the leaderboards count it: normalised by transformers' `EnglishTextNormalizer`."""
    import jiwer
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    normalize = EnglishTextNormalizer({})
    return float(jiwer.wer([normalize(text) for text in references], [normalize(text) for text in texts]))
