"""A light pipeline that errs on a share of the words: what a page says, with the mistakes that recognisers make."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

ALIKE = dict(zip("oalicenhvugs015", "0e1lecunyvq5OIS", strict=True))  # letters, and what they are taken for
LETTERS = "etaoinshr"
WORD = re.compile(r"[^\s|#*!()\[\]-]+")  # without the marks of Markdown


def misread(regions: Sequence[tuple[Any, str]], wrong: float, seed: int = 0) -> list[tuple[Any, str]]:
    """Regions of which each word is wrong with a probability: a letter mistaken, left out or doubled.

    Examples
    --------
    >>> misread([((0, 0, 9, 9), "# Winter market")], wrong=1, seed=1)[0][1] != "# Winter market"
    True
    """
    rng = random.Random(seed)
    return [(box, WORD.sub(lambda found: _misread(found[0], wrong, rng), text)) for box, text in regions]


def _misread(word: str, wrong: float, rng: random.Random) -> str:
    if rng.random() >= wrong:
        return word
    at = rng.randrange(len(word))
    letter = word[at]
    other = ALIKE.get(letter) or rng.choice(LETTERS.replace(letter, ""))
    return word[:at] + rng.choice((other, other, "", letter * 2)) + word[at + 1 :]
