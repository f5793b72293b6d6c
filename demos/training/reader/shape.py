"""The shape of `tiny-reader`: its configuration, its tokenizer of letters, its processor and its starting weights."""

from __future__ import annotations

import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import (
    LightOnOcrConfig,
    LightOnOcrForConditionalGeneration,
    PixtralVisionConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from mmaccel.zoo.worlds.page_world import CHARACTERS

SPECIAL_TOKENS = ("<pad>", "<unk>", "<|im_start|>", "<|im_end|>", "<image>", "<image_break>", "<image_end>")
MARKS = ("\n\n", "\n", "## ", "# ", "![", "](figure)", "---")  # longer ones first
LETTERS = " " + CHARACTERS.replace("•", "") + "-|"
PATCH = 16  # pixels: two letters side by side
VISION_WIDTH, VISION_LAYERS = 128, 2
WIDTH, LAYERS, HEADS, KEY_HEADS, HEAD = 192, 4, 6, 3, 32


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each letter, and for a few marks of Markdown."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *MARKS, *LETTERS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    pattern = Regex(
        "|".join([*(mark.replace("[", r"\[").replace("(", r"\(").replace(")", r"\)") for mark in MARKS), "."])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|im_end|>",
        extra_special_tokens={
            "start_token": "<|im_start|>",
            "image_token": "<image>",
            "image_break_token": "<image_break>",
            "image_end_token": "<image_end>",
        },
        clean_up_tokenization_spaces=False,
    )


def build_config(tokenizer: PreTrainedTokenizerFast) -> LightOnOcrConfig:
    """A token for each patch of 16 x 16 pixels, and a small decoder."""
    vision = PixtralVisionConfig(
        hidden_size=VISION_WIDTH,
        intermediate_size=3 * VISION_WIDTH,
        num_hidden_layers=VISION_LAYERS,
        num_attention_heads=4,
        image_size=512,
        patch_size=PATCH,
    )
    text = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=HEAD,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LightOnOcrConfig(
        vision_config=vision,
        text_config=text,
        spatial_merge_size=1,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        tie_word_embeddings=True,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LightOnOcrForConditionalGeneration:
    """An untrained model."""
    model = LightOnOcrForConditionalGeneration(build_config(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.max_new_tokens = 480
    _initialize(model)
    return model


@torch.no_grad()
def _initialize(model: LightOnOcrForConditionalGeneration) -> None:
    """Matrices with unit gain, residual branches that begin small, and attention that can be sharp."""
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and ("layers" in name or "projection" in name or "patch_conv" in name):
            parameter.normal_(0, parameter[0].numel() ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(0.3)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            parameter.fill_(1.5)
    model.model.language_model.embed_tokens.weight.normal_(0, 0.1)
