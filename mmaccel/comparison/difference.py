"""Where two outputs differ, for people to see: pictures, and words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from html import escape

import numpy as np
from PIL import Image

from .trial import Shown

FACTOR = 4  # by which a difference map is brighter than the difference
Clip = list[Image.Image]


def difference(one: Image.Image, other: Image.Image) -> Image.Image:
    """The absolute difference of two pictures of one size, brighter by `FACTOR`; black where they are equal.

    Examples
    --------
    >>> grey, darker = Image.new("RGB", (1, 1), (90, 90, 90)), Image.new("RGB", (1, 1), (80, 90, 90))
    >>> difference(grey, darker).getpixel((0, 0))
    (40, 0, 0)
    """
    pixels = np.clip(np.abs(_pixels(one) - _pixels(other)) * FACTOR, 0, 255)
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
    return sorted(rows, key=lambda row: (row[1] == row[2], alike(row[1], row[2])))


def agreement(plain: Sequence[str], other: Sequence[str]) -> tuple[float, float]:
    """The share of texts that are equal, word for word, and the mean of what they have in common.

    Examples
    --------
    >>> agreement(["a", "b c"], ["a", "b d"])
    (0.5, 0.75)
    """
    pairs = list(zip(plain, other, strict=True))
    return sum(one == two for one, two in pairs) / len(pairs), sum(alike(*pair) for pair in pairs) / len(pairs)


def alike(one: str, other: str) -> float:
    """The share of words that two texts have in common, in their order.

    Examples
    --------
    >>> alike("a red heart", "a blue heart")
    0.6666666666666666
    """
    return _matcher(one.split(), other.split()).ratio()


def marked(one: str, other: str) -> tuple[str, str]:
    """Two texts as HTML, with the words that only one of them has in `del` and `ins`.

    Examples
    --------
    >>> marked("a red heart", "a <b> heart")
    ('a <del>red</del> heart', 'a <ins>&lt;b&gt;</ins> heart')
    """
    sides: tuple[list[str], list[str]] = ([], [])
    for before, after, kind in words(one, other):
        for side, piece, tag in zip(sides, map(escape, (before, after)), ("del", "ins"), strict=True):
            side += [piece if kind == "equal" else f"<{tag}>{piece}</{tag}>"] if piece else []
    return " ".join(sides[0]), " ".join(sides[1])


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
