"""The shape of `tiny-onevision`: its configuration, its word tokenizer and its starting weights."""

from __future__ import annotations

import torch
from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2Config,
    SiglipVisionConfig,
)

from mmaccel.zoo.worlds import moving_questions, moving_world

from ..word_tokenizer import word_tokenizer

SPECIAL_TOKENS = ("<pad>", "<|im_start|>", "<|im_end|>", "<unk>", "<image>", "<video>")
ROLES = ("user", "assistant", "system")
FRAMES = moving_world.ONEVISION.frames
PATCH = 4  # pixels
SIDE = moving_world.IMAGE_SIZE // PATCH // 2  # tokens of a frame across and down, after pooling
VISION_WIDTH, VISION_LAYERS = 128, 4
WIDTH, LAYERS, HEADS, KEY_HEADS = 192, 6, 4, 2
# In training visual tokens grow to a root mean square of about 35. As shipped they are 128 times smaller, which changes
# no answer: token mergers take exp(-d^2) of distances, and that is 0 wherever a model's tokens are so far apart.
STREAM = 128
QUESTION_WORDS = (
    "which way does the go what how many things are there color is background where at start end comes first last in"
    " order do come a"
)
# Qwen's, for words: a word tokenizer needs no line breaks.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }} "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] in ('image', 'video') %}<{{ part['type'] }}> {% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }} {% endfor %}{% endif %}"
    "<|im_end|> {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word tokenizer over everything that questions and answers about the moving world can say."""
    answers = " ".join([*moving_questions.ANSWERS, *moving_world.MOTIONS]).split()
    return word_tokenizer(
        SPECIAL_TOKENS,
        [*ROLES, *QUESTION_WORDS.split(), *answers],
        padding_side="left",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", "<image>", "<video>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_config(tokenizer: PreTrainedTokenizerFast) -> LlavaOnevisionConfig:
    """16 x 16 patches, of which the model pools 8 x 8 tokens a frame; pictures come whole and once more as one tile."""
    size = moving_world.IMAGE_SIZE
    vision = SiglipVisionConfig(
        image_size=size,
        patch_size=PATCH,
        hidden_size=VISION_WIDTH,
        intermediate_size=3 * VISION_WIDTH,
        num_hidden_layers=VISION_LAYERS,
        num_attention_heads=4,
        vision_use_head=False,
    )
    text = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlavaOnevisionConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=[[size, size]],
        tie_word_embeddings=True,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlavaOnevisionForConditionalGeneration:
    """An untrained model."""
    model = LlavaOnevisionForConditionalGeneration(build_config(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.max_new_tokens = 12
    _initialize(model)
    return model


@torch.no_grad()
def _initialize(model: LlavaOnevisionForConditionalGeneration) -> None:
    """Matrices with unit gain, and residual branches that begin small."""
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and ("layers" in name or "projector" in name or "patch_embedding" in name):
            parameter.normal_(0, parameter[0].numel() ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight", "fc2.weight")):
                parameter.mul_(0.3)
    model.model.vision_tower.embeddings.position_embedding.weight.normal_(0, 0.3)
    model.model.language_model.embed_tokens.weight.normal_(0, 0.1)


@torch.no_grad()
def rescale(model: LlavaOnevisionForConditionalGeneration, factor: float) -> None:
    """Multiply all that goes through the language model's layers by `factor`; its logits stay what they were."""
    language = model.model.language_model
    projector = model.model.multi_modal_projector.linear_2
    written = [language.embed_tokens.weight, model.model.image_newline, projector.weight, projector.bias]
    for layer in language.layers:
        written += [layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight]
    for parameter in written:
        parameter.mul_(factor)
    language.norm.weight.div_(factor)  # the embedding reads logits too
    for module in language.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon *= factor**2
    model.config.text_config.rms_norm_eps *= factor**2
