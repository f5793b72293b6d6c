"""Tiny untrained models for the contract tests: real classes, a few thousand weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import CLIPConfig, CLIPModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mmaccel.testing.example import Example
from mmaccel.testing.untrained import untrained

from . import multi_view_example, visual_examples

VOCABULARY, LENGTH, NEW_TOKENS = visual_examples.VOCABULARY, 80, 6
# Sharp enough that greedy decoding has no near-ties and that tokens differ in importance.
WEIGHT_SCALE = 6.0

TEXT = {**visual_examples.TEXT, "num_hidden_layers": 3, "max_position_embeddings": 1024}


def examples() -> list[Example]:
    """Language models with grouped heads, vision-language models of all families, an encoder of many views, CLIP."""
    # other lengths of prompt and answer, so that nothing is tied to one shape
    variants = ({"length": 50, "max_new_tokens": 3}, {"length": 97})
    return [
        Example("llama", llama, **visual_examples.DECODES, variants=variants),
        Example("qwen2", qwen2, **visual_examples.DECODES, variants=variants),
        *visual_examples.examples(),
        *multi_view_example.examples(),
        Example(
            "clip",
            clip,
            module=lambda model: model.vision_model.encoder.layers[-1],
            call="__call__",
            takes_generator=False,
            variants=({"texts": 5}, {"side": 40, "interpolate_pos_encoding": True}),
            interrupt_after=0,
            result=lambda output: output.logits_per_image,
        ),
    ]


def prompts(batch: int, length: int, seed: int = 0, pad: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask `[batch, length]`; every second prompt is `pad` tokens shorter, padded on the left."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCABULARY - 4, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1::2, :pad] = 0
    return ids.masked_fill(mask == 0, 0), mask


def _text_arguments(batch: int = 1, length: int = LENGTH, max_new_tokens: int = NEW_TOKENS, **more: Any) -> Any:
    ids, mask = prompts(batch, length)
    call = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": max_new_tokens, "do_sample": False}
    return {**call, **more}


def llama(seed: int = 0, **sizes: Any) -> tuple[Any, Any]:
    """A `LlamaForCausalLM`, and `arguments(batch, length, max_new_tokens, **more)` of a greedy call."""
    return visual_examples.sharp(
        lambda: LlamaForCausalLM(LlamaConfig(**{**TEXT, **sizes})), seed, WEIGHT_SCALE
    ), _text_arguments


def qwen2(seed: int = 0, **sizes: Any) -> tuple[Any, Any]:
    """A `Qwen2ForCausalLM`, and the arguments of a greedy call."""
    return visual_examples.sharp(
        lambda: Qwen2ForCausalLM(Qwen2Config(**{**TEXT, **sizes})), seed, WEIGHT_SCALE
    ), _text_arguments


def clip(seed: int = 0, **sizes: Any) -> tuple[Any, Any]:
    """A `CLIPModel`, and `arguments(batch, texts, side, **more)` of its call."""
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    words = {"vocab_size": VOCABULARY, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2}
    config = CLIPConfig(
        vision_config={**tower, "image_size": 32, "patch_size": 4, **sizes},
        text_config={**tower, **words, "pad_token_id": 0},
        projection_dim=32,
    )

    def arguments(batch: int = 1, texts: int = 3, side: int = 32, **more: Any) -> Any:
        ids, _ = prompts(texts, 8, pad=0)
        ids[:, -1] = words["eos_token_id"]
        return {"input_ids": ids, "pixel_values": visual_examples.clip(1, batch, side)[0], **more}

    return untrained(lambda: CLIPModel(config), seed, WEIGHT_SCALE), arguments
