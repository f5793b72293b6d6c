"""Write the sheet of samples and the model card of `tiny-janus` beside its weights.

Samples are drawn by the model's own `generate`, one per prompt, none picked::

    python -m mmaccel.demos.training.janus.card
"""

from __future__ import annotations

from mmaccel import zoo
from mmaccel.files import pictures
from mmaccel.image import generation
from mmaccel.zoo.vocabulary import facts_of

from .. import card

PROMPTS = (
    "big red heart on yellow",
    "pizza",
    "smiling face with sunglasses",
    "rocket on green",
    "small octopus on white, top left",
    "big dog face on pink",
    "rainbow on white",
    "sunflower on purple",
    "small green book on orange, bottom right",
    "bus on gray",
    "penguin on blue",
    "guitar",
    "hamburger on white",
    "small sailboat on blue, center",
    "alien on purple",
    "alarm clock on yellow",
)

CARD = """# tiny-janus

A real `JanusForConditionalGeneration` of {parameters:.1f} million parameters (float16, {megabytes:.1f} MB) that draws
one emoji on textured paper: 64 x 64 pixels, 16 x 16 tokens, 1,024 codes, classifier-free guidance trained in
(default scale {guidance:g}).
It exists to test and measure acceleration without a download; it is no general image model.

![samples, one per prompt, none picked](samples.png)

- **Prompts**: `[small|big] NAME [on BACKGROUND][, PLACE]`, {names} names, backgrounds {backgrounds}, places {places}.
  Anything else is refused with near words.
- **Data**: drawn on the fly by `mmaccel/zoo/worlds/emoji_world.py` from Noto Color Emoji (SIL Open Font License 1.1),
  names from the `emoji` package (BSD). Hue, brightness, grain and a few pixels of position vary without being told, so
  that tokens keep real uncertainty. About one scene in forty is held out.
- **Recipe**: `python -m mmaccel.demos.training.janus.train --output runs/tiny-janus`; seed {seed}; VQ model
  {vq_steps} steps, language model {steps} steps of {batch} pictures over 217 names and {featured_steps} of
  {featured_batch} over the {names} it ships, about three hours on 2 cores with bfloat16 arithmetic. Then
  `python -m mmaccel.demos.training.janus.averaged --begin runs/tiny-janus/model --output runs/averaged`, and
  again from its model into another folder: {averaged_steps} steps of
  {averaged_batch} in {averaged_minutes} minutes of an H100, whose weights are averaged.
- **Held-out loss**: {held_out_nats_per_token} nats per image token, without guidance, on scenes never trained on.
- **Licence**: Apache-2.0, as the package.
"""


def main() -> None:
    folder = zoo.path("tiny-janus")
    painter = generation.load("tiny-janus")
    painted = painter.paint(painter.target, list(PROMPTS), generation.ImageSettings(seed=0), "samples")
    sheet = [pictures.headed(pictures.enlarged(p), t) for p, t in zip(painted.pictures, PROMPTS, strict=True)]
    told = {"names": len(facts_of(folder)["names"]), **card.in_words(folder, "backgrounds", "places")}
    told |= {"guidance": painter.target.generation_config.guidance_scale}
    card.write(folder, CARD, [painter.target], pictures.sheet(sheet, 4), weights="model.safetensors", **told)


if __name__ == "__main__":
    card.run(main, __doc__)
