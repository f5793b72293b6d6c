"""The last stage of `tiny-janus`: many more pictures on a GPU, with the weights averaged over the run.

It goes on from a model that :mod:`.train` saved, keeps its VQ model, and ends by the clock::

    python -m mmaccel.demos.training.janus.averaged --begin runs/tiny-janus/model --output runs/averaged \\
        --minutes 7 --device cuda

Pictures are drawn on the device (:mod:`.drawing`). Data are seeded; how many steps fit into the minutes depends on the
machine. The model is then in `runs/averaged/model`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import JanusForConditionalGeneration

from mmaccel.zoo.vocabulary import facts_of
from mmaccel.zoo.weights import load_pretrained

from ..optimizer import muon_and_adam
from ..recipe import Stage, begin, command_line, goes_on
from .drawing import Drawing
from .shape import build_tokenizer
from .train import CAPTION_DROPOUT, RATE, encoded_loss, save, trained_parameters


def train(model: JanusForConditionalGeneration, args: argparse.Namespace) -> int:
    """Train until the minutes are over, put the averaged weights into the model, and tell the steps."""
    inside, outside = trained_parameters(model)
    optimizers = muon_and_adam(inside, outside, pace=args.pace, lr=RATE)
    stage = Stage("averaged", torch.nn.ParameterList(inside + outside), optimizers, args.minutes, args.output)
    drawing = Drawing(args.device, args.seed + 1 + stage.step, CAPTION_DROPOUT)
    if args.compile:
        for layer in [*model.model.language_model.layers, model.model.vqmodel.encoder]:
            layer.compile(dynamic=False)
    for _ in stage.shares(warmup=200, decay=0.7):
        pixels, text, lengths = drawing.batch(args.batch)
        with torch.autocast(torch.device(args.device).type, torch.bfloat16):
            loss = encoded_loss(model, pixels, text, lengths)
        stage.took(loss)
        stage.due()
    averaged = stage.finish()
    with torch.no_grad():
        for parameter, mean in zip([*inside, *outside], averaged.parameters(), strict=True):
            parameter.copy_(mean)
    return stage.step


def main(argv: list[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--begin", type=Path, required=True, help="folder of the model to go on from")
    parser.add_argument("--minutes", type=float, default=7)
    parser.add_argument("--batch", type=int, default=512, help="pictures a step")
    parser.add_argument("--pace", type=float, default=0.7, help="share of the full learning rates")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true", help="compile the layers: faster after a minute")
    args = parser.parse_args(argv)
    goes_on(parser, "--begin", args.begin, args.output)
    facts = facts_of(args.begin)
    begin(args)
    model = load_pretrained(JanusForConditionalGeneration, args.begin, dtype=torch.float32)
    steps = train(model.to(args.device), args)
    before = {name: facts.get(f"averaged_{name}", 0) for name in ("minutes", "steps")}  # of an earlier run
    facts |= {"averaged_minutes": round(before["minutes"] + args.minutes, 2), "averaged_batch": args.batch}
    facts["averaged_steps"] = before["steps"] + steps
    save(model.cpu(), build_tokenizer(), args.output / "model", facts)
    print(json.dumps({key: value for key, value in facts.items() if not isinstance(value, list)}, indent=2))


if __name__ == "__main__":
    main()
