"""Train `tiny-onevision` on, on a part of its visual tokens, from shipped weights::

    python -m mmaccel.demos.thin_tiny_onevision --output runs/thinned --minutes 60

Large video models answer nearly as well from a part of their tokens; a small one has to learn that. The vision tower
stays as it is and looks once at each clip, of which the language model then sees several different parts: which tokens
stay, and what becomes of the others, is drawn (:mod:`mmaccel.demos.tiny_onevision_thinning`) and that of no method in
particular. Goes on where it stopped, and ends by the clock.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from mmaccel.zoo import tiny_onevision as shipped

from . import tiny_onevision as shape
from .moving_world import ONEVISION
from .tiny_onevision_check import accuracy
from .tiny_onevision_data import Batch, Packer, draw
from .tiny_onevision_parts import Trained, answer_loss, soften
from .tiny_onevision_save import save
from .tiny_onevision_thinning import thin
from .train_tiny_onevision import QUESTIONS, Stage, check, facts, optimizers_of

SHIPPED = Path(shipped.__file__).parent / "tiny-onevision"
PACE = 0.3  # of the learning rates of the first training
CLIPS, PARTS = 4, 4  # clips a step, and parts of each
MOST, ALL = 0.4, 8  # the most tokens of a part; every so many steps, one part is all of them


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=SHIPPED, help="folder of the weights to begin with")
    parser.add_argument("--output", type=Path, required=True, help="folder for checkpoints and the model")
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--questions", type=int, default=600, help="questions to measure the end result on")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.tokenizer = shape.build_tokenizer()
    before = json.loads((args.model / "training.json").read_text(encoding="utf-8"))
    args.tower_minutes = before["tower_minutes"]
    told = {"seed": before["seed"], "thinned_minutes": before.get("thinned_minutes", 0) + args.minutes}
    trained = train(Trained(shipped.load(args.model)[0], args.tokenizer), args)
    args.minutes += before["minutes"]
    steps = before["steps"] + json.loads((args.output / "thinned.json").read_text())["step"]
    save(trained.model, args.tokenizer, args.output / "model", facts(args, steps) | told)
    measured = accuracy(args.output / "model", args.questions, seed=0)
    rounded = {kind: round(float(share), 3) for kind, share in measured.items()}
    save(trained.model, args.tokenizer, args.output / "model", facts(args, steps, accuracy=rounded) | told)
    print(json.dumps(rounded, indent=1))


def train(module: Trained, args: argparse.Namespace) -> Trained:
    """The language model on parts of what the tower sees; returns the averaged module."""
    module.requires_grad_(False)
    optimizers = optimizers_of(module, ("language_model", "image_newline"), PACE)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.requires_grad_(True)
    stage, packer = Stage("thinned", module, optimizers, args.minutes, args), Packer(args.tokenizer)
    for _ in stage.shares(decay=0.7):
        batch = draw(packer, [args.seed, 1, stage.step], CLIPS, ONEVISION.frames, QUESTIONS, ONEVISION)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                features = module.features(batch.frames)
            parts = [_part_loss(module, features, batch, [args.seed, stage.step, part]) for part in range(PARTS)]
        losses, right = zip(*parts, strict=True)
        stage.took(torch.stack(losses).mean(), right=torch.stack(right).mean())
        soften(module.model.model.language_model)
        if stage.due():
            check(stage, args)
    return stage.finish()


def _part_loss(
    module: Trained, features: torch.Tensor, batch: Batch, seed: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of the answers from one part of each clip, and the share of them that is right."""
    _, step, part = seed
    times = batch.times if (step + part) % 2 else None  # with gaps where tokens are left out, and without
    if part == 0 and step % ALL == 0:
        logits, *_ = module(features, batch.tokens, times)
    else:
        thinned = thin(features, batch, [*seed, 2], MOST, module.attention())
        logits, *_ = module(thinned.features, batch.tokens, times, thinned.kept, thinned.late, thinned.late_own)
    return answer_loss(logits, batch.labels)


if __name__ == "__main__":
    main()
