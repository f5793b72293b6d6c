"""Train `tiny-onevision`, the small video language model that mmaccel ships.

One command makes the weights from nothing but a font; it goes on where it stopped, and ends by the clock::

    python -m mmaccel.demos.training.onevision.train --output runs/tiny-onevision --minutes 90 --threads 2

All on clips drawn on the fly by :mod:`mmaccel.zoo.worlds.moving_world`. First the vision tower learns what stands
at each token, and in its last layer to look at things, as large towers do. Then it is frozen, and the language model
learns from many questions a clip, masked from each other, and from a dense label at each visual token (which thing,
where it goes, when it came) and at each word that means a thing: first on clips of few frames, last on whole ones.
Scores of attention are kept from growing, without which nothing is found. Data are seeded; how many steps fit into the
minutes depends on the machine.
"""

from __future__ import annotations

import argparse
import json

import torch
from tqdm import tqdm

from mmaccel.zoo.worlds.moving_world import ONEVISION, Footage

from ..optimizer import optimizers_of
from ..recipe import Stage, begin, command_line, given
from . import shape
from .check import accuracy
from .data import Packer, draw
from .parts import Trained, answer_loss, soften
from .save import save
from .thinning import thin

FEW = Footage(frames=ONEVISION.frames, speed=ONEVISION.speed, things=(0.6, 0.4))
# until this share of the time: frames a clip, clips a step, what happens in them
CURRICULUM = ((0.12, 4, 16, FEW), (0.5, 8, 8, ONEVISION), (0.7, 16, 4, ONEVISION), (1.0, 32, 2, ONEVISION))
WHOLE = 0.7  # share of the time after which tokens are left out
QUESTIONS = 12
TRACK_WEIGHT, WORD_WEIGHT, PLACE_WEIGHT, LOOK_WEIGHT = 0.5, 0.5, 0.1, 0.1


def train_tower(module: Trained, args: argparse.Namespace) -> Trained:
    """Vision tower and projector, with a label for each token."""
    parts = ("vision_tower", "projector", "thing_")
    stage = Stage("tower", module, optimizers_of(module, parts), args.tower_minutes, args.output)
    packer = Packer(args.tokenizer)
    for _ in stage.shares(warmup=150, decay=0.5):
        batch = draw(packer, [args.seed, 0, stage.step], args.tower_batch, length=2, asked=1)
        with torch.autocast("cpu", torch.bfloat16):
            loss, right, where = module.things_loss(module.features(batch.frames), batch)
            looking = module.looking_loss(batch)
        stage.took(loss + PLACE_WEIGHT * where + LOOK_WEIGHT * looking, right=right, where=where, looking=looking)
        stage.due()
    return stage.finish()


def train_language_model(module: Trained, args: argparse.Namespace) -> Stage:
    """The language model on a frozen tower."""
    parts = ("language_model", "image_newline", "track_")
    stage = Stage("language", module, optimizers_of(module, parts), args.minutes - args.tower_minutes, args.output)
    if args.compile:
        compile_blocks(module)
    packer = Packer(args.tokenizer)
    for share in stage.shares(warmup=150, decay=0.4):
        _, frames, clips, footage = next(row for row in CURRICULUM if share < row[0] or row[0] == 1.0)
        batch = draw(packer, [args.seed, 1, stage.step], clips, frames, QUESTIONS, footage)
        times = batch.times if stage.step % 2 else None  # with gaps where frames are left out, and without
        with torch.autocast("cpu", torch.bfloat16):
            features, left = module.features(batch.frames), ()
            if share > WHOLE:
                thinned = thin(features, batch, [args.seed, 2, stage.step])
                features, batch = thinned.features, thinned.batch
                left = (thinned.kept, thinned.late, thinned.late_own)
            logits, tracked, asked = module(features, batch.tokens, times, *left)
            answers, right = answer_loss(logits, batch.labels)
            tracks, tracked_right = module.tracks_loss(tracked, batch)
            words, named = module.words_loss(tracked, batch)
            finding, found = module.asked_loss(asked, batch)
        loss = answers + TRACK_WEIGHT * (tracks + finding) + WORD_WEIGHT * words
        stage.took(loss, answers=answers, right=right, tracked=tracked_right, named=named, found=found)
        soften(module.model.model.language_model)
        if stage.due():
            check(stage, args)
    return stage


def compile_blocks(module: Trained) -> None:
    """Compile the layers of tower and language model."""
    torch._dynamo.config.cache_size_limit = 32
    for block in (*module.model.model.vision_tower.encoder.layers, *module.model.model.language_model.layers):
        block.compile(dynamic=False)


def check(stage: Stage, args: argparse.Namespace, count: int = 60) -> None:
    """Lone questions on whole held-out clips by the model's own `generate`; saves the model too."""
    save(stage.average.module.model, args.tokenizer, args.output / "model", facts(args, stage.step))
    measured = accuracy(args.output / "model", count, seed=1)
    told = " ".join(f"{kind} {value:.2f}" for kind, value in measured.items())
    tqdm.write(f"held out, {stage.clock.seconds / 60:.1f} minutes: {told}")


def facts(args: argparse.Namespace, step: int, **measured: object) -> dict[str, object]:
    """What `training.json` tells."""
    return {
        **given(args, "tower_minutes", "minutes"),
        "steps": step,
        **measured,
        "frames": shape.FRAMES,
        "names": list(shape.moving_world.NAMES),
        "motions": list(shape.moving_world.MOTIONS),
        "backgrounds": list(shape.moving_world.BACKGROUNDS),
        "kinds": list(shape.moving_questions.KINDS),
    }


def finish(trained: Trained, args: argparse.Namespace, steps: int, **told: object) -> None:
    """Save the model, measure it on held-out questions, save that with it and print it."""
    save(trained.model, args.tokenizer, args.output / "model", facts(args, steps, **told))
    measured = accuracy(args.output / "model", args.questions, seed=0)
    rounded = {kind: round(share, 3) for kind, share in measured.items()}
    save(trained.model, args.tokenizer, args.output / "model", facts(args, steps, accuracy=rounded, **told))
    print(json.dumps(rounded, indent=1))


def main(argv: list[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=90, help="time for all")
    parser.add_argument("--tower-minutes", type=float, default=9, help="of which for the vision tower")
    parser.add_argument("--tower-batch", type=int, default=16, help="clips a step there, two frames of each")
    parser.add_argument("--questions", type=int, default=600, help="questions to measure the end result on")
    parser.add_argument("--compile", action="store_true", help="compile the layers")
    args = parser.parse_args(argv)
    if args.tower_minutes >= args.minutes:
        parser.error("--tower-minutes: leave some of --minutes for the language model")
    begin(args)
    args.tokenizer = shape.build_tokenizer()
    module = Trained(shape.build_model(args.tokenizer), args.tokenizer)
    tower = train_tower(module, args)
    module.load_state_dict(tower.state_dict())
    stage = train_language_model(module, args)
    finish(stage.finish(), args, stage.step)


if __name__ == "__main__":
    main()
