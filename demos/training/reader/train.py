"""Train `tiny-reader`, the small page reader that mmaccel ships, from nothing but a font.

It goes on where it stopped, until its minutes are over::

    python -m mmaccel.demos.training.reader.train --output runs/tiny-reader --minutes 60 --threads 1

It begins with lone regions, a line or two of each, and ends with whole pages among regions. Three things are learned
at once: which letters a patch shows, where the next letter is read (one head of the decoder is taught to look there),
and what the page says. The fonts are DejaVu Sans Mono and its bold face, which come with matplotlib.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from mmaccel.zoo.worlds import page_world as world

from ..optimizer import optimizers_of
from ..recipe import Stage, begin, command_line, given
from . import shape
from .check import exact
from .data import Batch, draw
from .parts import LOOKING_LAYER, Trained
from .save import save

LINES, REGIONS, PARTS = 0.07, 0.3, 0.4  # shares of the time after which regions, parts of pages and pages come
CHECKED = 0.6
CELLS, MOST = 3584, 64  # letters a step, and pictures at most
FOUND_WEIGHT, LETTER_WEIGHT = 0.5, 0.5


def train(module: Trained, args: argparse.Namespace) -> Stage:
    """All weights at once."""
    stage = Stage("reader", module, optimizers_of(module), args.minutes, args.output)
    if args.compile:
        compile_blocks(module)
    for share in stage.shares(warmup=150, decay=0.5):
        batch = next_batch(args, stage.step, share)
        with torch.autocast("cpu", torch.bfloat16):
            told = module.losses(batch)
        stage.took(told["said"] + FOUND_WEIGHT * told["found"] + LETTER_WEIGHT * told["letters"], **told)
        if stage.due() and share > CHECKED:  # before, pages do not end
            check(stage, args)
    return stage


def compile_blocks(module: Trained) -> None:
    """Compile the layers, but for the one that is watched, whose first text token moves with the size of a page."""
    torch._dynamo.config.cache_size_limit = 64
    decoder = module.model.model.language_model.layers
    watched = decoder[LOOKING_LAYER]
    for block in (*module.model.model.vision_encoder.transformer.layers, *decoder):
        if block is not watched:
            block.compile(dynamic=True)


def next_batch(args: argparse.Namespace, step: int, share: float) -> Batch:
    """Lines, then regions, then parts of pages, then pages with some of all."""
    rng = np.random.default_rng([args.seed, step])
    alone = share < REGIONS or rng.random() < 0.2
    if alone:
        rows, columns = int(rng.integers(1, 3 if share < LINES else 7)), 2 * int(rng.integers(4, 15))
    else:
        parted = share < PARTS or rng.random() < 0.2
        rows, columns = int(rng.integers(5, 13)) if parted else world.ROWS, world.COLUMNS
    count = min(MOST, CELLS // (rows * columns))
    return draw(args.tokenizer, args.glyphs, [args.seed, 1, step], count, rows, columns, alone)


def check(stage: Stage, args: argparse.Namespace, count: int = 6) -> None:
    """Held-out pages; saves the model too."""
    keep(stage.average.module, args, stage.step)
    told = exact(args.output / "model", count, seed=1)
    shares = " ".join(f"{kind} {share:.2f}" for kind, share in told.items())
    tqdm.write(f"held out, {stage.clock.seconds / 60:.1f} minutes: {shares}")


def keep(module: Trained, args: argparse.Namespace, step: int, **measured: object) -> None:
    """Save the model with what `training.json` tells."""
    facts = {**given(args, "minutes"), "steps": step, **measured}
    save(module.model, args.tokenizer, args.glyphs, args.output / "model", facts)


def fonts() -> tuple[str, str]:
    """DejaVu Sans Mono and its bold face."""
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return str(folder / "DejaVuSansMono.ttf"), str(folder / "DejaVuSansMono-Bold.ttf")


def main(argv: list[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--pages", type=int, default=200, help="pages to measure the end result on")
    parser.add_argument("--compile", action="store_true", help="compile the layers: steps take a quarter less time")
    args = parser.parse_args(argv)
    begin(args)
    args.tokenizer, args.glyphs = shape.build_tokenizer(), world.glyphs_of(*fonts())
    stage = train(Trained(shape.build_model(args.tokenizer), args.tokenizer), args)
    trained = stage.finish()
    keep(trained, args, stage.step)
    measured = {kind: round(share, 3) for kind, share in exact(args.output / "model", args.pages, seed=0).items()}
    keep(trained, args, stage.step, exact=measured)
    print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
