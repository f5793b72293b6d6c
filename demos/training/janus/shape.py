"""The shape of `tiny-janus`: its configuration, its word tokenizer and its processor files."""

from __future__ import annotations

from transformers import (
    JanusConfig,
    JanusForConditionalGeneration,
    JanusVisionConfig,
    JanusVQVAEConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

from mmaccel.zoo.worlds import emoji_world as world

from ..word_tokenizer import word_tokenizer

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>", "<boi>", "<eoi>", "<image>")
GRID = world.IMAGE_SIZE // world.GRID_STEP
CODES = 1024
HIDDEN = 256
GUIDANCE = 2.0  # nearest to real pictures of 1.5, 1.75, 2 and 3


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word tokenizer over everything a caption of the emoji world can say."""
    words = " ".join([*world.names(), *world.SIZES, *world.BACKGROUNDS, *world.PLACES, "on"]).split()
    return word_tokenizer(
        SPECIAL_TOKENS,
        words,
        unsaid="a|an|the|in|at",
        template="<bos> $A",
        padding_side="left",
        bos_token="<bos>",
        eos_token="<eos>",
        extra_special_tokens={"boi_token": "<boi>", "eoi_token": "<eoi>", "image_token": "<image>"},
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> JanusForConditionalGeneration:
    """An untrained `JanusForConditionalGeneration` of 16 x 16 image tokens and 7M parameters."""
    config = JanusConfig(
        text_config=LlamaConfig(
            hidden_size=HIDDEN,
            intermediate_size=672,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=4,
            vocab_size=len(tokenizer),
            max_position_embeddings=512,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        ),
        vision_config=JanusVisionConfig(
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=world.IMAGE_SIZE,
            patch_size=world.GRID_STEP,
            num_image_tokens=GRID * GRID,
            projection_dim=HIDDEN,
            depth=1,
        ),
        vq_config=JanusVQVAEConfig(
            embed_dim=8,
            num_embeddings=CODES,
            latent_channels=96,
            base_channels=32,
            channel_multiplier=[2, 2, 3],
            num_res_blocks=1,
            projection_dim=HIDDEN,
            image_token_embed_dim=HIDDEN,
        ),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )
    model = JanusForConditionalGeneration(config).eval()
    generation = model.generation_config
    generation._from_model_config = False  # or loading would derive it anew, without what follows
    generation.bos_token_id = tokenizer.bos_token_id
    generation.eos_token_id = tokenizer.eos_token_id
    generation.pad_token_id = tokenizer.pad_token_id
    generation.generation_kwargs = {"boi_token_id": tokenizer.convert_tokens_to_ids("<boi>")}
    generation.do_sample = True
    generation.top_k = 0
    generation.guidance_scale = GUIDANCE
    return model


def encode_captions(tokenizer: PreTrainedTokenizerFast, captions: list[str], drop: list[bool]) -> list[list[int]]:
    """Token ids `[bos, words, boi]`; a dropped caption has every word replaced by `<pad>`, as Janus's
    unconditional branch has."""
    boi, pad = tokenizer.convert_tokens_to_ids("<boi>"), tokenizer.pad_token_id
    rows = [[*ids, boi] for ids in tokenizer(captions)["input_ids"]]  # all at once: one by one is ten times slower
    return [[row[0], *[pad] * (len(row) - 2), boi] if dropped else row for row, dropped in zip(rows, drop, strict=True)]
