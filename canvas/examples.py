"""Tiny untrained models for the contract tests: LLaDA's shape, and a decoder that fills blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline
from transformers import EuroBertConfig, EuroBertForMaskedLM, Qwen2Config, Qwen2ForCausalLM

from mmaccel.testing.example import Example
from mmaccel.testing.untrained import DECODER, untrained
from mmaccel.zoo.block_causal import BlockCausalModel

from .method import MASKS, NOISE, PICTURES
from .picture_examples import pictures
from .uniform_examples import CANVAS, uniform

VOCABULARY, MASK, LENGTH, BLOCK = 64, 63, 21, 8
SIZES: dict[str, Any] = {
    **DECODER,
    "vocab_size": VOCABULARY,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SCALE = 4.0  # sharp enough for greedy steps without near-ties


def examples() -> list[Example]:
    """A model whose every token sees every other, as LLaDA's, a block-causal one, and one without masks."""
    common: dict[str, Any] = {
        "module": lambda pipe: pipe.model,
        "call": "__call__",
        "result": lambda output: output.sequences,
    }
    masks: dict[str, Any] = {"takes_generator": False, "variants": ({"length": 30}, {"gen_length": 13})}
    return [
        Example(MASKS, bidirectional, **common, **masks),
        Example(MASKS, block_causal, **common, **masks),
        Example(NOISE, uniform, **common, variants=({"length": 5}, {"gen_length": 2 * CANVAS})),
        Example(
            PICTURES,
            pictures,
            module=lambda pipe: pipe.transformer,
            call="__call__",
            variants=({"steps": 4}, {"size": 12}),
            result=lambda output: output.images,
        ),
    ]


def bidirectional(seed: int = 0) -> tuple[Any, Callable[..., Any]]:
    """A pipeline with a `EuroBertForMaskedLM`, and `arguments(batch, length, **more)` of a greedy call."""
    model = untrained(lambda: EuroBertForMaskedLM(EuroBertConfig(**SIZES, mask_token_id=MASK)), seed, SCALE)
    return pipeline(model), functools.partial(arguments, eos_token_id=52)


def block_causal(seed: int = 0, layers: int = 2) -> tuple[Any, Callable[..., Any]]:
    """The same with a `Qwen2ForCausalLM` that fills blocks."""
    decoder = untrained(lambda: Qwen2ForCausalLM(Qwen2Config(**{**SIZES, "num_hidden_layers": layers})), seed, SCALE)
    return pipeline(BlockCausalModel(decoder, BLOCK)), functools.partial(arguments, eos_token_id=38)


def pipeline(model: Any) -> Any:
    """A pipeline without a tokenizer."""
    pipe: Any = LLaDA2Pipeline(model, BlockRefinementScheduler(block_length=BLOCK))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def arguments(batch: int = 1, length: int = LENGTH, gen_length: int = 24, **more: Any) -> dict[str, Any]:
    """One token a step; every second prompt is five tokens shorter, padded on the left.

    The builders take for the end a token that their model often says, and stop at none.
    """
    ids = torch.randint(4, VOCABULARY - 4, (batch, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1::2, :5] = 0
    given = {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask, "gen_length": gen_length}
    settings = {"num_inference_steps": BLOCK, "threshold": 2.0, "editing_threshold": None, "mask_token_id": MASK}
    return {**given, **settings, "eos_early_stop": False, "output_type": "seq", **more}
