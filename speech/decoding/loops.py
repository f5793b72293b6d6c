"""Whether a recogniser is in a loop."""

from __future__ import annotations

import zlib

HIGHEST_RATIO = 2.4  # `compression_ratio_threshold` of OpenAI's Whisper


def compression_ratio(text: str) -> float:
    """How many times smaller zlib makes a text: Whisper's sign of a loop (Radford et al., 2022); 0 of no text.

    Each letter is one byte. In UTF-8 those of Tamil or Thai are three, of which two repeat themselves in any sentence.

    Examples
    --------
    >>> compression_ratio("Try again. " * 20) > HIGHEST_RATIO > compression_ratio("Try again. Fail again. Fail better.")
    True
    """
    others = dict.fromkeys(letter for letter in text if not letter.isascii())
    codes = {letter: 128 + place % 128 for place, letter in enumerate(others)}
    data = bytes(codes.get(letter) or ord(letter) for letter in text)
    return len(data) / len(zlib.compress(data)) if data else 0.0


def repeats(text: str) -> bool:
    """Whether a text says the same so often that its recogniser seems to be in a loop."""
    return compression_ratio(text) > HIGHEST_RATIO
