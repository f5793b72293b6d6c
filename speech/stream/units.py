"""Texts as units that a stream commits one by one: words, or characters in scripts without spaces."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import accumulate, pairwise

import numpy as np

# Of Chinese and Japanese, which put no spaces at all; Thai, Lao, Khmer and Burmese put them between phrases.
_NEVER = "\u3005-\u3007\u3021-\u3029\u3031-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_NO_SPACES = rf"{_NEVER}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_OPENS = "(\\[\uff08\u2018\u201c\u3008\u300a\u300c\u300e\u3010\u3014\u3016\u3018\u301d"  # what no line ends with
# Before a character comes what opens, and behind it what belongs to it: marks, and closing punctuation.
_CHARACTER = rf"[{_OPENS}]*[{_NO_SPACES}]"
_UNIT = re.compile(rf"\s*(?:{_CHARACTER}[^\s\w{_OPENS}]*|[^\s{_NO_SPACES}]+?(?={_CHARACTER}|\s|$))")
_UNSPACED = re.compile(f"[{_NO_SPACES}]")
_SOLID = re.compile(f"[{_NEVER}]")
# A mark that ends a sentence, with what may close behind it; three dots are one that is broken off.
_ENDS = ".?!\u3002\uff1f\uff01\u0964\u061f\u06d4\u0589\u1362\u104b\u17d4"
_CLOSES = "\"'\u2018\u2019\u201c\u201d\u00ab\u00bb\u2039\u203a\u300b\u300d\u300f\uff09)\\]"  # German: with 201c or 00ab
_SENTENCE = re.compile(rf"(?<!\.\.)[{_ENDS}](?:[{_CLOSES}]|\s[\u00bb\u203a])*\s*$")
# Units that are marks alone, as French has them behind and before a space.
_CLOSING = re.compile(r"\s*[?!:;%\u20ac\u00bb\u203a]+[^\s\w]*")
_OPENING = re.compile(r"\s*[\u00ab\u2039]+")


def units(text: str) -> list[str]:
    """The units of a text, each with the space before it: put together they give the text.

    Examples
    --------
    >>> units("Try again.")
    ['Try', ' again.']
    >>> units("\u4f60\u597d\u3002")
    ['\u4f60', '\u597d\u3002']
    """
    return _UNIT.findall(text.strip())


def is_unspaced(text: str) -> bool:
    """Whether a text has characters of scripts without spaces.

    Examples
    --------
    >>> is_unspaced("Try \u4f60"), is_unspaced("Try again.")
    (True, False)
    """
    return _UNSPACED.search(text) is not None


@cache
def _columns_of(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def columns(text: str) -> int:
    """Columns that a text takes: most letters of Chinese, Japanese and Korean two, marks on a letter none.

    Examples
    --------
    >>> columns("Try"), columns("\u4f60\u597d"), columns("\u0e17\u0e35\u0e48")
    (3, 4, 1)
    """
    return sum(map(_columns_of, text))


def letters(text: str, kept: str = "") -> str:
    """The letters and numbers of a text, with the marks on them such as Hindi's vowels, and all of `kept`; no case.

    Examples
    --------
    >>> letters(" Don't!"), letters(" Don't!", kept="'")
    ('dont', "don't")
    """
    small = text.casefold().replace("i\u0307", "i")  # what becomes of a Turkish capital I with its dot
    return "".join(one for one in small if unicodedata.category(one)[0] in "LMN" or one in kept)


def plain(unit: str) -> str:
    """A unit without case, spaces and punctuation, by which units are compared.

    Examples
    --------
    >>> plain(" Again.") == plain("again")
    True
    """
    return letters(unit) or unit.strip()


def same(left: str, right: str) -> bool:
    """Whether two units are the same word."""
    return plain(left) == plain(right)


def behind(before: str, unit: str) -> str:
    """A unit that goes on behind another, with a space between them where their scripts have spaces.

    Examples
    --------
    >>> behind(" Again.", "Fail"), behind("\u597d", "\u4f60")
    (' Fail', '\u4f60')
    """
    spaced = not (unit[:1].isspace() or is_unspaced(unit) or is_unspaced(before))
    return f" {unit}" if spaced else unit


def joined_text(texts: Iterable[str]) -> str:
    """Texts that follow each other with a pause, as one; empty ones leave no gap.

    Examples
    --------
    >>> joined_text([]), joined_text(["Try again.", "", "Fail."]), joined_text(["\u4f60\u597d", "\u4e16\u754c\u3002"])
    ('', 'Try again. Fail.', '\u4f60\u597d\u4e16\u754c\u3002')
    """
    told = [text for text in texts if text.strip()]
    ends = [[_SOLID.search(said[place]) for place in (0, -1)] for said in map(units, told)]
    gaps = ["" if before[1] or after[0] else " " for before, after in pairwise(ends)]
    return "".join(gap + text.strip() for gap, text in zip(["", *gaps], told, strict=False))


def ends_sentence(text: str) -> bool:
    """Whether a text ends like a sentence.

    Examples
    --------
    >>> ends_sentence("Try again."), ends_sentence("Try again,"), ends_sentence("Try...")
    (True, False, False)
    """
    return _SENTENCE.search(text) is not None


def unbroken(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Spans of units that stay on one line: a mark behind a space, as in French, and the word that it belongs to.

    Examples
    --------
    >>> unbroken(["\u00ab", " Encore", " une", " fois", " !", " \u00bb", " dit", " -il"])
    [(0, 2), (2, 3), (3, 6), (6, 7), (7, 8)]
    """
    found: list[tuple[int, int]] = []
    for place, text in enumerate(texts):
        if found and (_CLOSING.fullmatch(text) or _OPENING.fullmatch(texts[place - 1])):
            found[-1] = found[-1][0], place + 1
        else:
            found.append((place, place + 1))
    return found


def last_words(text: str, characters: int) -> str:
    """The end of a text, whole words; half a word in its context can send a model into a loop.

    Examples
    --------
    >>> last_words("it was the best of times", 15)
    'best of times'
    """
    if len(text) <= characters:
        return text
    room = characters
    for unit in reversed(units(text)):
        if len(unit) > room:
            break
        room -= len(unit)
    return text[len(text) - characters + room :].strip()


def covered(known: Sequence[str], heard: Sequence[str]) -> int:
    """How many units at the start of `heard` stand for all of `known`, by the least edits of characters.

    A hypothesis that writes a word differently, or as two, than what was committed must neither repeat nor lose the
    words behind it.

    Examples
    --------
    >>> covered(["no", " matter"], ["No", " matter,", " try"])
    2
    >>> covered(["ice", " cream"], ["icecream", " is", " good"])
    1
    """
    alike = 0
    while alike < min(len(known), len(heard)) and same(known[alike], heard[alike]):
        alike += 1
    if alike == len(known):
        return alike
    rest = [plain(unit) for unit in heard[alike:]]
    edits = _edits("".join(map(plain, known[alike:])), "".join(rest))
    ends = list(accumulate(map(len, rest), initial=0))
    best = min(range(len(ends)), key=lambda place: (edits[ends[place]], abs(place - len(known) + alike)))
    return alike + best


def _edits(known: str, heard: str) -> list[int]:
    """Least edits that make `known` each of the beginnings of `heard` (Levenshtein, 1965)."""
    places = np.arange(len(heard) + 1)
    characters, row = np.array([*heard]), places
    for count, character in enumerate(known, 1):
        changed = np.minimum(row[:-1] + (characters != character), row[1:] + 1)
        # a letter more than at the place before, wherever that is less
        row = places + np.minimum.accumulate(np.concatenate([[count], changed]) - places)
    return [int(edits) for edits in row]


def blocks(known: Sequence[str], heard: Sequence[str]) -> list[tuple[int, int, int]]:
    """Runs of units that two texts share, in order: where they begin in each, and how long they are.

    Examples
    --------
    >>> blocks(["a", " b", " c"], ["a", " x", " c"])
    [(0, 0, 1), (2, 2, 1)]
    """
    matcher = SequenceMatcher(None, [plain(unit) for unit in known], [plain(unit) for unit in heard], autojunk=False)
    return [(block.a, block.b, block.size) for block in matcher.get_matching_blocks() if block.size]


def matches(known: Sequence[str], heard: Sequence[str]) -> list[tuple[int, int]]:
    """Places of the units that two texts share, in order.

    Examples
    --------
    >>> matches(["a", " b", " c"], ["a", " c"])
    [(0, 0), (2, 1)]
    """
    return [(first + i, second + i) for first, second, size in blocks(known, heard) for i in range(size)]
