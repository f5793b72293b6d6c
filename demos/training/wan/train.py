"""Train `tiny-wan`, the small text-to-video model that mmaccel ships.

One command makes the weights from nothing but a font; it goes on where it stopped, and ends by the clock::

    python -m mmaccel.demos.training.wan.train --output runs/tiny-wan

All on clips drawn by :mod:`mmaccel.zoo.worlds.moving_world`: first the video autoencoder, then a pool of clips is
encoded once, then the transformer and its text encoder learn flow matching on it, first on the beginnings of clips (a
third of the tokens), then on these and whole ones in turn, last on whole ones. Data are seeded; how many steps fit into
the minutes depends on the machine.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan, WanPipeline
from PIL import Image

from mmaccel.files import pictures
from mmaccel.zoo.worlds import moving_world as world

from ..checkpoint import write_pipeline
from ..optimizer import optimizers_of
from ..recipe import Average, Stage, begin, command_line, given
from . import shape
from .parts import TrainingAttention, flow_loss
from .vae import HELD_OUT, TRAINING, draw, encoded_clips, kept_vae, measure_latents, pixels_of, pool, vae_loss

CAPTION_DROPOUT = 0.1  # classifier-free guidance (Ho and Salimans, 2022)
SHORT_FRAMES = 3  # latent frames of the beginning of a clip: things and captions, at a third of the tokens
SHORT_SHARE, MIXED_SHARE = 0.15, 0.7  # until then only short clips; until then every second step
PROMPTS = (  # of the sheet of samples
    "rocket moves up, pizza stays, blue background",
    "soccer ball moves right, green background",
    "penguin moves left, star moves right, white background",
    "frog stays, banana moves down, pink background",
    "red heart stays, gray background",
    "robot moves down, sunflower moves up, purple background",
    "hamburger moves left, mushroom stays, green background",
    "christmas tree stays, gem stone stays, white background",
)


def trained_vae(args: argparse.Namespace) -> AutoencoderKLWan:
    """The autoencoder as it is shipped, in float16 steps."""
    folder = kept_vae(args, shape.build_vae, vae_loss, measure_latents)
    vae = AutoencoderKLWan.from_pretrained(folder, torch_dtype=torch.float32)
    frames = pixels_of(draw(HELD_OUT, args.seed, 0, 4))
    with torch.no_grad():
        shown = vae.decode(vae.encode(frames).latent_dist.mode()).sample
    clips = torch.stack([frames, shown], 1).flatten(0, 1).permute(0, 2, 3, 4, 1)
    contact_sheet(clips / 2 + 0.5, ["clip", "decoded"] * 4).save(args.output / "vae.png")
    return vae


def train_transformer(module: torch.nn.Module, pipeline: WanPipeline, average: Average, args) -> int:
    """Transformer and text encoder together; returns the number of steps."""
    make = functools.partial(encoded_clips, pipeline.vae, TRAINING, args.seed, args.pool)
    latents, captions = pool(args.output, args.pool, make)
    optimizers = optimizers_of(module, blocks=(".blocks.",))
    stage = Stage("transformer", module, optimizers, args.minutes, args.output, average)
    TrainingAttention.put_on(module.transformer, args.compile)
    for share in stage.shares(warmup=60, decay=0.5):
        short = share < SHORT_SHARE or (share < MIXED_SHARE and stage.step % 2 == 0)
        batch = args.batch * 3 if short else args.batch
        rng = np.random.default_rng([args.seed, stage.step])
        chosen = rng.integers(len(latents), size=batch)
        clips = latents[chosen, :, : SHORT_FRAMES if short else None].float()
        words = ["" if rng.random() < CAPTION_DROPOUT else captions[i] for i in chosen]
        shares = torch.from_numpy((rng.permutation(batch) + rng.random(batch)) / batch).float()
        noise = torch.randn(clips.shape, generator=torch.Generator().manual_seed(stage.step))
        with torch.autocast("cpu", torch.bfloat16):
            loss = flow_loss(module, pipeline.tokenizer, clips, words, shares, noise).mean()
        stage.took(loss)
        if stage.due():
            save(pipeline, args, stage.step)
            show(pipeline, args.output / f"samples-{stage.clock.seconds / 60:.0f}.png")
    stage.finish()
    return stage.step


@torch.no_grad()
def held_out_loss(pipeline: WanPipeline, seed: int, count: int = 64, batch: int = 8) -> float:
    """Mean squared error of the velocity over scenes never trained on, with evenly spread shares of the steps."""
    latents, captions = encoded_clips(pipeline.vae, HELD_OUT, seed, count)
    shares = (torch.arange(count) + 0.5) / count
    noise = torch.randn(latents.shape, generator=torch.Generator().manual_seed(0))
    losses = []
    for first in range(0, count, batch):
        part = slice(first, first + batch)
        clips = latents[part].float()
        losses.append(flow_loss(pipeline, pipeline.tokenizer, clips, captions[part], shares[part], noise[part]).mean())
    return float(torch.stack(losses).mean())


@torch.no_grad()
def held_out_psnr(vae: AutoencoderKLWan, seed: int, count: int = 32) -> float:
    """Decibels of decoded clips that were never trained on."""
    pixels = pixels_of(draw(HELD_OUT, seed, 0, count))
    errors = [(vae.decode(vae.encode(p).latent_dist.mode()).sample - p).square().mean() for p in pixels.split(8)]
    return float(10 * torch.log10(4 / torch.stack(errors).mean()))


def contact_sheet(clips, captions: list[str]) -> Image.Image:
    """Clips `[N, T, H, W, 3]` in [0, 1] down, every second frame across, each clip under its caption."""
    frames = (np.asarray(clips)[:, ::2].clip(0, 1) * 255).round().astype(np.uint8)
    strips = [Image.fromarray(np.concatenate(list(clip), 1)) for clip in frames]
    doubled = [strip.resize((2 * strip.width, 2 * strip.height), Image.Resampling.BICUBIC) for strip in strips]
    return pictures.sheet([pictures.headed(s, c) for s, c in zip(doubled, captions, strict=True)], 1)


def show(pipeline: WanPipeline, path: Path, prompts: tuple[str, ...] = PROMPTS[:4], steps: int = 20) -> None:
    """Write a sheet of samples, one per prompt, none picked."""
    with torch.autocast("cpu", torch.bfloat16):
        clips = pipeline(
            list(prompts),
            height=world.IMAGE_SIZE,
            width=world.IMAGE_SIZE,
            num_frames=world.FRAMES,
            num_inference_steps=steps,
            guidance_scale=shape.GUIDANCE,
            max_sequence_length=shape.TEXT_LENGTH,
            generator=torch.Generator().manual_seed(0),
        ).frames
    contact_sheet(clips, list(prompts)).save(path)


def save(pipeline: WanPipeline, args: argparse.Namespace, step: int, **measured: float) -> None:
    """Write what `mmaccel.zoo` ships beside the autoencoder."""
    facts = {
        **given(args, "vae_minutes", "minutes", "pool", "batch"),
        "steps": step,
        **measured,
        "names": list(world.NAMES),
        "motions": {motion: world.Actor("", motion).moving for motion in world.MOTIONS},
        "backgrounds": list(world.BACKGROUNDS),
        "frames": world.FRAMES,
        "size": world.IMAGE_SIZE,
        "text_length": shape.TEXT_LENGTH,
        "guidance_scale": shape.GUIDANCE,
    }
    write_pipeline(pipeline, ("text_encoder", "transformer"), args.output / "model", facts)


def main(argv: list[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--vae-minutes", type=float, default=12, help="time for the autoencoder")
    parser.add_argument("--minutes", type=float, default=55, help="time for the transformer")
    parser.add_argument("--pool", type=int, default=6000, help="clips to train the transformer on")
    parser.add_argument("--batch", type=int, default=8, help="whole clips a step of the transformer")
    parser.add_argument("--compile", action="store_true", help="compile the transformer's blocks: a third faster")
    args = parser.parse_args(argv)
    begin(args)
    tokenizer = shape.build_tokenizer()
    parts = {"transformer": shape.build_transformer(), "text_encoder": shape.build_text_encoder(tokenizer)}
    module = torch.nn.ModuleDict(parts)
    average = Average(module)
    scheduler = shape.build_scheduler()
    pipeline = WanPipeline(
        tokenizer, average.module.text_encoder, trained_vae(args), scheduler, average.module.transformer
    )
    pipeline.set_progress_bar_config(disable=True)
    step = train_transformer(module, pipeline, average, args)
    save(pipeline, args, step)
    shipped = WanPipeline.from_pretrained(args.output / "model", torch_dtype=torch.float32)
    loss, psnr = held_out_loss(shipped, args.seed), held_out_psnr(shipped.vae, args.seed)
    save(pipeline, args, step, held_out_loss=round(loss, 4), vae_psnr=round(psnr, 1))
    show(shipped, args.output / "samples.png", steps=40)


if __name__ == "__main__":
    main()
