"""What `tiny-far` learns from: long clips, encoded frame by frame, and their captions."""

from __future__ import annotations

import torch
from diffusers import WanPipeline

from mmaccel.zoo.worlds import moving_world as world

from ..wan import vae
from ..wan.parts import encode_captions


def encoded_clips(
    pipeline: WanPipeline, stream: int, seed: int, count: int, workers: int = 0
) -> tuple[torch.Tensor, list[str]]:
    """Normalised latents `[count, T, C, H, W]` in float16 on the pipeline's device, and captions."""
    latents, captions = vae.encoded_clips(pipeline.vae, stream, seed, count, world.FAR, workers)
    return latents.transpose(1, 2), captions


@torch.no_grad()
def encoded_captions(pipeline: WanPipeline, captions: list[str]) -> torch.Tensor:
    """What the text encoder makes of captions, `[count, TEXT_LENGTH, D]`."""
    parts = (captions[first : first + 512] for first in range(0, len(captions), 512))
    return torch.cat([encode_captions(pipeline.tokenizer, pipeline.text_encoder, part) for part in parts])
