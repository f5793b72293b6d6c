"""What `tiny-far` learns from: long clips, drawn by several processes and encoded once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from diffusers import WanPipeline
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from .. import moving_world as world
from ..wan.parts import encode_captions
from ..wan.shape import to_pixels
from ..wan.vae import TRAINING, encode

CLIPS = 8  # encoded at a time


class Clips(Dataset):
    """Clip by number: frames `[T, H, W, 3]` and a caption, a pure function of seed and number."""

    def __init__(self, stream: int, seed: int, count: int) -> None:
        self.stream, self.seed, self.count = stream, seed, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[np.ndarray, str]:
        training = self.stream == TRAINING
        seed = [self.stream, self.seed, number]
        clip = world.draw_clip(seed, held_out=not training, full_caption=not training, footage=world.FAR)
        return clip.frames, clip.caption


@torch.no_grad()
def encoded_clips(
    pipeline: WanPipeline, stream: int, seed: int, count: int, workers: int = 0
) -> tuple[torch.Tensor, list[str]]:
    """Normalised latents `[count, T, C, H, W]` in float16 on the pipeline's device, and captions."""
    vae, latents, captions = pipeline.vae, [], []
    mean, deviation = (
        torch.tensor(x, device=vae.device).view(-1, 1, 1, 1) for x in (vae.config.latents_mean, vae.config.latents_std)
    )
    loader = DataLoader(Clips(stream, seed, count), batch_size=CLIPS, num_workers=workers)
    for frames, words in tqdm(loader, desc="encode", mininterval=5, ncols=100):
        found = encode(vae, to_pixels(frames.to(vae.device))).chunk(2, 1)[0]
        latents.append(((found - mean) / deviation).half().transpose(1, 2))
        captions += words
    return torch.cat(latents), captions


def pool(pipeline: WanPipeline, folder: Path, seed: int, count: int, workers: int) -> tuple[torch.Tensor, list[str]]:
    """The clips to train on, encoded once and kept beside the checkpoints."""
    path, words = folder / "pool.safetensors", folder / "pool.json"
    if not words.is_file():
        latents, captions = encoded_clips(pipeline, TRAINING, seed, count, workers)
        save_file({"latents": latents.contiguous()}, path)
        words.write_text(json.dumps(captions))
    return load_file(path, device=str(pipeline.device))["latents"], json.loads(words.read_text())


@torch.no_grad()
def encoded_captions(pipeline: WanPipeline, captions: list[str]) -> torch.Tensor:
    """What the text encoder makes of captions, `[count, TEXT_LENGTH, D]`."""
    parts = (captions[first : first + 512] for first in range(0, len(captions), 512))
    return torch.cat([encode_captions(pipeline.tokenizer, pipeline.text_encoder, part) for part in parts])
