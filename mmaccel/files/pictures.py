"""Pictures for people: enlarged, with lines above, in rows, and on disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from PIL import ExifTags, Image, ImageDraw, ImageFont

from ..errors import PromptError, SettingError
from .endings import PICTURES

SMALLEST = 256  # pictures of small models are enlarged to this side, so that a person can see them
SIZE, LINE, MARGIN, GAP = 15, 20, 5, 8
BAR = LINE + 2 * MARGIN  # above a picture whose text is one line
BACKGROUND, INK = (250, 250, 250), (30, 30, 30)
READ = ("PNG", "JPEG", "WEBP", "BMP")
# What shows a picture upright, by the orientation in its EXIF data.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # what PIL raises for damaged files


def read_picture(path: Path) -> Image.Image:
    """A picture of a file, in RGB, upright.

    Raises
    ------
    PromptError
        If there is no such file, or it is no picture.
    """
    try:
        with Image.open(path, formats=READ) as picture:
            return upright(picture)
    except FileNotFoundError as error:
        raise PromptError(f"there is no file {path}: give a picture, or --example for a shipped one") from error
    except UNREADABLE as error:
        raise PromptError(f"{path} is no picture that can be read ({', '.join(READ)}): {error}") from error


def upright(picture: Image.Image) -> Image.Image:
    """A picture in RGB, turned as its EXIF data says: cameras store photographs as they held them."""
    turn = TURNS.get(picture.getexif().get(ExifTags.Base.Orientation, 1))  # PIL's own writes all of the data anew
    shown = on_white(picture if turn is None else picture.transpose(turn))
    for told in ("exif", "xmp", "Raw profile type exif"):  # or whoever reads it turns the picture once more
        shown.info.pop(told, None)
    return shown


def on_white(picture: Image.Image) -> Image.Image:
    """A picture in RGB; what is transparent is white, as processors of transformers show it to models.

    The colour behind is mostly black, and so would ink on a transparent ground be black on black.

    Examples
    --------
    >>> on_white(Image.new("RGBA", (1, 1))).getpixel((0, 0))
    (255, 255, 255)
    """
    if picture.mode.startswith("I"):
        picture = _of_eight_bits(picture)
    if (picture.mode != "P" or picture.palette) and picture.has_transparency_data:  # a file may have no palette
        ground = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(ground, picture.convert("RGBA"))
    return picture.convert("RGB")


def _of_eight_bits(picture: Image.Image) -> Image.Image:
    """A grey picture of 16 bits, as scans are, by its higher ones: PIL shows all above 255 as white."""
    whole = picture.convert("I")
    higher = whole.point(lambda value: value * (1 / 256))
    grey = whole if picture.mode == "I" and higher.getbbox() is None else higher  # 32 bits may hold 8
    grey.info.pop("transparency", None)  # a shade of 16 bits
    return grey.convert("L")


def check_format(path: str | Path) -> None:
    """Raise a `SettingError` for a file name with no known picture format, before any work is done."""
    if Path(path).suffix.lower() not in PICTURES:
        raise SettingError(f"cannot write a picture as {Path(path).name!r}: end the name with {', '.join(PICTURES)}")


def enlarged(picture: Image.Image) -> Image.Image:
    """At least `SMALLEST` pixels wide, by a whole factor."""
    factor = -(-SMALLEST // max(1, picture.width))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.BICUBIC)


def headed(picture: Image.Image, text: str) -> Image.Image:
    """A picture with text above it, in as many lines as it needs."""
    return _under(picture, wrapped(text, picture.width))


def side_by_side(pictures: Sequence[Image.Image], texts: Sequence[str]) -> Image.Image:
    """Pictures of equal size in a row at one height, each with the whole of its text above."""
    lines = [wrapped(text, picture.width) for picture, text in zip(pictures, texts, strict=True)]
    most = max(map(len, lines))
    columns = [_under(p, above + [""] * (most - len(above))) for p, above in zip(pictures, lines, strict=True)]
    return sheet(columns, len(columns))


def wrapped(text: str, width: int) -> list[str]:
    """Lines of text that are no wider than a picture: broken between words and behind brackets, else between letters.

    Examples
    --------
    >>> wrapped("one line", 200), wrapped("two lines", 50)
    (['one line'], ['two', 'lines'])
    """
    font, room = ImageFont.load_default(SIZE), width - 2 * MARGIN
    lines = [""]
    for piece in re.findall(r"\s*[^\s(]+\(?|\(", text):
        if font.getlength(lines[-1] + piece) <= room:
            lines[-1] += piece
            continue
        lines += [""] if lines[-1] else []
        for letter in piece.strip():
            if lines[-1] and font.getlength(lines[-1] + letter) > room:
                lines.append("")
            lines[-1] += letter
    return lines


def _under(picture: Image.Image, lines: list[str]) -> Image.Image:
    bar = BAR + LINE * (len(lines) - 1)
    framed = Image.new("RGB", (picture.width, picture.height + bar), BACKGROUND)
    pen, font = ImageDraw.Draw(framed), ImageFont.load_default(SIZE)
    for number, line in enumerate(lines):
        pen.text((MARGIN, MARGIN + LINE * number + LINE // 2), line, INK, font=font, anchor="lm")
    framed.paste(picture, (0, bar))
    return framed


def sheet(pictures: Sequence[Image.Image], columns: int) -> Image.Image:
    """Pictures in rows of `columns`, with a gap between them; smaller ones begin at the top left of their cell."""
    width, height = max(picture.width for picture in pictures), max(picture.height for picture in pictures)
    rows = -(-len(pictures) // columns)
    page = Image.new("RGB", (columns * (width + GAP) - GAP, rows * (height + GAP) - GAP), BACKGROUND)
    for i, picture in enumerate(pictures):
        page.paste(picture, ((i % columns) * (width + GAP), (i // columns) * (height + GAP)))
    return page
