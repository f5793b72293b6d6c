"""The autoencoder of `tiny-unet`, and the pictures to train on as its latents."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL
from tqdm import tqdm

from ..janus.vq import picture_loss
from ..recipe import to_pixels
from .data import TRAINING, draw

BATCH = 16
ENCODED = 100  # pictures that are encoded together


def vae_loss(vae: AutoencoderKL, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Reconstruction and divergence over the pictures of one step, each a mean over elements."""
    pixels = to_pixels(draw(TRAINING, seed, step, BATCH)[0])
    latents = vae.encode(pixels).latent_dist
    output = vae.decode(latents.sample(torch.Generator().manual_seed(step))).sample.float()
    divergence = 0.5 * (latents.mean.square() + latents.var - 1 - latents.logvar)
    return picture_loss(output, pixels), divergence.float().mean()


@torch.no_grad()
def measure_latents(vae: AutoencoderKL, seed: int) -> None:
    """Put the scale of the latents into the configuration, as the pipeline wants it."""
    latents = vae.encode(to_pixels(draw(TRAINING, seed, 0, 256)[0])).latent_dist.mean
    vae.register_to_config(scaling_factor=float(1 / latents.std()))


@torch.no_grad()
def encoded_pictures(vae: AutoencoderKL, stream: int, seed: int, count: int) -> tuple[torch.Tensor, list[str]]:
    """Scaled latents `[count, C, GRID, GRID]` in float16, and captions."""
    latents, captions = [], []
    for number in tqdm(range(0, count, ENCODED), desc="encode", mininterval=5, ncols=100):
        pictures, words = draw(stream, seed, number, min(ENCODED, count - number))
        latents.append((vae.encode(to_pixels(pictures)).latent_dist.mean * vae.config.scaling_factor).half())
        captions += words
    return torch.cat(latents), captions


@torch.no_grad()
def psnr(vae: AutoencoderKL, stream: int, seed: int, count: int = 128) -> float:
    """Decibels of decoded pictures of a stream."""
    pixels = to_pixels(draw(stream, seed, 0, count)[0])
    decoded = vae.decode(vae.encode(pixels).latent_dist.mean).sample
    return float(10 * torch.log10(4 / (decoded - pixels).square().mean()))
