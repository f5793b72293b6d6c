"""Write the sheet of samples and the model card of `tiny-amused` beside its weights.

Samples are drawn by the pipeline as `zoo.load` gives it, one per prompt, none picked::

    python -m mmaccel.demos.training.amused.card
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

from mmaccel import zoo
from mmaccel.files import pictures

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
- **Data**: {pictures:,} pictures drawn by `demos/training/emoji_world.py` from Noto Color Emoji (SIL Open Font License
  1.1), names from the `emoji` package (BSD). About one scene in forty is held out.
- **Recipe**: `python -m mmaccel.demos.training.amused.train --output runs/tiny-amused`; seed {seed},
  {minutes:g} minutes on one thread of a busy machine with bfloat16 arithmetic, {steps:,} steps of {batch} pictures.
- **Held-out loss**: {held_out_nats_per_masked_code} nats per masked code, without guidance, on scenes never trained on,
  with the masks of the training.
- **State**: backgrounds, places and colours are right and most things recognisable, with rough outlines; details are
  often wrong. The loss still falls: the recipe goes on where it stopped, and more minutes mend it.
- **Time**: {seconds:.2f} s for a picture of 12 steps on {threads} threads, float32.
- **Licence**: Apache-2.0, as the package.
"""


def main() -> None:
    folder, pipe = zoo.path("tiny-amused"), zoo.load("tiny-amused")
    drawn, seconds = [], []
    for number, prompt in enumerate(PROMPTS):
        began = time.perf_counter()
        picture = pipe(prompt, generator=torch.Generator().manual_seed(number)).images[0]
        seconds.append(time.perf_counter() - began)
        drawn.append(pictures.headed(pictures.enlarged(picture), prompt))
    pictures.sheet(drawn, 4).convert("P", palette=1, colors=256).save(folder / "samples.png", optimize=True)
    (folder / "README.md").write_text(card(pipe, folder, sorted(seconds)[len(seconds) // 2]))


def card(pipe, folder: Path, seconds: float) -> str:
    """The model card."""
    parts = (pipe.transformer, pipe.text_encoder, pipe.vqvae)
    counts = [sum(p.numel() for p in part.parameters()) / 1e6 for part in parts]
    return CARD.format(
        **json.loads((folder / "training.json").read_text()),
        parameters=sum(counts),
        transformer=counts[0],
        megabytes=sum(path.stat().st_size for path in folder.glob("*/*.safetensors")) / 1e6,
        seconds=seconds,
        threads=torch.get_num_threads(),
    )


if __name__ == "__main__":
    main()
