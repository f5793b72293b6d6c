"""The last stage of `tiny-janus`: many more pictures on a GPU, with the weights averaged over the run.

It goes on from a model that :mod:`.train` saved, keeps its VQ model, and ends by the clock::

    python -m mmaccel.demos.training.janus.averaged --begin runs/tiny-janus/model --output runs/averaged \\
        --minutes 4 --device cuda --workers 15

Pictures are drawn by `--workers` processes meanwhile. Data are seeded; how many steps fit into the minutes depends on
the machine. The model is then in `runs/averaged/model`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import JanusForConditionalGeneration

from .. import emoji_world as world
from ..recipe import Stage, begin, command_line
from .data import draw
from .shape import build_tokenizer, encode_captions, to_pixels
from .train import CAPTION_DROPOUT, encoded_loss, optimizers_of, save, trained_parameters

LONGEST = 16  # words of a caption, with its marks
ENDLESS = 1 << 30


class Batches(Dataset):
    """Batch number `step`: pictures, token ids of captions padded on the right, and their lengths."""

    def __init__(self, seed: int, batch: int) -> None:
        self.seed, self.batch, self.tokenizer = seed, batch, build_tokenizer()

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        pictures, captions = draw(self.seed, step, self.batch, things=world.FEATURED)
        drop = (np.random.default_rng([self.seed, step, 2]).random(self.batch) < CAPTION_DROPOUT).tolist()
        rows = encode_captions(self.tokenizer, captions, drop)
        pad = self.tokenizer.pad_token_id
        text = torch.tensor([row + [pad] * (LONGEST - len(row)) for row in rows])
        return pictures, text, torch.tensor([len(row) for row in rows])


def train(model: JanusForConditionalGeneration, args: argparse.Namespace) -> int:
    """Train until the minutes are over, put the averaged weights into the model, and tell the steps."""
    inside, outside = trained_parameters(model)
    optimizers = optimizers_of(inside, outside, args.pace, torch.bfloat16)
    stage = Stage("averaged", torch.nn.ParameterList(inside + outside), optimizers, args.minutes, args.output)
    batches = DataLoader(
        Batches(args.seed + 1, args.batch),
        sampler=range(stage.step, ENDLESS),
        batch_size=None,
        num_workers=args.workers,
        prefetch_factor=4 if args.workers else None,
        pin_memory=args.device.startswith("cuda"),
    )
    for _, batch in zip(stage.shares(warmup=200, decay=0.7), batches, strict=False):
        pictures, text, lengths = (part.to(args.device, non_blocking=True) for part in batch)
        with torch.autocast(torch.device(args.device).type, torch.bfloat16):
            loss = encoded_loss(model, to_pixels(pictures), text, lengths)
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
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--batch", type=int, default=512, help="pictures a step")
    parser.add_argument("--pace", type=float, default=0.5, help="share of the full learning rates")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw; default 0: this one does")
    args = parser.parse_args(argv)
    begin(args)
    model = JanusForConditionalGeneration.from_pretrained(args.begin, dtype=torch.float32)
    steps = train(model.to(args.device), args)
    facts = json.loads((args.begin / "training.json").read_text())
    facts |= {"averaged_minutes": args.minutes, "averaged_steps": steps, "averaged_batch": args.batch}
    save(model.cpu(), build_tokenizer(), args.output / "model", facts)
    print(json.dumps({key: value for key, value in facts.items() if not isinstance(value, list)}, indent=2))


if __name__ == "__main__":
    main()
