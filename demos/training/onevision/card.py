"""Write a sheet of answers and the model card of `tiny-onevision` beside its weights.

Answers are made by the model as `zoo.load` gives it, one held-out clip after the other, none picked::

    python -m mmaccel.demos.training.onevision.card
"""

from __future__ import annotations

import time
from statistics import median_high

import numpy as np
import torch
from PIL import Image

from mmaccel import zoo
from mmaccel.files import pictures
from mmaccel.zoo.vocabulary import facts_of

from .. import card
from ..recipe import to_pixels
from .shape import STREAM

CLIPS, SHOWN = 6, (0, 6, 12, 18, 24, 31)

CARD = """# tiny-onevision

A real transformers `LlavaOnevisionForConditionalGeneration` of {parameters:.1f} million parameters (float16,
{megabytes:.1f} MB) that answers questions about clips in which up to three emoji stay, move and appear over textured
paper: a SigLIP tower of {vision_layers} layers, 16 x 16 patches pooled to 8 x 8 tokens a frame, and a Qwen2 of
{layers} layers and width {width} with a word tokenizer. A clip of {frames} frames is {tokens:,} tokens.
It exists to test and measure acceleration without a download; it is no general model.

![held-out clips with a question and its answer each, none picked](samples.png)

- **Use**: `model, processor = zoo.load("tiny-onevision")`, then
  `model.generate(**processor(videos=[frames], text="what moves up?", return_tensors="pt"))`. The processor needs no
  torchvision; `zoo.questions("tiny-onevision", 500)` gives clips of scenes never trained on, with what to ask and the
  right answers; with `brief=True` the questions are about a thing that is seen for 2 to 8 frames only, which no clip
  of the training had.
- **Held-out accuracy**: {accuracy[all]:.1%} of lone questions, all tokens kept, bfloat16 matrix products:
  {kinds}.
- **Names**: {names}. **Motions**: {motions}. **Backgrounds**: {backgrounds}.
- **Data**: drawn by `moving_world.py` and `moving_questions.py` in `mmaccel/zoo/worlds/` from Noto Color Emoji
  (SIL Open Font License 1.1). About one scene in forty is held out. Clips of fewer frames, spread over the whole clip,
  were trained too, at the positions of the whole clip and at positions without gaps, and in the end parts of the
  tokens, drawn in a way of no method in particular, the rest of them dropped or merged, also inside the language
  model; of some things a few tokens, of others all, since a thing with few was overlooked.
- **Where it looks**: the tower's last layer was trained to attend to things, each the same and most at its middle, as
  large towers do. Left to itself it attended to the paper, and methods that go by attention kept that.
- **Size of its tokens**: in training, visual tokens grew to a root mean square of {trained_size:.0f}. They are shipped
  {stream} times smaller, with all else that the language model adds up, which changes no answer: token mergers take
  `exp(-d^2)` of distances between tokens, which was 0 for whatever was not paper.
- **Recipe**: `python -m mmaccel.demos.training.onevision.train --output runs/tiny-onevision`, then
  `python -m mmaccel.demos.training.onevision.thin --model runs/tiny-onevision/model --output runs/thinned`
  for the last {thinned_minutes:g}
  minutes; seeds {seed}, 21, 22 and 24; {minutes:g} minutes on 2 cores with bfloat16 arithmetic, {tower_minutes:g} of
  them for the tower; {steps:,} steps of the language model. The shipped weights were trained in parts: for the first
  68 minutes of the language model without the softening of scores, and what things they mean was not told at words, so
  that questions about several things were guessed; the whole recipe from the start should need less. Only the last 34
  minutes showed things unevenly, and only these ended half way to the weights before.
- **Time**: {seconds:.2f} s for an answer on {threads}, float32.
- **Limits**: one question at a time, in the chat template; pictures alone and other frame counts than 4 to 32 were not
  trained.
- **Licence**: Apache-2.0, as the package.
"""


def main() -> None:
    folder = zoo.path("tiny-onevision")
    model, processor = zoo.load("tiny-onevision")
    strips, seconds = [], []
    for row in zoo.questions("tiny-onevision", CLIPS * 4, seed=1)[::4]:
        began = time.perf_counter()
        inputs = processor(videos=[row.frames], text=row.question, return_tensors="pt")
        tokens = model.generate(**inputs, do_sample=False)[:, inputs["input_ids"].shape[1] :]
        seconds.append(time.perf_counter() - began)
        told = processor.batch_decode(tokens, skip_special_tokens=True)[0]
        strip = Image.fromarray(np.concatenate(list(row.frames[list(SHOWN)]), 1))
        doubled = strip.resize((2 * strip.width, 2 * strip.height), Image.Resampling.BICUBIC)
        strips.append(pictures.headed(doubled, f"{row.question} {told}"))
    facts, vision, text = facts_of(folder), model.config.vision_config, model.config.text_config
    kinds = ", ".join(f"{kind} {share:.0%}" for kind, share in facts["accuracy"].items() if kind != "all")
    card.write(
        folder,
        CARD,
        [model],
        pictures.sheet(strips, 1),
        **card.in_words(folder, "names", "motions", "backgrounds"),
        kinds=kinds,
        vision_layers=vision.num_hidden_layers,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        tokens=facts["frames"] * 64 + 1,
        stream=STREAM,
        trained_size=STREAM * size_of_tokens(model),
        seconds=median_high(seconds),
    )


@torch.no_grad()
def size_of_tokens(model) -> float:
    """Root mean square of the visual tokens of a clip."""
    frames = torch.from_numpy(zoo.questions("tiny-onevision", 1, seed=1)[0].frames)
    return float(model.get_video_features(to_pixels(frames)[None]).pooler_output.square().mean().sqrt())


if __name__ == "__main__":
    card.run(main, __doc__)
