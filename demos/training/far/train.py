"""Train `tiny-far`, the small model that draws videos in blocks, and the smaller one that drafts for it.

It stands on the autoencoder and the text encoder of `tiny-wan`, and ends by the clock::

    python -m mmaccel.demos.training.far.train --output runs/tiny-far --minutes 7 --device cuda --workers 15

Clips of 71 frames are drawn by `--workers` processes and encoded once; then each transformer learns flow matching on
it. `--sizes` trains one of them, so that both can be trained at the same time; without any only clips are encoded. Data
are seeded; how many steps fit into the minutes depends on the machine.
"""

from __future__ import annotations

import argparse
import json

import torch
from diffusers import WanPipeline

from mmaccel import zoo
from mmaccel.zoo.worlds.moving_world import FAR

from ..checkpoint import write_facts
from ..optimizer import optimizers_of
from ..recipe import Average, Stage, begin, command_line
from ..wan import vae
from ..wan.parts import encode_captions
from ..wan.train import CAPTION_DROPOUT
from ..wan.vae import HELD_OUT, TRAINING, pool
from . import shape
from .loss import BlockLoss, TrainingAttention

FEW = 3  # blocks of a beginning, on which every second step trains


def train(size: str, pipeline: WanPipeline, clips: tuple[torch.Tensor, list[str]], args: argparse.Namespace) -> None:
    """One of the transformers, on encoded clips and their captions."""
    torch.manual_seed(args.seed)
    model = shape.build_transformer(size)
    if size == "transformer":
        shape.begin_with(model, pipeline.transformer)
    model = model.to(args.device)
    average = Average(model)
    TrainingAttention.put_on(model)
    stage = Stage(size, model, optimizers_of(model, blocks=(".blocks.",)), args.minutes, args.output, average)
    latents, captions = clips
    text = encoded_captions(pipeline, captions + [""])
    random, loss_of = torch.Generator(args.device).manual_seed(args.seed + stage.step), BlockLoss(model)
    for _ in stage.shares(warmup=200, decay=0.7):
        with torch.autocast(torch.device(args.device).type, torch.bfloat16):
            loss = loss_of(*_batch(latents, text, stage.step, args, random)).mean()
        stage.took(loss)
        stage.due()
    save(stage.finish(), size, stage.step, pipeline, args)


def _batch(
    latents: torch.Tensor, text: torch.Tensor, step: int, args: argparse.Namespace, random: torch.Generator
) -> tuple[torch.Tensor, ...]:
    """Latents, text, shares, ends and noise of one step: beginnings of clips, and longer parts, in turn."""

    def uniform(*size: int) -> torch.Tensor:
        return torch.rand(*size, device=latents.device, generator=random)

    blocks = FEW if step % 2 else int(FEW + 1 + (shape.BLOCKS - FEW) * float(torch.rand(())))
    chosen = (uniform(args.batch) * len(latents)).long()
    clips = latents[chosen, : blocks * shape.BLOCK].float()
    words = torch.where(uniform(args.batch) < CAPTION_DROPOUT, len(text) - 1, chosen)
    ends = uniform(args.batch, blocks).mul(2).clamp(max=1)  # half of the time that of the noise itself
    noise = torch.randn(clips.shape, device=clips.device, generator=random)
    return clips, text[words], uniform(args.batch, blocks), ends, noise


def encoded_clips(
    pipeline: WanPipeline, stream: int, seed: int, count: int, workers: int = 0
) -> tuple[torch.Tensor, list[str]]:
    """Normalised latents `[count, T, C, H, W]` in float16 on the pipeline's device, and captions."""
    latents, captions = vae.encoded_clips(pipeline.vae, stream, seed, count, FAR, workers)
    return latents.transpose(1, 2), captions


@torch.no_grad()
def encoded_captions(pipeline: WanPipeline, captions: list[str]) -> torch.Tensor:
    """What the text encoder makes of captions, `[count, TEXT_LENGTH, D]`."""
    parts = (captions[first : first + 512] for first in range(0, len(captions), 512))
    return torch.cat([encode_captions(pipeline.tokenizer, pipeline.text_encoder, part) for part in parts])


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, pipeline: WanPipeline, seed: int, count: int = 64, batch: int = 16) -> float:
    """Mean squared error of the velocity in the last three blocks of clips never trained on."""
    latents, captions = encoded_clips(pipeline, HELD_OUT, seed, count)
    text, random = encoded_captions(pipeline, captions), torch.Generator().manual_seed(0)
    shares = ((torch.arange(count * shape.BLOCKS) + 0.5) / (count * shape.BLOCKS)).view(shape.BLOCKS, count).T
    noise = torch.randn(latents.shape, generator=random).to(latents)
    kept = [block.attn1.processor for block in model.blocks]
    TrainingAttention.put_on(model)
    parts = (x.to(latents.device).float().split(batch) for x in (latents, text, shares, torch.ones_like(shares), noise))
    loss = BlockLoss(model)
    losses = [loss(*part).mean() for part in zip(*parts, strict=True)]
    for block, processor in zip(model.blocks, kept, strict=True):
        block.attn1.set_processor(processor)
    return float(torch.stack(losses).mean())


def save(model: torch.nn.Module, size: str, steps: int, pipeline: WanPipeline, args: argparse.Namespace) -> None:
    """Write what `mmaccel.zoo` ships: the transformer in float16, the scheduler, and facts."""
    folder = args.output / "model"
    loss = held_out_loss(model.half().float(), pipeline, args.seed)
    model.half().save_pretrained(folder / size)
    shape.build_scheduler().save_pretrained(folder / "scheduler")
    own = {"minutes": args.minutes, "steps": steps, "batch": args.batch, "pool": args.pool, "seed": args.seed}
    own["held_out_loss"] = round(loss, 4)
    write_facts(own, folder / size)
    write_facts({name: pipeline.facts[name] for name in ("names", "motions", "backgrounds")}, folder)
    print(size, json.dumps(own))


def main(argv: list[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--sizes", nargs="*", choices=tuple(shape.SIZES), default=tuple(shape.SIZES))
    parser.add_argument("--minutes", type=float, default=7, help="time for each transformer")
    parser.add_argument("--pool", type=int, default=6000, help="clips to train on")
    parser.add_argument("--batch", type=int, default=32, help="clips a step")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw clips; 0: this one does")
    args = parser.parse_args(argv)
    begin(args)
    pipeline = zoo.load("tiny-wan").to(args.device)

    def encoded() -> tuple[torch.Tensor, list[str]]:
        return encoded_clips(pipeline, TRAINING, args.seed, args.pool, args.workers)

    clips = pool(args.output, args.pool, encoded, args.device)
    for size in args.sizes:
        train(size, pipeline, clips, args)


if __name__ == "__main__":
    main()
