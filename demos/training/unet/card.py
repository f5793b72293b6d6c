"""Write the sheet of samples and the model card of `tiny-unet` beside its weights.

Samples are drawn by the pipeline as `zoo.load` gives it, one per prompt, none picked::

    python -m mmaccel.demos.training.unet.card
"""

from __future__ import annotations

from mmaccel import zoo

from .. import card
from .train import PROMPTS

CARD = """# tiny-unet

A real diffusers `StableDiffusionPipeline` of {parameters:.1f} million parameters (float16, {megabytes:.1f} MB): a
`UNet2DConditionModel` of {unet:.1f} million in three levels of two residual blocks each, with cross-attention on
the two upper ones; an `AutoencoderKL` (4 times smaller in each direction), a `CLIPTextModel` of two layers and a word
tokenizer. It finds noise, as Stable Diffusion does, with Stable Diffusion's noise levels; DDIM with 50 steps is the
default, and other samplers of diffusers fit. It draws one emoji on textured paper: 64 x 64 pixels. Classifier-free
guidance is trained in (default scale {guidance_scale:g}).
It exists to test and measure acceleration of UNets without a download; it is no general image model.

![samples, one per prompt, none picked](samples.png)

- **Prompts**: `[small|big] NAME [on BACKGROUND][, PLACE]`; unknown words are refused with near words.
  Names: {names}. Backgrounds: {backgrounds}. Places, of small things: {places}.
- **Data**: {pool:,} pictures drawn by `mmaccel/zoo/worlds/emoji_world.py` from Noto Color Emoji (SIL Open Font License
  1.1). About one scene in forty is held out.
- **State**: things, colours and backgrounds are right. Places, and whether a thing is small, are often not: the first
  noise decides more about them than the words, as little of a picture shows through at the noise that Stable Diffusion
  begins with.
- **Recipe**: `python -m mmaccel.demos.training.unet.train --output runs/tiny-unet --vae-minutes {vae_minutes:g}
  --minutes {minutes:g} --pool {pool}`; seed {seed}; autoencoder {vae_minutes:g} minutes, UNet and text encoder
  {minutes:g} minutes, {steps:,} steps of {batch} pictures, on one thread of a busy machine with bfloat16 arithmetic.
- **Held-out loss**: {held_out_loss}, the mean squared error of the noise, without guidance, on scenes never trained on;
  the autoencoder's pictures have {vae_psnr} dB there.
- **Time**: {seconds:.2f} s for a picture of 50 steps with guidance on {threads}, float32.
- **Licence**: Apache-2.0, as the package.
"""


def main() -> None:
    folder, pipe = zoo.path("tiny-unet"), zoo.load("tiny-unet")
    pipe.set_progress_bar_config(disable=True)
    sheet, seconds = card.drawn(pipe, PROMPTS)
    told = {"unet": card.millions(pipe.unet), "seconds": seconds}
    told |= card.in_words(folder, "names", "backgrounds", "places")
    card.write(folder, CARD, (pipe.unet, pipe.vae, pipe.text_encoder), sheet, **told)


if __name__ == "__main__":
    card.run(main, __doc__)
