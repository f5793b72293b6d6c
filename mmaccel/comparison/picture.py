"""A comparison as one picture: the table, and the worst pair of each entry."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

from ..files.pictures import BACKGROUND, GAP, INK, enlarged, side_by_side
from .difference import FACTOR, difference, worst_frame, worst_row, worst_texts

if TYPE_CHECKING:
    from .comparison import Comparison, Pair

SIZE, LINE, MARGIN, COLUMN = 15, 22, 16, 18
SOFT = (110, 110, 116)
LETTERS = 110  # of a line of text
MOST_TEXTS = 20  # answers of a batch that are drawn


def draw(comparison: Comparison) -> Image.Image:
    """Table, notes and pairs below each other. Only Latin letters are sure to be drawn."""
    parts = [_table(comparison), *(part for pair in comparison.pairs for part in _pair(comparison, pair))]
    width = max(part.width for part in parts) + 2 * MARGIN
    height = sum(part.height + GAP for part in parts) + 2 * MARGIN
    page, top = Image.new("RGB", (width, height), BACKGROUND), MARGIN
    for part in parts:
        page.paste(part, (MARGIN, top))
        top += part.height + GAP
    return page


def _table(comparison: Comparison) -> Image.Image:
    headings, lines = comparison.table()
    font = ImageFont.load_default(SIZE)
    cells = [headings, *lines]
    widths = [max(font.getlength(line[i]) for line in cells) + COLUMN for i in range(len(headings))]
    notes = [piece for note in comparison.notes() for piece in textwrap.wrap(note, LETTERS)]
    longest = max([sum(widths), *(font.getlength(note) for note in notes)])
    picture = Image.new("RGB", (int(longest) + 1, LINE * (len(cells) + len(notes)) + GAP), BACKGROUND)
    pen = ImageDraw.Draw(picture)
    for number, line in enumerate(cells):
        left = 0.0
        for cell, width in zip(line, widths, strict=True):
            pen.text((left, number * LINE), cell, INK if number else SOFT, font=font)
            left += width
    for number, note in enumerate(notes, len(cells)):
        pen.text((0, number * LINE + GAP), note, INK, font=font)
    return picture


def _pair(comparison: Comparison, pair: Pair) -> Iterator[Image.Image]:
    seeds = comparison.result["header"]["seeds"]
    which = "worst seed" if len(seeds) > 1 else "seed"
    title = f"{pair.label}, {which} {pair.seed}"
    if pair.plain.texts:
        found = worst_texts(pair.plain, pair.other)
        yield _text([title, *(line for row in found[:MOST_TEXTS] for line in _answer(*row))])
    elif pair.plain.clips:
        yield _text([title])
        row = worst_row(pair.plain, pair.other)
        one, other = pair.plain.clips[row], pair.other.clips[row]
        frame = worst_frame(one, other)
        names = ("plain" if len(one) == 1 else f"plain, frame {frame}", pair.label, f"difference x {FACTOR}")
        pictures = (one[frame], other[frame], difference(one[frame], other[frame]))
        yield side_by_side([enlarged(picture) for picture in pictures], names)


def _answer(name: str, plain: str, other: str) -> list[str]:
    return [*([name] if name else []), f"plain: {plain}", f"other: {other}"]


def _text(lines: list[str]) -> Image.Image:
    """Lines of text, broken where they are too long."""
    broken = [piece for line in lines for piece in textwrap.wrap(line, LETTERS) or [""]]
    font = ImageFont.load_default(SIZE)
    width = max(font.getlength(line) for line in broken)
    picture = Image.new("RGB", (int(width) + 1, LINE * len(broken)), BACKGROUND)
    for number, line in enumerate(broken):
        ImageDraw.Draw(picture).text((0, number * LINE), line, INK, font=font)
    return picture
