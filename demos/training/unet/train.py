"""Train `tiny-unet`, the small text-to-picture UNet that mmaccel ships.

One command makes the weights from nothing but a font; it goes on where it stopped, and ends by the clock::

    python -m mmaccel.demos.training.unet.train --output runs/tiny-unet

First the autoencoder, then a pool of pictures is encoded once, then UNet and text encoder learn together to find the
noise in it (Ho et al., 2020), as Stable Diffusion did.
"""

from __future__ import annotations

import argparse
import functools

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, StableDiffusionPipeline
from diffusers.models.attention_processor import AttnProcessor
from PIL import Image

from mmaccel.files import pictures

from ..amused.shape import build_tokenizer
from ..amused.train import CAPTION_DROPOUT, words_of
from ..checkpoint import write_pipeline
from ..janus.data import said_of
from ..optimizer import muon_and_adam
from ..recipe import Average, Stage, begin, command_line, given
from ..wan.vae import kept_vae, pool
from . import shape
from .data import HELD_OUT, TRAINING
from .vae import encoded_pictures, measure_latents, psnr, vae_loss

LATE, NOISY = 0.8, 0.2  # from then on half of the times are in the noisiest part, where a thing gets its place
PROMPTS = (  # of the sheet of samples
    "big rocket on blue",
    "small red heart on white, top left",
    "big pizza on green",
    "small penguin on pink, bottom right",
    "big soccer ball on yellow",
    "small sunflower on purple, center",
    "big robot on orange",
    "small christmas tree on gray, top right",
)


def trained_vae(args: argparse.Namespace) -> AutoencoderKL:
    """The autoencoder as it is shipped, rounded to float16."""
    folder = kept_vae(args, shape.build_vae, vae_loss, measure_latents)
    return AutoencoderKL.from_pretrained(folder, torch_dtype=torch.float32)


def noise_loss(
    module: torch.nn.Module,
    pipeline: StableDiffusionPipeline,
    latents: torch.Tensor,
    captions: list[str],
    shares: torch.Tensor,
    noise: torch.Tensor,
) -> torch.Tensor:
    """Squared error of the noise that is found, a mean over elements; `shares` in (0, 1) become timesteps."""
    times = (shares * pipeline.scheduler.config.num_train_timesteps).long()
    text = module.text_encoder(words_of(pipeline.tokenizer, captions)).last_hidden_state
    found = module.unet(pipeline.scheduler.add_noise(latents, noise, times), times, text).sample
    return F.mse_loss(found.float(), noise)


def train_unet(module: torch.nn.Module, pipeline: StableDiffusionPipeline, average: Average, args) -> int:
    """UNet and text encoder together; returns the number of steps."""
    make = functools.partial(encoded_pictures, pipeline.vae, TRAINING, args.seed, args.pool)
    latents, captions = pool(args.output, args.pool, make)
    blocks = ("down_blocks.", "mid_block.", "up_blocks.")
    named = list(module.named_parameters())
    inside = {name for name, weight in named if weight.ndim > 1 and any(block in name for block in blocks)}
    optimizers = muon_and_adam(
        [weight for name, weight in named if name in inside],
        [weight for name, weight in named if name not in inside],
        pace=args.pace,
    )
    stage = Stage("unet", module, optimizers, args.minutes, args.output, average)
    module.unet.set_attn_processor(AttnProcessor())  # torch's own has a slow backward pass on processors
    for share in stage.shares(warmup=100, decay=0.5):
        rng = np.random.default_rng([args.seed, stage.step])
        chosen = rng.integers(len(latents), size=args.batch)
        words = ["" if rng.random() < CAPTION_DROPOUT else captions[i] for i in chosen]
        shares = torch.from_numpy((rng.permutation(args.batch) + rng.random(args.batch)) / args.batch).float()
        if share >= LATE:
            shares[::2] = 1 - NOISY * (1 - shares[::2])
        noise = torch.randn(args.batch, *latents.shape[1:], generator=torch.Generator().manual_seed(stage.step))
        with torch.autocast("cpu", torch.bfloat16):
            loss = noise_loss(module, pipeline, latents[chosen].float(), words, shares, noise)
        stage.took(loss)
        if stage.due():
            save(pipeline, args, stage.step)
            sheet(pipeline).save(args.output / f"samples-{stage.clock.seconds / 60:.0f}.png")
    stage.finish()
    return stage.step


@torch.no_grad()
def held_out_loss(pipeline: StableDiffusionPipeline, seed: int, count: int = 256) -> float:
    """Mean squared error of the noise over scenes never trained on, with evenly spread times."""
    latents, captions = encoded_pictures(pipeline.vae, HELD_OUT, seed, count)
    shares = (torch.arange(count) + 0.5) / count
    noise = torch.randn(latents.shape, generator=torch.Generator().manual_seed(0))
    return float(noise_loss(pipeline, pipeline, latents.float(), captions, shares, noise))


def sheet(pipeline: StableDiffusionPipeline, steps: int = 25) -> Image.Image:
    """A sheet of samples, one per prompt, none picked."""
    drawn = pipeline(
        list(PROMPTS),
        num_inference_steps=steps,
        guidance_scale=shape.GUIDANCE,
        generator=torch.Generator().manual_seed(0),
    ).images
    return pictures.sheet([pictures.headed(pictures.enlarged(d), p) for d, p in zip(drawn, PROMPTS, strict=True)], 4)


def save(pipeline: StableDiffusionPipeline, args: argparse.Namespace, step: int, **measured: float) -> None:
    """Write what `mmaccel.zoo` ships beside the autoencoder."""
    facts = {
        **given(args, "vae_minutes", "minutes", "pool", "batch"),
        "steps": step,
        **measured,
        **said_of(shape.THINGS),
        "guidance_scale": shape.GUIDANCE,
    }
    write_pipeline(pipeline, ("text_encoder", "unet"), args.output / "model", facts)


def main(argv: list[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--vae-minutes", type=float, default=7, help="time for the autoencoder")
    parser.add_argument("--minutes", type=float, default=85, help="time for UNet and text encoder")
    parser.add_argument("--pool", type=int, default=12_000, help="pictures to train the UNet on")
    parser.add_argument("--batch", type=int, default=16, help="pictures a step")
    parser.add_argument("--pace", type=float, default=0.5, help="factor of the learning rates")
    args = parser.parse_args(argv)
    begin(args)
    tokenizer = build_tokenizer(shape.THINGS)
    module = torch.nn.ModuleDict({"unet": shape.build_unet(), "text_encoder": shape.build_text_encoder(tokenizer)})
    average = Average(module)
    pipeline = StableDiffusionPipeline(
        vae=trained_vae(args),
        text_encoder=average.module.text_encoder,
        tokenizer=tokenizer,
        unet=average.module.unet,
        scheduler=shape.build_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    step = train_unet(module, pipeline, average, args)
    save(pipeline, args, step)
    shipped = StableDiffusionPipeline.from_pretrained(args.output / "model", torch_dtype=torch.float32)
    loss, decibels = held_out_loss(shipped, args.seed), psnr(shipped.vae, HELD_OUT, args.seed)
    save(pipeline, args, step, held_out_loss=round(loss, 4), vae_psnr=round(decibels, 1))
    sheet(shipped, steps=50).save(args.output / "samples.png")


if __name__ == "__main__":
    main()
