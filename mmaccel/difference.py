"""Where two outputs differ, for people to see: pictures, and words."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

import numpy as np
from PIL import Image

from .comparing import Shown

FACTOR = 4  # by which a difference map is brighter than the difference
Clip = list[Image.Image]


def difference(one: Image.Image, other: Image.Image, factor: float = FACTOR) -> Image.Image:
    """The absolute difference of two pictures of one size, brighter by `factor`; black where they are equal.

    Examples
    --------
    >>> grey, darker = Image.new("RGB", (1, 1), (90, 90, 90)), Image.new("RGB", (1, 1), (80, 90, 90))
    >>> difference(grey, darker).getpixel((0, 0))
    (40, 0, 0)
    """
    pixels = np.clip(np.abs(_pixels(one) - _pixels(other)) * factor, 0, 255)
    return Image.fromarray(pixels.astype(np.uint8))


def worst_row(plain: Shown, other: Shown) -> int:
    """The row of a batch whose pictures differ most."""
    errors = [sum(_errors(one, two)) for one, two in zip(plain.clips, other.clips, strict=True)]
    return int(np.argmax(errors))


def worst_frame(one: Clip, other: Clip) -> int:
    """The frame at which two clips differ most."""
    return int(np.argmax(_errors(one, other)))


def worst_texts(plain: Shown, other: Shown) -> list[tuple[str, str, str]]:
    """Name, plain text and other text of each row, those first that share the fewest words.

    Examples
    --------
    >>> worst_texts(Shown(texts=["a", "b c"]), Shown(texts=["a", "b d"]))
    [('', 'b c', 'b d'), ('', 'a', 'a')]
    """
    names = plain.names if len(plain.names) == len(plain.texts) else [""] * len(plain.texts)
    rows = list(zip(names, plain.texts, other.texts, strict=True))
    return sorted(rows, key=lambda row: (row[1] == row[2], _matcher(row[1].split(), row[2].split()).ratio()))


def words(one: str, other: str) -> Iterator[tuple[str, str, str]]:
    """What becomes of the words of a text: pieces of the one, of the other, and ``"equal"`` or what happened.

    Examples
    --------
    >>> list(words("a red heart", "a blue heart"))
    [('a', 'a', 'equal'), ('red', 'blue', 'replace'), ('heart', 'heart', 'equal')]
    """
    before, after = one.split(), other.split()
    for kind, i, j, k, n in _matcher(before, after).get_opcodes():
        yield " ".join(before[i:j]), " ".join(after[k:n]), kind


def _matcher(before: list[str], after: list[str]) -> SequenceMatcher[str]:
    return SequenceMatcher(None, before, after, autojunk=False)


def _errors(one: Clip, other: Clip) -> list[float]:
    return [float(np.abs(_pixels(a) - _pixels(b)).mean()) for a, b in zip(one, other, strict=True)]


def _pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.convert("RGB"), np.float32)
