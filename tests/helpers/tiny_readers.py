"""Untrained readers of pages: every installed class that reads, with a few thousand weights, and pictures for it."""

import torch
import transformers
from transformers.models.deepseek_ocr2.configuration_deepseek_ocr2 import DeepseekOcr2TextConfig

from mmaccel.vlm.visual_examples import IMAGE, TEXT, VISION, sharp

SIDE = 32
MULTIMODAL_ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
GRID = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def _asked(batch, visual, **more):
    """A prompt of so many visual tokens among words."""
    words = torch.randint(4, 50, (batch, 6), generator=torch.Generator().manual_seed(batch))
    ids = torch.cat([words[:, :3], torch.full((batch, visual), IMAGE), words[:, 3:]], 1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}


def _noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def _built(name, config, visual, **pixels):
    """Builds the model and its inputs; `pixels` are functions of the batch."""

    def build():
        model = sharp(lambda: getattr(transformers, f"{name}ForConditionalGeneration")(config()), 0)
        return model, lambda batch: _asked(batch, visual, **{key: make(batch) for key, make in pixels.items()})

    return build


def _lighton():
    vision = transformers.PixtralVisionConfig(image_size=SIDE, patch_size=8, **GRID)
    text = transformers.Qwen3Config(head_dim=8, **TEXT)
    return transformers.LightOnOcrConfig(
        vision_config=vision, text_config=text, image_token_id=IMAGE, spatial_merge_size=2
    )


def _idefics():
    return transformers.Idefics3Config(
        text_config={"model_type": "llama", **TEXT},
        vision_config={**VISION, "image_size": SIDE, "patch_size": 8},
        scale_factor=2,
        image_token_id=IMAGE,
        pad_token_id=0,
    )


def _docling():
    vision = {**GRID, "num_hidden_layers": 3, "image_size": SIDE, "patch_size": 4, "out_hidden_size": 32}
    return transformers.GraniteDoclingConfig(
        text_config={**TEXT, "eos_token_id": 3},
        vision_config={**vision, "scale_factor": 4, "deepstack_visual_indexes": [0, 1]},
        image_token_id=IMAGE,
        pad_token_id=0,
    )


def _got():
    vision = {"hidden_size": 32, "output_channels": 32, "mlp_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.GotOcr2Config(
        text_config={"model_type": "qwen2", **TEXT},
        vision_config={**vision, "patch_size": 2, "image_size": 64, "global_attn_indexes": [1], "window_size": 4},
        image_token_index=IMAGE,
        pad_token_id=0,
    )


def _paddle():
    return transformers.PaddleOCRVLConfig(
        text_config={**TEXT, "head_dim": 8, "eos_token_id": 3, "rope_parameters": MULTIMODAL_ROPE},
        vision_config={**GRID, "patch_size": 14, "spatial_merge_size": 2, "image_size": 56},
        image_token_id=IMAGE,
        vision_start_token_id=61,
    )


def _glm():
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 4, "out_hidden_size": 32, "intermediate_size": 64}
    return transformers.GlmOcrConfig(
        text_config={**TEXT, "head_dim": 8, "rope_parameters": {**MULTIMODAL_ROPE, "mrope_section": [2, 1, 1]}},
        vision_config={**vision, "patch_size": 14, "spatial_merge_size": 1, "temporal_patch_size": 2},
        image_token_id=IMAGE,
        video_token_id=60,
        video_start_token_id=58,
        video_end_token_id=59,
        image_start_token_id=57,
        image_end_token_id=56,
    )


def _deepseek():
    sam = {"hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    sam |= {"image_size": 16, "patch_size": 2, "window_size": 4, "global_attn_indexes": [1]}
    encoder = {**GRID, "num_key_value_heads": 4, "max_position_embeddings": 512}
    text = DeepseekOcr2TextConfig(
        **{**TEXT, "num_key_value_heads": 4, "num_hidden_layers": 2, "eos_token_id": 3},
        n_routed_experts=4,
        n_shared_experts=1,
        mlp_layer_types=["dense", "sparse"],
        moe_intermediate_size=32,
        num_experts_per_tok=2,
    )
    return transformers.DeepseekOcr2Config(
        vision_config={"sam_config": {**sam, "downsample_channels": [32, 32]}, "encoder_config": encoder},
        text_config=text,
        image_token_id=IMAGE,
    )


def _qianfan():
    return transformers.QianfanOCRConfig(
        text_config={"model_type": "qwen3", **TEXT, "head_dim": 8},
        vision_config={**GRID, "image_size": SIDE, "patch_size": 8},
        image_token_id=IMAGE,
        image_seq_length=4,
    )


def _patches(batch):
    return _noise(batch * 4, 3, 14, 14)


READERS = {
    "LightOnOcr": _built(
        "LightOnOcr",
        _lighton,
        4,
        pixel_values=lambda batch: _noise(batch, 3, SIDE, SIDE),
        image_sizes=lambda batch: torch.tensor([[SIDE, SIDE]] * batch),
    ),
    "Idefics3": _built("Idefics3", _idefics, 4, pixel_values=lambda batch: _noise(batch, 1, 3, SIDE, SIDE)),
    "GraniteDocling": _built(
        "GraniteDocling",
        _docling,
        4,
        pixel_values=lambda batch: _noise(batch, 1, 3, SIDE, SIDE),
        pixel_attention_mask=lambda batch: torch.ones(batch, 1, dtype=torch.bool),
    ),
    "GotOcr2": _built("GotOcr2", _got, 64, pixel_values=lambda batch: _noise(batch, 3, 64, 64)),
    "PaddleOCRVL": _built(
        "PaddleOCRVL",
        _paddle,
        1,
        pixel_values=_patches,
        image_grid_thw=lambda batch: torch.tensor([[1, 2, 2]] * batch),
        mm_token_type_ids=lambda batch: (_asked(batch, 1)["input_ids"] == IMAGE).int(),
    ),
    "GlmOcr": _built(
        "GlmOcr",
        _glm,
        4,
        pixel_values=lambda batch: _noise(batch * 4, 3 * 14 * 14 * 2),
        image_grid_thw=lambda batch: torch.tensor([[1, 2, 2]] * batch),
        mm_token_type_ids=lambda batch: (_asked(batch, 4)["input_ids"] == IMAGE).int(),
    ),
    "DeepseekOcr2": _built("DeepseekOcr2", _deepseek, 145, pixel_values=lambda batch: _noise(batch, 3, 16, 16)),
    "QianfanOCR": _built("QianfanOCR", _qianfan, 4, pixel_values=lambda batch: _noise(batch, 3, SIDE, SIDE)),
}
