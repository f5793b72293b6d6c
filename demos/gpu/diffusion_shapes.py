"""Pipelines of full-size transformers and of a UNet with random weights, and the arguments of their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers import (
    DDIMScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    LTXPipeline,
    LTXVideoTransformer3DModel,
    StableDiffusionPipeline,
    UNet2DConditionModel,
    WanPipeline,
    WanTransformer3DModel,
)

from .script import random_model

Built = tuple[Any, dict[str, Any]]


def wan(small: bool, device: str) -> Built:
    """Wan 2.1 1.3B: 480p, 81 frames, guidance on."""
    sizes: dict[str, Any] = {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30, "text_dim": 4096}
    if small:
        sizes = {"num_attention_heads": 2, "attention_head_dim": 64, "ffn_dim": 256, "num_layers": 2, "text_dim": 64}
    transformer = random_model(lambda: WanTransformer3DModel(**sizes), device)
    pipe = WanPipeline(
        **dict.fromkeys(("tokenizer", "text_encoder", "vae")),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        transformer=transformer,
    )
    text = _text(2, 512, sizes["text_dim"], transformer)
    height, width, frames = (64, 64, 9) if small else (480, 832, 81)
    return pipe, {
        "prompt_embeds": text[:1],
        "negative_prompt_embeds": text[1:],
        "height": height,
        "width": width,
        "num_frames": frames,
    }


def ltx(small: bool, device: str) -> Built:
    """LTX-Video 2B: 512 x 768, 121 frames, guidance on."""
    sizes: dict[str, Any] = {"caption_channels": 4096}
    if small:
        sizes = {"num_attention_heads": 2, "attention_head_dim": 64, "cross_attention_dim": 128, "num_layers": 2}
        sizes |= {"caption_channels": 64}
    transformer = random_model(lambda: LTXVideoTransformer3DModel(**sizes), device)
    pipe = LTXPipeline(
        **dict.fromkeys(("tokenizer", "text_encoder", "vae")),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        transformer=transformer,
    )
    text = _text(2, 128, sizes["caption_channels"], transformer)
    seen = torch.ones(1, 128, device=device, dtype=torch.bool)
    height, width, frames = (64, 64, 9) if small else (512, 768, 121)
    return pipe, {
        "prompt_embeds": text[:1],
        "prompt_attention_mask": seen,
        "negative_prompt_embeds": text[1:],
        "negative_prompt_attention_mask": seen,
        "height": height,
        "width": width,
        "num_frames": frames,
    }


def flux(small: bool, device: str) -> Built:
    """Flux.1 dev: 1024 x 1024, distilled guidance."""
    sizes: dict[str, Any] = {"guidance_embeds": True}
    if small:
        sizes |= {"num_attention_heads": 2, "attention_head_dim": 64, "axes_dims_rope": (16, 24, 24)}
        sizes |= {"num_layers": 2, "num_single_layers": 2, "joint_attention_dim": 64, "pooled_projection_dim": 64}
    transformer = random_model(lambda: FluxTransformer2DModel(**sizes), device)
    pipe = FluxPipeline(
        **dict.fromkeys(("tokenizer", "text_encoder", "tokenizer_2", "text_encoder_2", "vae")),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        transformer=transformer,
    )
    width, pooled = transformer.config.joint_attention_dim, transformer.config.pooled_projection_dim
    side = 64 if small else 1024
    return pipe, {
        "prompt_embeds": _text(1, 512, width, transformer),
        "pooled_prompt_embeds": _text(1, 1, pooled, transformer)[:, 0],
        "height": side,
        "width": side,
    }


def stable_diffusion(small: bool, device: str) -> Built:
    """Stable Diffusion 1.5: 512 x 512, guidance on, which doubles the batch."""
    sizes: dict[str, Any] = {"cross_attention_dim": 768, "attention_head_dim": 8}
    if small:
        sizes = {"cross_attention_dim": 32, "attention_head_dim": 8, "block_out_channels": (32, 32, 64, 64)}
    unet = random_model(lambda: UNet2DConditionModel(sample_size=64, **sizes), device)
    pipe = StableDiffusionPipeline(
        **dict.fromkeys(("tokenizer", "text_encoder", "vae", "safety_checker", "feature_extractor")),
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
        unet=unet,
        requires_safety_checker=False,
    )
    text, side = _text(2, 77, sizes["cross_attention_dim"], unet), 64 if small else 512
    return pipe, {"prompt_embeds": text[:1], "negative_prompt_embeds": text[1:], "height": side, "width": side}


SHAPES: dict[str, Callable[[bool, str], Built]] = {
    "wan-2.1-1.3b": wan,
    "ltx-video-2b": ltx,
    "flux.1-dev": flux,
    "stable-diffusion-1.5": stable_diffusion,
}


def build(name: str, small: bool, device: str) -> Built:
    """A pipeline that gives latents, without a progress bar; `small` is a tiny shape to try a script out."""
    torch.manual_seed(0)
    pipe, call = SHAPES[name](small, device)
    pipe.set_progress_bar_config(disable=True)
    return pipe, {**call, "output_type": "latent"}


def _text(count: int, length: int, width: int, denoiser: Any) -> torch.Tensor:
    return torch.randn(count, length, width, device=denoiser.device, dtype=denoiser.dtype)
