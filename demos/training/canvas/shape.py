"""The shape of `tiny-canvas`: that of `tiny-onevision`, from whose weights it starts, with a mask and more words."""

from __future__ import annotations

import torch
from transformers import LlavaOnevisionForConditionalGeneration, PreTrainedTokenizerFast

from mmaccel import zoo
from mmaccel.zoo.worlds import listed_world

from ..onevision.shape import CHAT_TEMPLATE, SPECIAL_TOKENS, STREAM, rescale
from ..word_tokenizer import word_tokenizer

START = "tiny-onevision"
MASK = "<mask>"
BLOCK = 32  # tokens that are decoded together, as LLaDA2 has it


def build_tokenizer(started: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The words of `tiny-onevision` under their numbers, then those of lists, then the mask."""
    numbers = started.get_vocab()
    words = [word for word in sorted(numbers, key=lambda word: numbers[word]) if word not in SPECIAL_TOKENS]
    return word_tokenizer(
        SPECIAL_TOKENS,
        [*words, *listed_world.WORDS, MASK],
        padding_side="left",
        eos_token="<|im_end|>",
        mask_token=MASK,
        additional_special_tokens=["<|im_start|>", "<image>", "<video>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


@torch.no_grad()
def build_model() -> tuple[LlavaOnevisionForConditionalGeneration, PreTrainedTokenizerFast]:
    """`tiny-onevision` at the scale of its training, with an embedding for each new word."""
    model, processor = zoo.load(START)
    rescale(model, STREAM)
    tokenizer = build_tokenizer(processor.tokenizer)
    known = model.get_input_embeddings().weight.shape[0]
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.get_input_embeddings().weight[known:].normal_(0, float(model.get_input_embeddings().weight[:known].std()))
    model.config.text_config.vocab_size = len(tokenizer)
    model.config.block_length = model.config.text_config.block_length = BLOCK
    model.generation_config.max_new_tokens = 128
    return model.train(), tokenizer
