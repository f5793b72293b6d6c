"""Write a sheet of lists and the model card of `tiny-canvas` beside its weights.

Lists are made by the pipeline as `zoo.load` gives it, one held-out picture after the other, none picked::

    python -m mmaccel.demos.training.canvas.card
"""

from __future__ import annotations

import time
from statistics import median_high

from PIL import Image

from mmaccel import zoo
from mmaccel.files import pictures

from .. import card

PICTURES = 6

CARD = """# tiny-canvas

A real transformers `LlavaOnevisionForConditionalGeneration` of {parameters:.1f} million parameters (float16,
{megabytes:.1f} MB) that fills blocks of {block} masked tokens, in diffusers' `LLaDA2Pipeline`: it lists what a picture
of five to twelve emoji on cards shows, in 38 to 100 words. It exists to test and measure acceleration without a
download; it is no general model.

![held-out pictures with their lists, none picked](samples.png)

- **Use**: `pipe, processor = zoo.load("tiny-canvas")`, then
  `pipe(**processor(videos=[picture[None]], text="list all things")).texts[0]`, where the picture is a uint8 array
  `[64, 64, 3]`. `zoo.questions("tiny-canvas", 500)` gives pictures never trained on, with the right lists.
- **Held-out accuracy**: {exact[blocks]:.1%} of whole lists without a mistake at one token a step, and
  {exact[words]:.1%} word by word, by the `generate` of `pipe.model.model`; bfloat16 matrix products.
- **Two ways to read**: each list is trained causally, for the next word, and in blocks with a part of their words
  masked, each of which sees the text before it and all of itself. So the same weights write word by word, which is the
  honest alternative to a canvas. Blocks of 32, 16 and 8 were trained.
- **Data**: drawn by `mmaccel/zoo/worlds/listed_world.py` from Noto Color Emoji (SIL Open Font License 1.1); the things'
  pictures are those shipped with `tiny-onevision`. About one picture in forty is held out.
- **Recipe**: `python -m mmaccel.demos.training.canvas.train --output runs/tiny-canvas --minutes {minutes:g}`,
  from the weights of `tiny-onevision`; seed {seed}, {minutes:g} minutes on 2 cores with bfloat16 arithmetic,
  {steps:,} steps of 24 pictures.
  In the first 5 of these minutes a block did not see the few visual tokens that it holds itself.
- **Time**: {seconds:.2f} s for a list at one token a step without a cache, on {threads}, float32.
- **Limits**: one question, and pictures of this world alone, each shown as a clip of one frame.
- **Licence**: Apache-2.0, as the package.
"""


def main() -> None:
    pipe, processor = zoo.load("tiny-canvas")
    cards, seconds = [], []
    for row in zoo.questions("tiny-canvas", PICTURES, seed=1):
        inputs = processor(videos=[row.frames], text=row.question)
        began = time.perf_counter()
        told = pipe(**inputs, threshold=2).texts[0]
        seconds.append(time.perf_counter() - began)
        big = Image.fromarray(row.frames[0]).resize((256, 256), Image.Resampling.BICUBIC)
        cards.append(pictures.headed(big, told))
    told = {"block": pipe.model.block_length, "seconds": median_high(seconds)}
    card.write(zoo.path("tiny-canvas"), CARD, [pipe.model], pictures.sheet(cards, 3), **told)


if __name__ == "__main__":
    card.run(main, __doc__)
