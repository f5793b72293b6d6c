"""The shape of `tiny-unet`: its UNet, autoencoder, text encoder and scheduler, and their starting weights."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerFast

from mmaccel.zoo.worlds import emoji_world as world
from mmaccel.zoo.worlds import moving_world

from ..amused.shape import TEXT_LENGTH

THINGS = moving_world.NAMES  # what `tiny-wan` draws: few enough to be drawn well
LATENT_CHANNELS = 4
GRID = 16  # latents across; 4 x 4 pixels each
TEXT_WIDTH = 96
WIDTHS = (64, 96, 128)  # of the UNet on 16, 8 and 4 latents across
GUIDANCE = 3.0


def build_text_encoder(tokenizer: PreTrainedTokenizerFast) -> CLIPTextModel:
    """An untrained text encoder of two layers."""
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=TEXT_WIDTH,
        intermediate_size=2 * TEXT_WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=TEXT_LENGTH,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return CLIPTextModel(config)


def build_vae() -> AutoencoderKL:
    """An untrained `AutoencoderKL`, four times smaller in each direction."""
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(32, 64, 64),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=8,
        sample_size=world.IMAGE_SIZE,
    )
    with torch.no_grad():
        vae.quant_conv.bias[LATENT_CHANNELS:] = -4.0  # little noise at first: an autoencoder before a variational one
    return vae


def build_unet() -> UNet2DConditionModel:
    """An untrained `UNet2DConditionModel` of three levels, as Stable Diffusion's: attention on the two upper ones.

    It starts with no noise found: the last filter is zero.
    """
    unet = UNet2DConditionModel(
        sample_size=GRID,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=WIDTHS,
        layers_per_block=2,
        attention_head_dim=4,
        cross_attention_dim=TEXT_WIDTH,
        norm_num_groups=16,
    )
    torch.nn.init.zeros_(unet.conv_out.weight)
    return unet


def build_scheduler() -> DDIMScheduler:
    """DDIM with the noise levels of Stable Diffusion."""
    return DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )
