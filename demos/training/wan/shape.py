"""The shape of `tiny-wan`: its configurations, its word tokenizer and its starting weights."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanTransformer3DModel
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from mmaccel.zoo.worlds import moving_world as world

from .. import recipe
from ..word_tokenizer import word_tokenizer

SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")
LATENT_CHANNELS = 8
HIDDEN = 256
HEADS = 4
TEXT_WIDTH = 96
TEXT_LENGTH = 16  # tokens; the longest caption has 11
SHIFT = 3.0
GUIDANCE = 3.0


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word tokenizer over everything a caption of the moving world can say."""
    words = " ".join([*world.NAMES, *world.MOTIONS, *world.BACKGROUNDS, "background"]).split()
    return word_tokenizer(
        SPECIAL_TOKENS,
        words,
        unsaid="a|an|the|and|on|in",
        template="$A </s>",
        padding_side="right",
        model_max_length=TEXT_LENGTH,
        eos_token="</s>",
    )


def build_vae() -> AutoencoderKLWan:
    """An untrained `AutoencoderKLWan`: four times smaller in each direction, two times in time.

    As in Wan 2.2, pixels are first folded into patches (2 x 2), so that no convolution runs at full size.
    """
    vae = AutoencoderKLWan(
        base_dim=16,
        decoder_base_dim=32,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[True],
        patch_size=2,
        in_channels=12,
        out_channels=12,
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
        scale_factor_temporal=2,
        scale_factor_spatial=4,
    )
    _initialize_vae(vae)
    return vae


@torch.no_grad()
def _initialize_vae(vae: AutoencoderKLWan) -> None:
    """Unit gain along the main path and small residual branches, so that colour comes through from the start."""
    for name, module in vae.named_modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Conv3d)):
            gain = 0.2 if name.endswith(("conv2", "proj")) else 1.0
            module.weight.normal_(0, gain * module.weight[0].numel() ** -0.5)
            module.bias.zero_()
    vae.quant_conv.bias[LATENT_CHANNELS:] = -4.0  # little noise at first: an autoencoder before a variational one


def build_text_encoder(tokenizer: PreTrainedTokenizerFast) -> UMT5EncoderModel:
    """An untrained text encoder of two layers."""
    config = UMT5Config(
        vocab_size=len(tokenizer),
        d_model=TEXT_WIDTH,
        d_kv=TEXT_WIDTH // 4,
        d_ff=2 * TEXT_WIDTH,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=16,
        relative_attention_max_distance=32,
        dropout_rate=0.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return UMT5EncoderModel(config)


def build_transformer() -> WanTransformer3DModel:
    """An untrained `WanTransformer3DModel` for 9 x 8 x 8 tokens."""
    model = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=HEADS,
        attention_head_dim=HIDDEN // HEADS,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        text_dim=TEXT_WIDTH,
        freq_dim=HIDDEN,
        ffn_dim=3 * HIDDEN,
        num_layers=6,
        rope_max_seq_len=64,
    )
    initialize(model)
    return model


@torch.no_grad()
def initialize(model: torch.nn.Module) -> None:
    """Blocks start as small steps whatever the time, and the velocity as zero: the first minutes are not lost."""
    for block in model.blocks:
        block.scale_shift_table.zero_()
        block.scale_shift_table[:, [2, 5]] = 0.3  # the gates of attention and of the feed-forward
        block.attn2.to_out[0].weight.mul_(0.3)
    model.scale_shift_table.zero_()
    model.condition_embedder.time_proj.weight.mul_(0.1)
    model.proj_out.weight.zero_()
    model.proj_out.bias.zero_()


def build_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Euler with shift 3, as Wan has for small pictures."""
    return FlowMatchEulerDiscreteScheduler(shift=SHIFT)


def to_pixels(frames: torch.Tensor) -> torch.Tensor:
    """uint8 `[B, T, H, W, 3]` to the model's float `[B, 3, T, H, W]` in [-1, 1]."""
    return recipe.to_pixels(frames).transpose(1, 2)
