"""The shape of `tiny-amused`: its transformer, its text encoder and its word tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from diffusers import AmusedScheduler, UVit2DModel
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, PreTrainedTokenizerFast

from mmaccel.zoo.worlds import emoji_world as world

from ..janus.shape import CODES, GRID
from ..word_tokenizer import word_tokenizer

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
TEXT_LENGTH = 12  # the longest caption has 9 words
MASK = CODES
WIDTH, BLOCK_WIDTH, LAYERS = 192, 96, 4
MICRO = 32  # width of each of the five numbers (sizes, crop, score) that aMUSEd is told beside the text


def build_tokenizer(things: Sequence[str] = world.FEATURED) -> PreTrainedTokenizerFast:
    """A word tokenizer over everything a caption of the emoji world can say of these things."""
    words = " ".join([*things, *world.SIZES, *world.BACKGROUNDS, *world.PLACES, "on"]).split()
    return word_tokenizer(
        SPECIAL_TOKENS,
        words,
        unsaid="a|an|the|in|at",
        template="<bos> $A <eos>",
        model_max_length=TEXT_LENGTH,
        bos_token="<bos>",
        eos_token="<eos>",
    )


def build_text_encoder(tokenizer: PreTrainedTokenizerFast) -> CLIPTextModelWithProjection:
    """An untrained text encoder of two layers, of which the first gives the words and the second the sentence."""
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        projection_dim=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=TEXT_LENGTH,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.convert_tokens_to_ids("<eos>"),
    )
    return CLIPTextModelWithProjection(config)


def build_transformer(codes: torch.Tensor) -> UVit2DModel:
    """An untrained `UVit2DModel` whose layers see 8 x 8 cells of 2 x 2 codes, as aMUSEd 512 does.

    It begins with what the VQ model knows: `codes [V, D]` that look alike have like embeddings and like logits.
    """
    model = UVit2DModel(
        hidden_size=WIDTH,
        cond_embed_dim=WIDTH,
        micro_cond_encode_dim=MICRO,
        micro_cond_embed_dim=5 * MICRO,
        encoder_hidden_size=WIDTH,
        vocab_size=CODES + 1,
        codebook_size=CODES,
        in_channels=BLOCK_WIDTH,
        block_out_channels=BLOCK_WIDTH,
        num_res_blocks=4,  # 3 x 3 filters alone tell a cell where it is, from the border inwards: 4 of 8 cells
        downsample=True,
        upsample=True,
        block_num_heads=4,
        num_hidden_layers=LAYERS,
        num_attention_heads=6,
        intermediate_size=3 * WIDTH,
        sample_size=GRID,
    )
    with torch.no_grad():
        near = F.normalize(codes, dim=1)
        for weight, scale in ((model.embed.embeddings.weight, 1.0), (model.mlm_layer.conv2.weight[..., 0, 0], 0.6)):
            spread = torch.nn.init.orthogonal_(torch.empty(codes.shape[1], BLOCK_WIDTH))
            noise = torch.randn(len(codes), BLOCK_WIDTH) / BLOCK_WIDTH**0.5
            weight[: len(codes)] = scale * (near @ spread + 0.2 * noise)
    return model


def build_scheduler() -> AmusedScheduler:
    """aMUSEd's own: the share of masks falls as a cosine."""
    return AmusedScheduler(mask_token_id=MASK)


def micro_conditions(count: int) -> torch.Tensor:
    """What `AmusedPipeline` tells by default of a picture's size, crop and looks: `[count, 5]`."""
    return torch.tensor([[world.IMAGE_SIZE, world.IMAGE_SIZE, 0.0, 0.0, 6.0]]).expand(count, -1)
