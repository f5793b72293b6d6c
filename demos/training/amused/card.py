"""Write the sheet of samples and the model card of `tiny-amused` beside its weights.

Samples are drawn by the pipeline as `zoo.load` gives it, one per prompt, none picked::

    python -m mmaccel.demos.training.amused.card
"""

from __future__ import annotations

from mmaccel import zoo

from .. import card
from ..janus.card import PROMPTS

CARD = """# tiny-amused

A real diffusers `AmusedPipeline` of {parameters:.1f} million parameters (float16, {megabytes:.1f} MB): a `UVit2DModel`
of {transformer:.1f} million, a `CLIPTextModelWithProjection` of two layers, a `VQModel` and an `AmusedScheduler`. It
fills a canvas of 16 x 16 masked codes, and draws one emoji on textured paper: 64 x 64 pixels. Classifier-free guidance
is trained in (default scale 3); 12 steps are the pipeline's default.
It exists to test and measure acceleration without a download; it is no general image model.

![samples, one per prompt, none picked](samples.png)

- **Prompts**: those of `tiny-janus`, `[small|big] NAME [on BACKGROUND][, PLACE]`. Anything else is refused with near
  words.
- **Codes**: those of `tiny-janus`, from its own VQ model; `vqvae` is that model in diffusers' class, and decodes them
  to the same pictures. Its encoder, whose first block has another shape in diffusers, was fitted anew, so that
  {same_codes:.0%} of the codes of a picture are the same; drawing a prompt does not use it.
- **Data**: {pictures:,} pictures drawn by `mmaccel/zoo/worlds/emoji_world.py` from Noto Color Emoji (SIL Open Font
  License 1.1), names from the `emoji` package (BSD). About one scene in forty is held out.
- **Recipe**: `python -m mmaccel.demos.training.amused.train --output runs/tiny-amused --minutes {minutes:g}`;
  seed {seed}, {minutes:g} minutes on one thread of a busy machine with bfloat16 arithmetic, {steps:,} steps of {batch}
  pictures.
- **Held-out loss**: {held_out_nats_per_masked_code} nats per masked code, without guidance, on scenes never trained on,
  with the masks of the training.
- **State**: backgrounds, places and colours are right and most things recognisable, with rough outlines; details are
  often wrong. The loss still falls: the recipe goes on where it stopped, and more minutes mend it.
- **Time**: {seconds:.2f} s for a picture of 12 steps on {threads}, float32.
- **Licence**: Apache-2.0, as the package.
"""


def main() -> None:
    pipe = zoo.load("tiny-amused")
    sheet, seconds = card.drawn(pipe, PROMPTS)
    told = {"transformer": card.millions(pipe.transformer), "seconds": seconds}
    card.write(zoo.path("tiny-amused"), CARD, (pipe.transformer, pipe.text_encoder, pipe.vqvae), sheet, **told)


if __name__ == "__main__":
    card.run(main, __doc__)
