"""Write a sheet of pages and the model card of `tiny-reader` beside its weights.

Pages are read by the model as `zoo.load` gives it, one held-out page after the other, none picked::

    python -m mmaccel.demos.training.reader.card
"""

from __future__ import annotations

import time
from statistics import median_high

from PIL import Image, ImageDraw, ImageFont

from mmaccel import zoo
from mmaccel.files import pictures

from .. import card

PAGES = 4
SIZE = (448, 512)  # of a page on the sheet

CARD = """# tiny-reader

A real transformers `LightOnOcrForConditionalGeneration` of {parameters:.1f} million parameters (float16,
{megabytes:.1f} MB) that writes a printed page as Markdown, letter by letter: titles, headings, paragraphs, lists,
tables, and figures with captions. It exists to test and measure acceleration without a download; it reads nothing else.

![held-out pages, and what is read on them, none picked](samples.png)

- **Use**: `model, processor = zoo.load("tiny-reader")`, then `model.generate(**processor(images=picture))`, where the
  picture is PIL or a uint8 array, 224 x 256 pixels for a page and less for a part of one.
  `zoo.pages("tiny-reader", 100)` gives pages never trained on, with what they say and where.
- **Held-out accuracy**: {exact[pages]:.1%} of whole pages without a mistake, {exact[lines]:.1%} of lines, and
  {exact[regions]:.1%} of regions read alone from their crops, by its own `generate`; bfloat16 matrix products. Every
  invented name on these pages is one that was never trained on.
- **Data**: drawn by `mmaccel/zoo/worlds/page_world.py` with the glyphs of DejaVu Sans Mono (free licence of Bitstream
  Vera), which are shipped as `glyphs.png`. Letters stand on a grid of 8 x 16 pixels, moved by up to one pixel.
- **Recipe**: `python -m mmaccel.demos.training.reader.train --output runs/tiny-reader --minutes {minutes:g}`,
  from nothing; seed {seed}, {minutes:g} minutes on a shared core with bfloat16 arithmetic, {steps:,} steps. It begins
  with lone lines and regions, and one head of the decoder is taught to look at the letter that comes next.
- **Time**: {seconds:.2f} s for a page of {tokens} tokens, on {threads}, float32.
- **Limits**: one face on one grid, one column, Latin letters without accents.
- **Licence**: Apache-2.0, as the package.
"""


def main() -> None:
    model, processor = zoo.load("tiny-reader")
    cards, took = [], []
    for page in zoo.pages("tiny-reader", PAGES, seed=1):
        inputs = processor(images=page.picture)
        began = time.perf_counter()
        tokens = model.generate(**inputs, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        took.append((time.perf_counter() - began, len(tokens)))
        cards.append(_beside(page.picture, processor.tokenizer.decode(tokens, skip_special_tokens=True)))
    seconds, tokens = median_high(took)
    sheet = pictures.sheet(cards, 2)
    card.write(zoo.path("tiny-reader"), CARD, [model], sheet, colors=64, seconds=seconds, tokens=tokens)


def _beside(picture, text: str) -> Image.Image:
    """A page, and its Markdown beside it."""
    both = Image.new("RGB", (2 * SIZE[0], SIZE[1]), "white")
    both.paste(Image.fromarray(picture).resize(SIZE, Image.Resampling.BICUBIC))
    ImageDraw.Draw(both).text((SIZE[0] + 16, 8), text, (30, 30, 30), ImageFont.load_default(16))
    return both


if __name__ == "__main__":
    card.run(main, __doc__)
