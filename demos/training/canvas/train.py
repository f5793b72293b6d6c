"""Train `tiny-canvas`, the small block-diffusion model that mmaccel ships; it lists what a picture shows.

It starts from `tiny-onevision`, and goes on where it stopped, until its minutes are over::

    python -m mmaccel.demos.training.canvas.train --output runs/tiny-canvas --minutes 70 --threads 2

Each picture's list is read twice in one pass: causally, for the loss of the next word, and in blocks with words
masked, each of which sees the list before it and all of itself (Arriola et al., Block Diffusion, 2025). So the same
weights write word by word, which is the honest alternative, and whole blocks at once. Lengths of blocks are mixed.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch
from tqdm import tqdm

from mmaccel import zoo
from mmaccel.zoo.frames import OnevisionProcessor
from mmaccel.zoo.tiny_onevision import sprites_of

from ..onevision.save import save_weights
from ..optimizer import optimizers_of
from ..recipe import Stage, begin, command_line, given
from . import shape
from .check import exact
from .data import draw
from .parts import Trained

BLOCKS, CHANCES = (shape.BLOCK, 16, 8), (0.6, 0.25, 0.15)
PACE = 0.5  # of the learning rates that `tiny-onevision` began with


def train(module: Trained, args: argparse.Namespace) -> Stage:
    """All weights, tower included."""
    stage = Stage("canvas", module, optimizers_of(module, pace=PACE), args.minutes, args.output)
    processor = OnevisionProcessor(args.tokenizer, module.model.config)
    for _ in stage.shares(warmup=100, decay=0.5):
        block = int(np.random.default_rng([args.seed, stage.step]).choice(BLOCKS, p=CHANCES))
        batch = draw(processor, args.sprites, [args.seed, 1, stage.step], args.batch, block)
        with torch.autocast("cpu", torch.bfloat16):
            told = module.losses(batch)
        stage.took(told["next"] + 2 * told["masked"], **told)
        if stage.due():
            check(stage, args)
    return stage


def check(stage: Stage, args: argparse.Namespace, count: int = 40) -> None:
    """Whole lists of held-out pictures, one token a step and word by word; saves the model too."""
    model = stage.average.module.model
    save_weights(model, args.tokenizer, args.output / "model", facts(args, stage.step))
    told = exact(args.output / "model", count, seed=1)
    shares = " ".join(f"{kind} {share:.2f}" for kind, share in told.items())
    tqdm.write(f"held out, {stage.clock.seconds / 60:.1f} minutes: {shares}")


def facts(args: argparse.Namespace, step: int, **measured: object) -> dict[str, object]:
    """What `training.json` tells."""
    return {**given(args, "minutes"), "steps": step, **measured}


def main(argv: list[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=70)
    parser.add_argument("--batch", type=int, default=24, help="pictures a step")
    parser.add_argument("--pictures", type=int, default=400, help="pictures to measure the end result on")
    args = parser.parse_args(argv)
    begin(args)
    args.sprites = sprites_of(zoo.path(shape.START))
    model, args.tokenizer = shape.build_model()
    stage = train(Trained(model), args)
    trained = stage.finish().model
    save_weights(trained, args.tokenizer, args.output / "model", facts(args, stage.step))
    measured = {kind: round(share, 3) for kind, share in exact(args.output / "model", args.pictures, seed=0).items()}
    save_weights(trained, args.tokenizer, args.output / "model", facts(args, stage.step, exact=measured))
    print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
