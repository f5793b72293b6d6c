"""Pictures for people: enlarged, with a line above, and in rows."""

from __future__ import annotations

from PIL import Image, ImageDraw, ImageFont

SMALLEST = 256  # pictures of small models are enlarged to this side, so that a person can see them
BAR, GAP = 30, 8
BACKGROUND, INK = (250, 250, 250), (30, 30, 30)


def enlarged(picture: Image.Image) -> Image.Image:
    """At least `SMALLEST` pixels wide, by a whole factor."""
    factor = -(-SMALLEST // max(1, picture.width))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.BICUBIC)


def column(pictures: list[Image.Image]) -> Image.Image:
    """Pictures of equal width below each other."""
    return sheet(pictures, 1) if len(pictures) > 1 else pictures[0]


def headed(picture: Image.Image, text: str) -> Image.Image:
    """A picture with a line of text above it."""
    size = 15
    while ImageFont.load_default(size).getlength(text) > picture.width - 8 and size > 9:
        size -= 1
    font = ImageFont.load_default(size)
    framed = Image.new("RGB", (picture.width, picture.height + BAR), BACKGROUND)
    ImageDraw.Draw(framed).text((4, BAR // 2), text, INK, font=font, anchor="lm")
    framed.paste(picture, (0, BAR))
    return framed


def sheet(pictures: list[Image.Image], columns: int) -> Image.Image:
    """Pictures in rows of `columns`, with a gap between them."""
    width, height = pictures[0].size
    rows = -(-len(pictures) // columns)
    page = Image.new("RGB", (columns * (width + GAP) - GAP, rows * (height + GAP) - GAP), BACKGROUND)
    for i, picture in enumerate(pictures):
        page.paste(picture, ((i % columns) * (width + GAP), (i // columns) * (height + GAP)))
    return page
