"""Train `tiny-onevision` on, on a part of its visual tokens, from shipped weights::

    python -m mmaccel.demos.training.onevision.thin --output runs/thinned --minutes 60

Large video models answer nearly as well from a part of their tokens; a small one has to learn that. First the last
layer of the vision tower learns to look at things, as large towers do and as methods rely on, while the features stay
what they were. Then the tower looks once at each clip, of which the language model sees several different parts: which
tokens stay, and what becomes of the others, is drawn (:mod:`mmaccel.demos.training.onevision.thinning`) and that
of no method in particular. What it ends with is half way between the weights before and after (WiSE-FT: Robust
fine-tuning of zero-shot models, Wortsman et al., 2022): after 34 minutes that was better than both, so rather go on
twice than for long. Goes on where it stopped, and ends by the clock.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
from pathlib import Path

import torch

from mmaccel import zoo
from mmaccel.zoo.tiny_onevision import load
from mmaccel.zoo.vocabulary import facts_of
from mmaccel.zoo.worlds.moving_world import ONEVISION

from ..optimizer import optimizers_of
from ..recipe import Stage, begin, command_line, goes_on
from . import shape
from .data import Batch, Packer, draw
from .parts import Trained, answer_loss, soften
from .thinning import thin
from .train import QUESTIONS, check, finish

PACE = 0.3  # of the learning rates of the first training
LOOKING, LOOKING_FRAMES = 16, 4  # clips a step that the tower looks at, and frames of each
CLIPS, PARTS = 4, 4  # clips a step, and parts of each
MOST, ALL = 0.4, 8  # the most tokens of a part; every so many steps, one part is all of them
CROWDED = dataclasses.replace(ONEVISION, things=(0.1, 0.3, 0.6))  # of many things, one is soon overlooked


def main(argv: list[str] | None = None) -> None:
    parser = command_line(__doc__, seed=21)
    parser.add_argument("--model", type=Path, help="folder of the weights to begin with; those shipped")
    parser.add_argument("--minutes", type=float, default=60, help="time for all")
    parser.add_argument(
        "--tower-minutes", type=float, default=6, help="of which for where the vision tower looks; 0 for none"
    )
    parser.add_argument("--questions", type=int, default=600, help="questions to measure the end result on")
    args = parser.parse_args(argv)
    if args.tower_minutes >= args.minutes:
        parser.error("--tower-minutes: leave some of --minutes for the language model")
    folder = args.model or zoo.path("tiny-onevision")
    goes_on(parser, "--model", folder, args.output)
    begin(args)
    args.tokenizer = shape.build_tokenizer()
    facts = facts_of(folder)
    model = load(folder)[0]
    shape.rescale(model, shape.STREAM)
    module = Trained(model, args.tokenizer)
    if args.tower_minutes:
        module.load_state_dict(look(module, args).state_dict())
    before = copy.deepcopy(module)
    stage = train(module, args)
    trained = stage.finish()
    between(before, trained)
    told = {"seed": facts["seed"], "thinned_minutes": facts.get("thinned_minutes", 0) + args.minutes}
    args.minutes += facts["minutes"]
    args.tower_minutes += facts["tower_minutes"]
    finish(trained, args, facts["steps"] + stage.step, **told)


def look(module: Trained, args: argparse.Namespace) -> Trained:
    """The tower's last layer on where things are, the features as they were; returns the averaged module."""
    before, last = copy.deepcopy(module), f"vision_tower.encoder.layers.{shape.VISION_LAYERS - 1}."
    parts = (last, "post_layernorm", "projector")
    stage = Stage("looking", module, optimizers_of(module, parts, pace=PACE), args.tower_minutes, args.output)
    packer = Packer(args.tokenizer)
    for _ in stage.shares(warmup=150, decay=0.7):
        batch = draw(packer, [args.seed, 0, stage.step], LOOKING, LOOKING_FRAMES, asked=1)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                aim = before.features(batch.frames).float()
            changed = (module.features(batch.frames).float() - aim).square().mean() / aim.square().mean()
            looking = module.looking_loss(batch)
        stage.took(looking + changed, looking=looking, changed=changed)
    return stage.finish()


def train(module: Trained, args: argparse.Namespace) -> Stage:
    """The language model on parts of what the tower sees."""
    optimizers = optimizers_of(module, ("language_model", "image_newline"), pace=PACE)
    stage = Stage("thinned", module, optimizers, args.minutes - args.tower_minutes, args.output)
    packer = Packer(args.tokenizer)
    for _ in stage.shares(warmup=150, decay=0.7):
        batch = draw(packer, [args.seed, 1, stage.step], CLIPS, ONEVISION.frames, QUESTIONS, CROWDED)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                features = module.features(batch.frames)
                attention = module.attention()
            seeds = [[args.seed, stage.step, part] for part in range(PARTS)]
            parts = [_part_loss(module, features, attention, batch, seed) for seed in seeds]
        losses, right = zip(*parts, strict=True)
        stage.took(torch.stack(losses).mean(), right=torch.stack(right).mean())
        soften(module.model.model.language_model)
        if stage.due():
            check(stage, args)
    return stage


@torch.no_grad()
def between(before: torch.nn.Module, trained: torch.nn.Module) -> None:
    """Move every weight half way back to what it was before the training."""
    for old, new in zip(before.parameters(), trained.parameters(), strict=True):
        new.lerp_(old, 0.5)


def _part_loss(
    module: Trained, features: torch.Tensor, attention: torch.Tensor, batch: Batch, seed: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of the answers from one part of each clip, and the share of them that is right."""
    _, step, part = seed
    times = batch.times if (step + part) % 2 else None  # with gaps where tokens are left out, and without
    if part == 0 and step % ALL == 0:
        logits, *_ = module(features, batch.tokens, times)
    else:
        thinned = thin(features, batch, [*seed, 2], MOST, attention)
        logits, *_ = module(thinned.features, batch.tokens, times, thinned.kept, thinned.late, thinned.late_own)
    return answer_loss(logits, batch.labels)


if __name__ == "__main__":
    main()
