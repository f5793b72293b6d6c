"""A small world of printed pages: titles, headings, paragraphs, lists, tables, and figures with captions.

Everything is set in one typewriter face, DejaVu Sans Mono, whose glyphs come with the model as a picture, so that no
font is needed. What a page says in Markdown is one text, in reading order. Every seventh word is an invented name, so
that letters have to be read and cannot be guessed from a list of words.

Example
-------
>>> from mmaccel import zoo
>>> (page,) = zoo.pages("tiny-reader", 1)  # drawn with the glyphs of the model
>>> page.text.splitlines()[0]
'# Zuhik shop flour storm'
>>> page.picture.shape
(256, 224, 3)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .page_words import some_words

CELL_HEIGHT, CELL_WIDTH = 16, 8  # pixels of one letter
ROWS, COLUMNS = 16, 28  # letters of a page, down and across
CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:%•"
FIGURES = ("bars", "line", "pie")
FIGURE_ROWS, FIGURE_COLUMNS = 3, 12
BETWEEN = "\n\n"  # regions
INKS = ((20, 20, 20), (30, 40, 90), (60, 30, 30))
PAPERS = ((255, 255, 255), (250, 246, 236), (238, 242, 248))

Place = tuple[int, int]  # row and column of a letter


@dataclass
class PageRegion:
    """A part of a page: its kind, and what it says piece by piece.

    A piece is a text and where its first letter is printed; None for marks of Markdown, which are not printed.
    """

    kind: str
    pieces: list[tuple[str, Place | None]] = field(default_factory=list)
    bullets: list[Place] = field(default_factory=list)
    figure: tuple[str, Place] | None = None
    rules: list[tuple[Place, Place]] = field(default_factory=list)  # lines of a table, between corners of letters

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom in pixels, in whole patches of 16."""
        places = [(row, column + end) for text, place in self.pieces if place for row, column in [place]
                  for end in (0, len(text))] + self.bullets  # fmt: skip
        if self.figure:
            row, column = self.figure[1]
            places += [(row, column), (row, column + FIGURE_COLUMNS)]
        places += [(place[0], corner[1] + side) for place in places[:1] for line in self.rules
                   for side, corner in enumerate(line)]  # fmt: skip
        rows, columns = zip(*places, strict=True)
        left, right = min(columns) // 2 * 2, -(-max(columns) // 2) * 2
        return left * CELL_WIDTH, min(rows) * CELL_HEIGHT, right * CELL_WIDTH, (max(rows) + 1) * CELL_HEIGHT


@dataclass(frozen=True, eq=False)
class Page:
    """One drawn page, uint8 `[H, W, 3]`, and its regions in reading order."""

    picture: np.ndarray
    regions: tuple[PageRegion, ...]

    @property
    def text(self) -> str:
        """All of it as Markdown."""
        return BETWEEN.join(region.text for region in self.regions)

    @property
    def pieces(self) -> Iterator[tuple[str, Place | None]]:
        """Those of all regions, with what stands between them."""
        for number, region in enumerate(self.regions):
            if number:
                yield BETWEEN, None
            yield from region.pieces


def draw_page(
    seed: int | list[int],
    glyphs: np.ndarray,
    rows: int = ROWS,
    columns: int = COLUMNS,
    alone: bool = False,
    held_out: bool = False,
) -> Page:
    """A page of so many letters, a pure function of its arguments.

    `alone` is one region from edge to edge. All names of a page `held_out` are among those never trained on.
    """
    rng = np.random.default_rng(seed)
    words = some_words(rng, held_out)
    if alone:
        regions = [_region(rng, words, 0, int(rng.integers(2)), rows, columns)]
    else:
        regions = _layout(rng, words, rows, columns)
    return Page(_printed(rng, glyphs, regions, rows, columns), tuple(regions))


def _layout(rng: np.random.Generator, words: Iterator[str], rows: int, columns: int) -> list[PageRegion]:
    """Regions from top to bottom, one empty row between them."""
    row, left = int(rng.integers(2)), int(rng.integers(1, 3))
    regions: list[PageRegion] = []
    if rng.random() < 0.8:
        regions.append(_title(rng, words, row, left, 1, columns - 1))
        row += 2
    while rows - row >= 2:
        region = _region(rng, words, row, left, rows - row, columns - 1, sum(r.kind == "figure" for r in regions))
        regions.append(region)
        row = region.box[3] // CELL_HEIGHT + 1
    return regions


def _region(
    rng: np.random.Generator, words: Iterator[str], row: int, left: int, room: int, right: int, before: int = 0
) -> PageRegion:
    """One that fits between `left` and `right`, with at most `room` rows."""
    kinds: list[tuple[Callable[..., PageRegion], float]] = [(_paragraph, 4), (_list, 2), (_heading, 2)]
    if room >= 2 and right - left >= 17:
        kinds.append((_table, 2.5))
    if room >= FIGURE_ROWS + 1 and right - left >= 18 and before < 2:
        kinds.append((_figure, 2))
    if room <= 1:
        kinds += [(_title, 2)]
    chances = np.array([chance for _, chance in kinds])
    kind = kinds[rng.choice(len(kinds), p=chances / chances.sum())][0]
    return kind(rng, words, row, left, room, right)


def _said(words: Iterator[str], width: int, most: int = 9) -> str:
    """As many words as fit, at least a part of one."""
    line = ""
    for _ in range(most):
        word = next(words)
        if len(line) + len(word) + bool(line) > width:
            return line or word[:width]
        line = f"{line} {word}" if line else word
    return line


def _title(rng: np.random.Generator, words: Iterator[str], row: int, left: int, room: int, right: int) -> PageRegion:
    return PageRegion("title", [("# ", None), (_upper(_said(words, right - left, 4)), (row, left))])


def _heading(rng: np.random.Generator, words: Iterator[str], row: int, left: int, room: int, right: int) -> PageRegion:
    return PageRegion("heading", [("## ", None), (_upper(_said(words, right - left, 4)), (row, left))])


def _paragraph(
    rng: np.random.Generator, words: Iterator[str], row: int, left: int, room: int, right: int
) -> PageRegion:
    """Lines of words, the last of them short, with the marks of sentences."""
    region = PageRegion("paragraph")
    count = int(rng.integers(1, 1 + min(5, room)))
    upper = True
    for i in range(count):
        last = i == count - 1
        width = right - left - 1
        line = _said(words, int(rng.integers(width // 2, width)) if last and count > 1 else width)
        line, upper = _upper(line) if upper else line, False
        if last or rng.random() < 0.3:
            line, upper = f"{line}{rng.choice(list('...:,')) if not last else '.'}", not last
        if i:
            region.pieces.append(("\n", None))
        region.pieces.append((line, (row + i, left)))
    return region


def _list(rng: np.random.Generator, words: Iterator[str], row: int, left: int, room: int, right: int) -> PageRegion:
    region = PageRegion("list")
    for i in range(int(rng.integers(1, 1 + min(4, room)))):
        region.pieces.append(("\n- " if i else "- ", None))
        region.pieces.append((_said(words, right - left - 2, 4), (row + i, left + 2)))
        region.bullets.append((row + i, left))
    return region


def _table(rng: np.random.Generator, words: Iterator[str], row: int, left: int, room: int, right: int) -> PageRegion:
    """A row of names, and rows of a word and of numbers."""
    count = int(rng.integers(2, 4)) if right - left >= 24 else 2
    lines = int(rng.integers(2, 1 + min(5, room)))
    widths = [9, 6, 6][:count]
    starts = [left + 1 + sum(widths[:i]) + i for i in range(count)]
    region = PageRegion("table")
    for i in range(lines):
        for j in range(count):
            said = _said(words, widths[j] - 1, 1) if i == 0 or j == 0 else _number(rng)
            region.pieces += [("| " if j == 0 else " | ", None), (said, (row + i, starts[j]))]
        region.pieces.append((" |" if i == lines - 1 else " |\n", None))
        if i == 0:
            region.pieces.append(("| " + " | ".join(["---"] * count) + " |\n", None))
    edge = starts[-1] + widths[-1]
    region.rules = [((row + i, left), (row + i, edge)) for i in range(lines + 1) if i <= 1 or i == lines]
    region.rules += [((row, x), (row + lines, x)) for x in (*[start - 1 for start in starts], edge)]
    return region


def _figure(rng: np.random.Generator, words: Iterator[str], row: int, left: int, room: int, right: int) -> PageRegion:
    """A picture, and its caption below."""
    kind = FIGURES[rng.integers(len(FIGURES))]
    caption = f"Figure {rng.integers(1, 10)}: {_said(words, right - left - 10, 3)}"
    place = (row, left + int(rng.integers(0, right - left - FIGURE_COLUMNS + 1)) // 2 * 2)
    pieces = [(f"![{kind}](figure)\n", None), (caption, (row + FIGURE_ROWS, left))]
    return PageRegion("figure", pieces, figure=(kind, place))


def _number(rng: np.random.Generator) -> str:
    value = int(rng.integers(10 ** int(rng.integers(1, 4))))
    return [str(value), f"{value}%", f"{value / 10:.1f}"][rng.choice(3, p=(0.6, 0.2, 0.2))]


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _printed(
    rng: np.random.Generator, glyphs: np.ndarray, regions: list[PageRegion], rows: int, columns: int
) -> np.ndarray:
    """The picture: ink on paper, moved by up to a pixel, with a little noise."""
    paper, ink = np.array(PAPERS[rng.integers(len(PAPERS))]), np.array(INKS[rng.integers(len(INKS))])
    shape = (rows * CELL_HEIGHT, columns * CELL_WIDTH)
    cover, band = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for region in regions:
        bold = region.kind in ("title", "heading")
        for text, place in region.pieces:
            if place:
                _print(cover, glyphs[int(bold)], text, place)
        for place in region.bullets:
            _print(cover, glyphs[0], "•", place)
        if region.figure:
            _draw_figure(rng, cover, *region.figure)
        for (top, left), (bottom, right) in region.rules:
            down, across = slice(top * 16, max(top * 16 + 1, bottom * 16)), slice(left * 8 + 3, right * 8 + 4)
            cover[down, across if bottom == top else slice(left * 8 + 3, left * 8 + 4)] = 0.5
        if region.kind == "title":
            band[region.box[1] : region.box[3]] = 1
    cover, band = np.roll(cover, rng.integers(-1, 2, 2), (0, 1))[..., None], band[..., None]
    share = np.abs(band - cover)  # of ink; a title is printed in paper on ink
    noise = rng.standard_normal((*shape, 1), np.float32) * np.float32(rng.uniform(0, 6))
    picture = paper.astype(np.float32) + (ink - paper).astype(np.float32) * share + noise
    return picture.round().clip(0, 255).astype(np.uint8)


def _print(cover: np.ndarray, glyphs: np.ndarray, text: str, place: Place) -> None:
    top, left = place[0] * CELL_HEIGHT, place[1] * CELL_WIDTH
    for i, letter in enumerate(text):
        if letter != " ":
            x = left + i * CELL_WIDTH
            glyph = glyphs[CHARACTERS.index(letter)]
            np.maximum(view := cover[top : top + CELL_HEIGHT, x : x + CELL_WIDTH], glyph[:, : view.shape[1]], out=view)


def _draw_figure(rng: np.random.Generator, cover: np.ndarray, kind: str, place: Place) -> None:
    height, width = FIGURE_ROWS * CELL_HEIGHT, FIGURE_COLUMNS * CELL_WIDTH
    image = Image.new("L", (width, height))
    pen = ImageDraw.Draw(image)
    pen.rectangle((1, 1, width - 2, height - 3), outline=120)
    heights = rng.uniform(0.2, 0.9, 6) * (height - 8)
    points = [(10 + 15 * i, height - 5 - float(h)) for i, h in enumerate(heights)]
    if kind == "bars":
        for x, y in points:
            pen.rectangle((x - 4, y, x + 4, height - 5), fill=200)
    elif kind == "line":
        pen.line(points, fill=255, width=2)
    else:
        box, turn = (width // 2 - 19, 4, width // 2 + 19, 42), int(rng.integers(360))
        pen.ellipse(box, outline=255)
        pen.pieslice(box, turn, turn + int(rng.integers(60, 200)), fill=200)
    top, left = place[0] * CELL_HEIGHT, place[1] * CELL_WIDTH
    cover[top : top + height, left : left + width] = np.asarray(image, np.float32) / 255


def glyphs_of(regular: str, bold: str) -> np.ndarray:
    """Glyphs of two fonts, float32 `[2, len(CHARACTERS), 16, 8]`."""
    sheets = []
    for path in (regular, bold):
        font = ImageFont.truetype(path, 13)
        for letter in CHARACTERS:
            image = Image.new("L", (CELL_WIDTH, CELL_HEIGHT))
            ImageDraw.Draw(image).text((0, 12), letter, 255, font, anchor="ls")
            sheets.append(np.asarray(image, np.float32) / 255)
    return np.stack(sheets).reshape(2, len(CHARACTERS), CELL_HEIGHT, CELL_WIDTH)
