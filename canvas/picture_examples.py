"""A tiny untrained pipeline of masked pictures for the contract tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers import AmusedPipeline, AmusedScheduler, UVit2DModel, VQModel
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from mmaccel.testing.untrained import untrained

CODES, SIDE, WIDTH, WORDS = 32, 4, 16, 5
SCALE = 2.0  # sharp enough for steps that differ


def pictures(seed: int = 0) -> tuple[Any, Callable[..., Any]]:
    """An `AmusedPipeline` without a tokenizer, and `arguments(batch, **more)` of a guided call."""
    pipe: Any = AmusedPipeline(
        vqvae=untrained(vq, seed),
        tokenizer=None,
        text_encoder=untrained(text_encoder, seed),
        transformer=untrained(transformer, seed, SCALE),
        scheduler=AmusedScheduler(mask_token_id=CODES),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe, arguments


def arguments(batch: int = 1, steps: int = 6, size: int = 2 * SIDE, **more: Any) -> dict[str, Any]:
    """Guided, to the codes themselves."""
    drawn = torch.Generator().manual_seed(0)
    words, pooled = torch.randn(batch, WORDS, WIDTH, generator=drawn), torch.randn(batch, WIDTH, generator=drawn)
    branches = {"encoder_hidden_states": words, "prompt_embeds": pooled}
    without = {f"negative_{name}": torch.zeros_like(value) for name, value in branches.items()}
    settings = {"num_inference_steps": steps, "guidance_scale": 3.0, "height": size, "width": size}
    return {**branches, **without, **settings, "output_type": "latent", **more}


def vq() -> VQModel:
    """Pictures of twice the side of their grid of codes."""
    return VQModel(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        latent_channels=4,
        num_vq_embeddings=CODES,
        norm_num_groups=4,
        lookup_from_codebook=True,
    )


def text_encoder() -> CLIPTextModelWithProjection:
    """Of one layer; the call brings its own text."""
    sizes: dict[str, Any] = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "projection_dim": WIDTH}
    return CLIPTextModelWithProjection(
        CLIPTextConfig(**sizes, num_hidden_layers=1, num_attention_heads=2, vocab_size=16, max_position_embeddings=8)
    )


def transformer() -> UVit2DModel:
    """Of one layer."""
    return UVit2DModel(
        hidden_size=WIDTH,
        cond_embed_dim=WIDTH,
        micro_cond_encode_dim=4,
        micro_cond_embed_dim=20,
        encoder_hidden_size=WIDTH,
        vocab_size=CODES + 1,
        codebook_size=CODES,
        in_channels=WIDTH,
        block_out_channels=WIDTH,
        num_res_blocks=1,
        block_num_heads=2,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * WIDTH,
        sample_size=SIDE,
    )
