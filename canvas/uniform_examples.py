"""A tiny untrained DiffusionGemma, whose canvases begin as random tokens, for the contract tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diffusers import BlockRefinementScheduler, DiffusionGemmaPipeline
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    Gemma4VisionConfig,
    PreTrainedTokenizerFast,
)

from mmaccel.testing.untrained import untrained

VOCABULARY, CANVAS = 64, 32
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 8}
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "max_position_embeddings": 512,
    "sliding_window": 64,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}
SEEN: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
CHAT = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def uniform(seed: int = 0, scheduler: Any = None) -> tuple[Any, Callable[..., Any]]:
    """A pipeline with a `DiffusionGemmaForBlockDiffusion`, and `arguments(batch, length, **more)` of a call."""
    pipe: Any = DiffusionGemmaPipeline(
        untrained(model, seed), scheduler or BlockRefinementScheduler(threshold=0.95), tokenizer()
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe, arguments


def model() -> DiffusionGemmaForBlockDiffusion:
    """The model, with random weights."""
    config = DiffusionGemmaConfig(
        text_config=DiffusionGemmaTextConfig(**TEXT, **HEADS),
        vision_config=Gemma4VisionConfig(**SEEN, **HEADS),
        canvas_length=CANVAS,
    )
    return DiffusionGemmaForBlockDiffusion(config)


def tokenizer() -> PreTrainedTokenizerFast:
    """Of words `w4` to `w63`."""
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    words = [*special.values(), *(f"w{n}" for n in range(len(special), VOCABULARY))]
    fast = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=fast, chat_template=CHAT, **special)


def arguments(batch: int = 1, length: int = 7, **more: Any) -> dict[str, Any]:
    """Each row another prompt of so many words; every step is made."""
    prompts = [" ".join(f"w{4 + (7 * row + 3 * n) % 50}" for n in range(length)) for row in range(batch)]
    settings = {"gen_length": CANVAS, "num_inference_steps": CANVAS, "confidence_threshold": None}
    return {"prompt": prompts, **settings, "eos_early_stop": False, "output_type": "seq", **more}
