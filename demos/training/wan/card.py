"""Write the sheet of samples and the model card of `tiny-wan` beside its weights.

Samples are made by the pipeline as `zoo.load` gives it, one per prompt, none picked::

    python -m mmaccel.demos.training.wan.card
"""

from __future__ import annotations

import time
from statistics import median_high
from typing import Any

import torch

from mmaccel import zoo

from .. import card
from .train import PROMPTS, contact_sheet

CARD = """# tiny-wan

A real diffusers `WanPipeline` of {parameters:.1f} million parameters (float16, {megabytes:.1f} MB): a
`WanTransformer3DModel` of {layers} layers and width {width}, an `AutoencoderKLWan` (4 times smaller in each direction,
2 times in time), a `UMT5EncoderModel` of two layers and a word tokenizer. It makes clips of {frames} frames of
{size} x {size} pixels, 576 tokens, in which one or two emoji move over textured paper; classifier-free guidance is
trained in (default scale {guidance_scale:g}), the scheduler is Euler with shift 3.
It exists to test and measure acceleration without a download; it is no general video model.

![samples, one per prompt, every second frame, none picked](samples.png)

- **Prompts**: `NAME MOTION[, NAME MOTION], BACKGROUND background`; motion and background may be left out.
  Names: {names}. Motions: {motions}. Backgrounds: {backgrounds}. Unknown words are refused with near words.
  `zoo.prompts("tiny-wan", 8, things=2, moving=0)` chooses by how much moves.
- **Data**: drawn by `mmaccel/zoo/worlds/moving_world.py` from Noto Color Emoji (SIL Open Font License 1.1). Start, hue
  and grain vary without being told. About one scene in forty is held out.
- **State**: backgrounds and the looks of things are right, and a thing alone mostly moves as told; of two things one
  is sometimes missing or drawn twice, and motions are mixed up. The loss still falls: more minutes mend it.
- **Recipe**: `python -m mmaccel.demos.training.wan.train --output runs/tiny-wan --vae-minutes {vae_minutes:g}
  --minutes {minutes:g} --pool {pool} --compile`; seed {seed}; autoencoder {vae_minutes:g} minutes, transformer and text
  encoder {minutes:g} minutes, {steps:,} steps of {batch} clips out of {pool:,}, on 2 cores with bfloat16 arithmetic.
- **Held-out loss**: {held_out_loss}, the mean squared error of the velocity, without guidance, on scenes never trained
  on; the autoencoder's clips have {vae_psnr} dB there.
- **Time**: {seconds:.1f} s for a clip of 40 steps with guidance on {threads}, float32.
- **Limits**: keep `max_sequence_length=16`, its default here: Wan attends to the padding behind a prompt, and the
  model has seen no other length. Three things, or one thing twice, are outside its world.
- **Licence**: Apache-2.0, as the package.
"""


def sampled(pipeline: Any) -> tuple[torch.Tensor, float]:
    """A clip for each prompt, `[N, T, H, W, 3]` in [0, 1], and the median of their seconds."""
    pipeline.set_progress_bar_config(disable=True)
    clips, seconds = [], []
    for prompt in PROMPTS:
        began = time.perf_counter()
        clips.append(torch.from_numpy(pipeline(prompt, generator=torch.Generator().manual_seed(0)).frames[0]))
        seconds.append(time.perf_counter() - began)
    return torch.stack(clips), median_high(seconds)


def main() -> None:
    folder = zoo.path("tiny-wan")
    pipeline = zoo.load("tiny-wan")
    clips, seconds = sampled(pipeline)
    sheet = contact_sheet(clips, list(PROMPTS))
    config = pipeline.transformer.config
    told = {"layers": config.num_layers, "width": config.num_attention_heads * config.attention_head_dim}
    told |= {"seconds": seconds, **card.in_words(folder, "names", "motions", "backgrounds")}
    card.write(folder, CARD, (pipeline.transformer, pipeline.vae, pipeline.text_encoder), sheet, **told)


if __name__ == "__main__":
    card.run(main, __doc__)
