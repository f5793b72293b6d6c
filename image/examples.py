"""Tiny untrained models of the supported classes, for the contract tests: real classes, a few thousand weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Emu3Config,
    Emu3ForConditionalGeneration,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    JanusConfig,
    JanusForConditionalGeneration,
)

from mmaccel.testing.example import Example
from mmaccel.testing.untrained import DECODER, untrained

ROWS, COLUMNS, CODES = 4, 4, 24
# Sharp enough that greedy decoding has no near-ties, flat enough that sampling is not greedy.
WEIGHT_SCALE = 4.0

TEXT = {**DECODER, "num_hidden_layers": 2, "max_position_embeddings": 256}


def examples() -> list[Example]:
    """One example per family."""
    return [
        Example("janus", janus, _inner("model.language_model")),
        Example("emu3", emu3, _inner("model.text_model"), columns=COLUMNS + 1),  # a token of its own closes each row
        Example("glm_image", glm_image, _inner("model.language_model")),
    ]


def _inner(path: str) -> Any:
    def find(model: Any) -> torch.nn.Module:
        return model.get_submodule(path)

    return find


def prompts(batch: int, low: int, high: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask `[batch, 6]`; every second prompt is one token shorter, padded on the left."""
    ids = torch.randint(low, high, (batch, 6), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[1::2, 0] = 0
    return ids, mask


def janus(seed: int = 0, rows: int = ROWS) -> tuple[Any, Any]:
    """A `JanusForConditionalGeneration` with a square grid, and `arguments(batch, guidance, **more)`."""
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 4 * rows,
        "patch_size": 4,
        "num_image_tokens": rows * rows,
        "projection_dim": 32,
        "depth": 1,
    }
    vq = {
        "embed_dim": 8,
        "num_embeddings": CODES,
        "latent_channels": 32,
        "base_channels": 32,
        "channel_multiplier": [1, 1, 1],
        "num_res_blocks": 1,
        "projection_dim": 32,
        "image_token_embed_dim": 32,
    }
    text = {
        "model_type": "llama",
        "vocab_size": 40,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **TEXT,
    }
    config = JanusConfig(text_config=text, vision_config=vision, vq_config=vq, image_token_id=39)
    model = untrained(lambda: JanusForConditionalGeneration(config), seed, WEIGHT_SCALE)
    settings = model.generation_config
    settings.pad_token_id, settings.bos_token_id, settings.eos_token_id = 0, 1, 2
    settings.generation_kwargs = {"boi_token_id": 3}

    def arguments(batch: int = 1, guidance: float = 3.0, **more: Any) -> dict[str, Any]:
        ids, mask = prompts(batch, 4, 38)
        ids[:, 0], ids[:, -1] = 1, 3
        ids = torch.where(mask == 0, 0, ids)
        common = {"generation_mode": "image", "guidance_scale": guidance, "do_sample": True, "top_k": 0}
        return {"input_ids": ids, "attention_mask": mask, **common, **more}

    return model, arguments


def emu3(seed: int = 0, rows: int = ROWS, columns: int = COLUMNS) -> tuple[Any, Any]:
    """An `Emu3ForConditionalGeneration`, and `arguments(batch, guidance, **more)`."""
    names = ["<image>", "<|extra_200|>", "<|extra_201|>", "<|image end|>", "<|image token|>"]
    vocabulary = {name: 10 + i for i, name in enumerate(names)}
    vocabulary.update({f"<|visual token {i:06d}|>": 20 + i for i in range(CODES)})
    vq = {
        "codebook_size": CODES,
        "base_channels": 32,
        "channel_multiplier": [1, 1, 1, 1],
        "num_res_blocks": 1,
    }
    vq.update(hidden_size=32, attn_resolutions=[], embed_dim=4, latent_channels=4)
    text = {"vocab_size": 20 + CODES, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **TEXT}
    config = Emu3Config(text_config=text, vq_config=vq, vocabulary_map=vocabulary)
    model = untrained(lambda: Emu3ForConditionalGeneration(config), seed, WEIGHT_SCALE)

    def arguments(batch: int = 1, guidance: float = 3.0, **more: Any) -> dict[str, Any]:
        ids, mask = prompts(batch, 3, 10)
        ids[:, -1] = vocabulary["<|image token|>"]
        common = {"image_sizes": [[rows, columns]] * batch, "do_sample": True, "top_k": 0}
        common["max_new_tokens"] = rows * (columns + 1) + 3
        # what the model's own generate needs to keep to the grid
        common["prefix_allowed_tokens_fn"] = emu3_grammar(vocabulary, ids.shape[1], rows, columns)
        if guidance != 1:
            negative = torch.tensor([[1, vocabulary["<|image token|>"]]]).repeat(batch, 1)
            common.update(guidance_scale=guidance, negative_prompt_ids=negative)
        return {"input_ids": ids, "attention_mask": mask, **common, **more}

    return model, arguments


def emu3_grammar(vocabulary: dict[str, int], prompt: int, rows: int, columns: int) -> Any:
    """The allowed-token function of Emu3's own recipe."""
    codes = [token for name, token in vocabulary.items() if name.startswith("<|visual token")]
    tail = [vocabulary["<|extra_201|>"], vocabulary["<|image end|>"], 2]

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        position = ids.shape[0] - prompt
        if position >= rows * (columns + 1):
            return [tail[position - rows * (columns + 1)]]
        return [vocabulary["<|extra_200|>"]] if position % (columns + 1) == columns else codes

    return allowed


def glm_image(seed: int = 0, rows: int = ROWS, columns: int = COLUMNS) -> tuple[Any, Any]:
    """A `GlmImageForConditionalGeneration` with a 2 x 2 preview, and `arguments(batch, guidance, **more)`."""
    start, end = CODES, CODES + 1
    rope = {
        "rope_type": "default",
        "mrope_section": [1, 1, 2],
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
    }
    text = {"vocab_size": 64, "vision_vocab_size": CODES + 4, "pad_token_id": 60, "eos_token_id": end, **TEXT}
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "num_heads": 2,
        "image_size": 64,
        "patch_size": 16,
        "intermediate_size": 32,
    }
    vq = {"embed_dim": 8, "num_embeddings": CODES, "latent_channels": 32}
    config = GlmImageConfig(
        text_config={**text, "rope_parameters": rope},
        vision_config=vision,
        vq_config=vq,
        image_token_id=61,
        image_start_token_id=start,
        image_end_token_id=end,
    )
    model = untrained(lambda: GlmImageForConditionalGeneration(config), seed, WEIGHT_SCALE)

    def arguments(batch: int = 1, guidance: float = 1.0, **more: Any) -> dict[str, Any]:
        ids, mask = prompts(batch, 30, 59)
        ids[:, -1] = start
        common: dict[str, Any] = {
            "image_grid_thw": torch.tensor([[1, rows, columns], [1, 2, 2]] * batch),
            "images_per_sample": torch.tensor([2] * batch),
            "do_sample": True,
            "top_k": 0,
            "max_new_tokens": rows * columns + 5,
        }
        if guidance != 1:
            common.update(guidance_scale=guidance, negative_prompt_ids=torch.tensor([[30, start]]))
        return {"input_ids": ids, "attention_mask": mask, **common, **more}

    return model, arguments
