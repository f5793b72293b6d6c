"""Write the sheet of samples and the model card of `tiny-far` beside its weights.

Samples are made by the pipeline as `zoo.load` gives it, one per prompt, none picked::

    python -m mmaccel.demos.training.far.card
"""

from __future__ import annotations

from mmaccel import zoo
from mmaccel.zoo.vocabulary import facts_of

from .. import card
from ..wan.card import sampled
from ..wan.train import PROMPTS, contact_sheet

EVERY = 5  # of the frames are shown; the sheet itself takes every second of these

CARD = """# tiny-far

A real diffusers `AnyFlowFARPipeline`, which draws clips of {frames} frames of {size} x {size} pixels in blocks of
{block} latent frames: an `AnyFlowFARTransformer3DModel` of {million:.1f} million parameters, and one of
{small:.1f} million, `pipe.draft`, that can draft blocks for it ({megabytes:.1f} MB together in float16). Autoencoder,
text encoder, tokenizer and world are those of `tiny-wan`; things move at a quarter of the speed. Classifier-free
guidance is trained in (default scale 3).
It exists to test and measure acceleration without a download; it is no general video model.

![samples, one per prompt, every tenth frame, none picked](samples.png)

- **Prompts**: as for `tiny-wan`, `zoo.prompts("tiny-far", 8, things=2, moving=0)`.
- **Data**: drawn by `mmaccel/zoo/worlds/moving_world.py` from Noto Color Emoji (SIL Open Font License 1.1).
- **State**: the larger model draws things, backgrounds and motions mostly as told and keeps them over the blocks; what
  should stay is sometimes moved along. The smaller one alone draws things wrong from the first block on, and goes on
  well behind blocks of the larger one.
- **Recipe**: `python -m mmaccel.demos.training.far.train --output runs/tiny-far --minutes {minutes:g}`;
  seed {seed}; {pool:,} clips, blocks noised apart from each other behind clean ones as in FAR; {minutes:g} minutes of
  an H100 that each model shared with other work: {steps:,} steps of {batch} clips for the larger, which
  begins with the weights of `tiny-wan`, and {small_steps:,} for the smaller.
- **Held-out loss**: {loss} and {small_loss}, the mean squared error of the velocity behind clean blocks, on scenes
  never trained on.
- **Time**: {seconds:.0f} s for a clip of 20 steps with guidance on {threads}, float32.
- **Limits**: blocks of other than four latent frames leave tiles of the attention half filled, and diffusers lets the
  rest of a tile take part in it: clips then look a little different.
- **Licence**: Apache-2.0, as the package.
"""


def main() -> None:
    pipeline = zoo.load("tiny-far")
    shown, seconds = sampled(pipeline)
    folder = zoo.path("tiny-far")
    large, small = (facts_of(folder / part) for part in ("transformer", "draft"))
    told = {"block": pipeline.transformer.config.chunk_partition[0], "frames": shown.shape[1], "size": shown.shape[2]}
    told |= {"million": card.millions(pipeline.transformer), "small": card.millions(pipeline.draft)}
    told |= {"small_steps": small["steps"], "loss": large["held_out_loss"], "small_loss": small["held_out_loss"]}
    sheet = contact_sheet(shown[:, ::EVERY], list(PROMPTS))
    card.write(folder, CARD, (), sheet, **large, **told, seconds=seconds)


if __name__ == "__main__":
    card.run(main, __doc__)
