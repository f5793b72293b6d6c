"""The video autoencoder of `tiny-wan`: how it is trained, and how it encodes many clips fast."""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import patchify, unpatchify
from safetensors.torch import load_file
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from mmaccel.files.output import replacing
from mmaccel.zoo.worlds import moving_world as world

from ..checkpoint import Checkpoint, stoppable, write, write_model
from ..janus.vq import picture_loss
from ..optimizer import Muon, trapezoid
from ..recipe import LOG_STEPS, SAVE_SECONDS, UNITS, Clock, step_with
from .shape import to_pixels

Vae = TypeVar("Vae", bound=torch.nn.Module)
KL_WEIGHT = 2e-3
TRAINING, HELD_OUT = 0, 1  # streams of seeds
CLIPS = 8  # encoded at a time


def draw(stream: int, seed: int, first: int, count: int, footage: world.Footage = world.WAN) -> list[world.Clip]:
    """Clips `first` to `first + count` of a stream; those to train on have captions that leave out a tenth."""
    held_out = stream == HELD_OUT
    return [world.draw_clip([stream, seed, i], held_out, held_out, footage) for i in range(first, first + count)]


def pixels_of(clips: list[world.Clip]) -> torch.Tensor:
    """Float `[B, 3, T, H, W]` in [-1, 1]."""
    return to_pixels(torch.from_numpy(np.stack([clip.frames for clip in clips])))


def encode(vae: AutoencoderKLWan, pixels: torch.Tensor) -> torch.Tensor:
    """What `vae.encode` computes (mean and log-variance), in two chunks instead of one for every four frames."""
    vae.clear_cache()
    parts = []
    for part in patchify(pixels, vae.config.patch_size).split([1, pixels.shape[2] - 1], 2):
        vae._enc_conv_idx = [0]
        parts.append(vae.encoder(part, feat_cache=vae._enc_feat_map, feat_idx=vae._enc_conv_idx))
    vae.clear_cache()
    return vae.quant_conv(torch.cat(parts, 2))


def decode(vae: AutoencoderKLWan, latents: torch.Tensor) -> torch.Tensor:
    """What `vae.decode` computes before it clamps, in two chunks instead of one for every latent frame."""
    vae.clear_cache()
    parts: list[torch.Tensor] = []
    for part in vae.post_quant_conv(latents).split([1, latents.shape[2] - 1], 2):
        vae._conv_idx = [0]
        parts.append(vae.decoder(part, feat_cache=vae._feat_map, feat_idx=vae._conv_idx, first_chunk=not parts))
    vae.clear_cache()
    return unpatchify(torch.cat(parts, 2), vae.config.patch_size)


def vae_loss(vae: AutoencoderKLWan, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Reconstruction and divergence over the clips of one step, each a mean over elements."""
    pixels, noise = batch_of(seed, step), torch.Generator().manual_seed(step)
    mean, log_variance = encode(vae, pixels).float().clamp(-20, 20).chunk(2, 1)
    sampled = mean + (0.5 * log_variance).exp() * torch.randn(mean.shape, generator=noise)
    output = decode(vae, sampled).float()
    frames, targets = (x.transpose(1, 2).flatten(0, 1) for x in (output, pixels))
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
    return picture_loss(frames, targets) + F.l1_loss(output.diff(dim=2), pixels.diff(dim=2)), divergence.mean()


def batch_of(seed: int, step: int) -> torch.Tensor:
    """Five frames of eight clips, in every third step three whole clips."""
    whole = step % 3 == 2
    pixels = pixels_of(draw(TRAINING, seed, step * 8, 3 if whole else 8))
    begin = int(np.random.default_rng([seed, step]).integers(world.FRAMES - 4))
    return pixels if whole else pixels[:, :, begin : begin + 5]


def train_vae(
    vae: torch.nn.Module, folder: Path, minutes: float, loss_of: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """Train until its minutes are over on `loss_of(step)`, reconstruction and divergence."""
    filters = [p for p in vae.parameters() if p.ndim >= 4 and p[0].numel() > 1]
    others = [p for p in vae.parameters() if not (p.ndim >= 4 and p[0].numel() > 1)]
    optimizers = [
        Muon(filters, lr=0.006, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    kept = torch.nn.ModuleDict({"vae": vae})  # the clock's buffer is none of the model's
    clock = Clock(kept, minutes)
    checkpoint = Checkpoint(folder / "vae.safetensors", kept, optimizers)
    step, saved = checkpoint.load(), time.monotonic()

    def save(_: float) -> None:
        checkpoint.save(step)

    for share in stoppable(clock.shares("vae"), save):
        for optimizer in optimizers:
            trapezoid(optimizer, int(share * UNITS), UNITS, warmup=200, decay=0.5)
        with torch.autocast("cpu", torch.bfloat16):
            loss, divergence = loss_of(step)
        step_with(optimizers, loss + KL_WEIGHT * divergence, vae.parameters())
        step += 1
        if step % LOG_STEPS == 0:
            tqdm.write(f"vae {step} loss {loss.item():.4f} divergence {divergence.item():.3f}")
        if time.monotonic() - saved > SAVE_SECONDS / 3:
            checkpoint.save(step)
            saved = time.monotonic()
    checkpoint.save(step)


def kept_vae(
    args: argparse.Namespace,
    build: Callable[[], Vae],
    loss: Callable[[Vae, int, int], tuple[torch.Tensor, torch.Tensor]],
    measure: Callable[[Vae, int], None],
) -> Path:
    """The folder of an autoencoder as it is shipped, rounded to float16; trained and written if it is not there yet."""
    folder: Path = args.output / "model" / "vae"
    if not folder.is_dir():
        vae = build()
        train_vae(vae, args.output, args.vae_minutes, functools.partial(loss, vae, args.seed))
        vae.half().float()
        measure(vae, args.seed)
        write_model(vae.half(), folder)
    return folder


@torch.no_grad()
def measure_latents(vae: AutoencoderKLWan, seed: int) -> None:
    """Put mean and deviation of each latent channel into the configuration, as the pipeline wants them."""
    latents = encode(vae, pixels_of(draw(TRAINING, seed, 0, 64))).chunk(2, 1)[0]
    mean, deviation = latents.mean((0, 2, 3, 4)), latents.std((0, 2, 3, 4))
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=deviation.clamp(min=0.2).tolist())


class Clips(Dataset):
    """Clip by number: frames `[T, H, W, 3]` and a caption, a pure function of stream, seed and number."""

    def __init__(self, stream: int, seed: int, count: int, footage: world.Footage) -> None:
        self.stream, self.seed, self.count, self.footage = stream, seed, count, footage

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[np.ndarray, str]:
        (clip,) = draw(self.stream, self.seed, number, 1, self.footage)
        return clip.frames, clip.caption


@torch.no_grad()
def encoded_clips(
    vae: AutoencoderKLWan, stream: int, seed: int, count: int, footage: world.Footage = world.WAN, workers: int = 0
) -> tuple[torch.Tensor, list[str]]:
    """Normalised latents `[count, C, T, H, W]` in float16 on the autoencoder's device, and captions."""
    mean, deviation = (
        torch.tensor(x, device=vae.device).view(-1, 1, 1, 1) for x in (vae.config.latents_mean, vae.config.latents_std)
    )
    latents, captions = [], []
    loader = DataLoader(Clips(stream, seed, count, footage), batch_size=CLIPS, num_workers=workers)
    for frames, words in tqdm(loader, desc="encode", mininterval=5, ncols=100):
        latents.append(((encode(vae, to_pixels(frames.to(vae.device))).chunk(2, 1)[0] - mean) / deviation).half())
        captions += words
    return torch.cat(latents), captions


def pool(
    folder: Path, count: int, make: Callable[[], tuple[torch.Tensor, list[str]]], device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, list[str]]:
    """`count` latents and captions to train on, made once and kept beside the checkpoints; anew if these are fewer."""
    path, words = folder / "pool.safetensors", folder / "pool.json"
    if not words.is_file() or len(json.loads(words.read_text())) < count:
        latents, captions = make()
        write({"latents": latents.contiguous()}, path)
        with replacing(words) as temporary:
            temporary.write_text(json.dumps(captions))
    return load_file(path, device=str(device))["latents"][:count], json.loads(words.read_text())[:count]
