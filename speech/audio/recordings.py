"""Recordings of human speech with what is said in them, and how many words of a text are wrong."""

from __future__ import annotations

import importlib.util
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mmaccel.errors import MissingExtraError, SettingError, WeightsError
from mmaccel.files.foreign_json import read_json

from ..families.adapter import Word
from ..stream.units import letters, units
from .audio import RATE, read_audio

FOLDER = "MMACCEL_RECORDINGS"  # environment variable with a folder of more recordings
PAUSE = 1.0  # seconds between sentences that are joined
MOST_BYTES = 1 << 20  # of their texts
ADVICE = 'write {"one.wav": "what is said in it"} there'
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


def load_folder(folder: Path) -> list[Recording]:
    """The recordings of a folder whose `texts.json` says by file name what is said in each.

    Single sentences make no stream: files whose names begin with the same letters, as those of one voice mostly do,
    are joined, in the order of `texts.json` and with pauses of a second. The letters name the result.

    Raises
    ------
    SettingError
        If `texts.json` or a recording that it names is not there, or it is no object of names and texts.
    """
    voices = defaultdict(list)
    for name, text in _texts(folder / "texts.json").items():
        if not (folder / name).is_file():
            raise SettingError(f"{folder / 'texts.json'} names {name}, which is not in {folder}")
        voices[_letters(name)].append(Recording(name, read_audio(folder / name), text))
    return [_joined(voice, said) for voice, said in voices.items()]


def _texts(path: Path) -> dict[str, str]:
    try:
        found = read_json(path, MOST_BYTES, ADVICE)
    except WeightsError as error:
        raise SettingError(f"the texts of recordings cannot be read: {error}") from error
    if not (isinstance(found, dict) and found and all(isinstance(text, str) for text in found.values())):
        raise SettingError(f"{path} holds no texts by name: {ADVICE}")
    return found


def _letters(name: str) -> str:
    """What a file name begins with.

    Examples
    --------
    >>> _letters("ss0870.wav"), _letters("001.wav")
    ('ss', '001')
    """
    found = re.match("[A-Za-z]+", name)
    return found.group() if found else Path(name).stem


def _joined(name: str, said: list[Recording]) -> Recording:
    pause = torch.zeros(round(PAUSE * RATE))
    samples = torch.cat([part for one in said for part in (one.samples, pause)][:-1])
    return Recording(name, samples, " ".join(one.text for one in said))


def own_recordings() -> list[Recording]:
    """Those of the folder that the environment variable `MMACCEL_RECORDINGS` names; none without it."""
    folder = os.environ.get(FOLDER)
    return load_folder(Path(folder)) if folder else []


def all_recordings() -> list[Recording]:
    """Those of the wheel `moonshine-voice`, and one's own."""
    return [*load_recordings(list(TEXTS)), *own_recordings()]


def example() -> Recording:
    """Eight seconds of running speech, up to a pause."""
    whole = load_recordings(["two_cities.wav"])[0]
    text = whole.text.partition(", it was the epoch of belief")[0]
    return Recording(whole.name, whole.samples[: round(8.4 * RATE)], text)


def word_errors(references: list[str], texts: list[str], english: bool | Sequence[bool] = True) -> float:
    """Share of words that are wrong; in scripts without spaces, of characters.

    English as the leaderboards count it, normalised by transformers' `EnglishTextNormalizer`, which leaves out words
    and vowels of other languages. Of those only case and punctuation do not count. `english` says it of all texts, or
    of each.
    """
    import jiwer
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    normalize, each = EnglishTextNormalizer({}), [english] * len(texts) if isinstance(english, bool) else english

    def words(said: list[str]) -> list[str]:
        return [normalize(text) if one else _apart(text) for text, one in zip(said, each, strict=True)]

    return float(jiwer.wer(words(references), words(texts)))


def _apart(text: str) -> str:
    """The units of a text without case and punctuation, with spaces between them."""
    return " ".join(filter(None, map(letters, units(unicodedata.normalize("NFC", text)))))
