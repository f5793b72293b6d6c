"""Tiny untrained vision-language models that are shown videos: real classes, a few thousand weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    CLIPVisionConfig,
    InternVLForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextVideoConfig,
    LlavaNextVideoForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    QianfanOCRForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SiglipVisionConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from mmaccel.testing.example import Example
from mmaccel.testing.untrained import DECODER, untrained

VOCABULARY, IMAGE, VIDEO, NEW_TOKENS, FRAMES = 64, 62, 63, 5, 6
WEIGHT_SCALE = 4.0  # so that greedy decoding has no near-ties
TEXT: dict[str, Any] = {
    **DECODER,
    "vocab_size": VOCABULARY,
    "num_hidden_layers": 6,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
WIDTHS: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64}
VISION = {**WIDTHS, "num_hidden_layers": 2, "num_attention_heads": 4}
QWEN_VISION = {**WIDTHS, "out_hidden_size": 32, "num_heads": 4, "patch_size": 4}
PLACEHOLDERS: dict[str, Any] = {"image_token_id": IMAGE, "video_token_id": VIDEO}
DECODES: dict[str, Any] = {"module": lambda model: model.get_decoder(), "takes_generator": False}  # of an `Example`
MROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}


def examples() -> list[Example]:
    """One model of each family."""
    variants = ({"frames": 3, "max_new_tokens": 3}, {"frames": 8})
    builders: dict[str, Callable[..., Any]] = {
        "llava_onevision": onevision,
        "llava_next_video": next_video,
        "qwen2_vl": qwen2_vl,
        "qwen2_5_vl": qwen2_5_vl,
        "qwen3_vl": qwen3_vl,
        "internvl": internvl,
        "smolvlm": smolvlm,
        "llava": llava,
        "qianfan_ocr": qianfan_ocr,
    }
    return [Example(name, build, **DECODES, variants=variants) for name, build in builders.items()]


def sharp(build: Callable[[], Any], seed: int, scale: float = WEIGHT_SCALE) -> Any:
    """An untrained model with sharp attention that never ends a text of itself."""
    model = untrained(build, seed, scale)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model


def clip(videos: int, frames: int, side: int, seed: int = 0) -> torch.Tensor:
    """Pixels `[videos, frames, 3, side, side]`: a still scene in which a square moves, and a cut in the middle."""
    generator = torch.Generator().manual_seed(seed)
    scene = torch.randn(videos, 2, 3, side, side, generator=generator)
    pixels = scene.repeat_interleave((frames + 1) // 2, 1)[:, :frames].clone()
    for frame in range(frames):
        at = frame % (side // 2)
        pixels[:, frame, :, at : at + side // 4, at : at + side // 4] += 2.0
    return pixels + 0.01 * torch.randn(pixels.shape, generator=generator)


def prompt(batch: int, visual: list[int], question: int = 7, seed: int = 0, pad: int = 3) -> dict[str, Any]:
    """Token ids and mask: words, the tokens `visual`, and a question; every second prompt is padded by `pad`."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(4, VOCABULARY - 10, (batch, pad + 3 + question), generator=generator)
    middle = torch.tensor(visual).expand(batch, -1)
    ids = torch.cat([words[:, : pad + 3], middle, words[:, pad + 3 :]], 1)
    mask = torch.ones_like(ids)
    mask[1::2, :pad] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def _arguments(visual: Callable[[int], list[int]], pixels: Callable[[int, int, torch.Tensor], dict[str, Any]]) -> Any:
    """``arguments(batch, frames, max_new_tokens, **more)`` of a greedy call.

    `visual` gives the tokens of so many frames, and `pixels(batch, frames, input_ids)` what belongs to them.
    """

    def arguments(batch: int = 1, frames: int = FRAMES, max_new_tokens: int = NEW_TOKENS, **more: Any) -> Any:
        call = prompt(batch, visual(frames))
        call.update(max_new_tokens=max_new_tokens, do_sample=False)
        return {**call, **pixels(batch, frames, call["input_ids"]), **more}

    return arguments


def _video(side: int, cells: int, ends: int = 0) -> Any:
    """Arguments of a model that takes videos `[videos, frames, 3, side, side]`."""
    return _arguments(
        lambda frames: [VIDEO] * (frames * cells + ends),
        lambda batch, frames, _: {"pixel_values_videos": clip(batch, frames, side)},
    )


def onevision(seed: int = 0, **sizes: Any) -> tuple[Any, Any]:
    """A `LlavaOnevisionForConditionalGeneration`, and `arguments(batch, frames, max_new_tokens, **more)`."""
    side = 32
    config = LlavaOnevisionConfig(
        text_config=Qwen2Config(**{**TEXT, **sizes}),
        vision_config=SiglipVisionConfig(image_size=side, patch_size=4, **VISION),
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        image_grid_pinpoints=[[side, side], [side, 2 * side]],
        tie_word_embeddings=False,
    )
    return sharp(lambda: LlavaOnevisionForConditionalGeneration(config), seed), _video(side, 16, ends=1)


def next_video(seed: int = 0) -> tuple[Any, Any]:
    """A `LlavaNextVideoForConditionalGeneration`, and the arguments of a greedy call."""
    side = 32
    config = LlavaNextVideoConfig(
        text_config=Qwen2Config(**TEXT),
        # its features are those before the last layer
        vision_config=CLIPVisionConfig(
            image_size=side, patch_size=4, projection_dim=32, **{**VISION, "num_hidden_layers": 3}
        ),
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        image_seq_length=64,
        video_seq_length=16,
        image_grid_pinpoints=[[side, side]],
    )
    return sharp(lambda: LlavaNextVideoForConditionalGeneration(config), seed), _video(side, 16)


def qwen2_vl(seed: int = 0) -> tuple[Any, Any]:
    """A `Qwen2VLForConditionalGeneration`, and the arguments of a greedy call."""
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4}
    config = Qwen2VLConfig(text_config=_mrope(), vision_config=vision, **PLACEHOLDERS)
    return _qwen(sharp(lambda: Qwen2VLForConditionalGeneration(config), seed))


def qwen2_5_vl(seed: int = 0) -> tuple[Any, Any]:
    """A `Qwen2_5_VLForConditionalGeneration`, and the arguments of a greedy call."""
    vision = {**QWEN_VISION, "depth": 2, "window_size": 16, "fullatt_block_indexes": [1]}
    config = Qwen2_5_VLConfig(text_config=_mrope(), vision_config=vision, **PLACEHOLDERS)
    return _qwen(sharp(lambda: Qwen2_5_VLForConditionalGeneration(config), seed))


def qwen3_vl(seed: int = 0) -> tuple[Any, Any]:
    """A `Qwen3VLForConditionalGeneration`, whose frames stand apart, and the arguments of a greedy call."""
    vision = {**QWEN_VISION, "depth": 3, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
    text = {**_mrope(), "head_dim": 8}
    config = Qwen3VLConfig(text_config=text, vision_config=vision, **PLACEHOLDERS)
    return _qwen(sharp(lambda: Qwen3VLForConditionalGeneration(config), seed), stamp=[5, 6])


def _mrope() -> dict[str, Any]:
    return {**TEXT, "rope_parameters": MROPE}


def _qwen(model: Any, rows: int = 6, columns: int = 8, stamp: list[int] | None = None) -> tuple[Any, Any]:
    """A Qwen model with its arguments; `stamp` are tokens before each frame."""

    cells = rows * columns // 4

    def pixels(batch: int, frames: int, ids: torch.Tensor) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(0)
        scene = torch.randn(batch, 1, rows * columns, 3 * 2 * 16, generator=generator)
        change = 0.3 * torch.randn(batch, frames, rows * columns, 3 * 2 * 16, generator=generator)
        return {
            "pixel_values_videos": (scene + change).flatten(0, 2),
            "video_grid_thw": torch.tensor([[frames, rows, columns]] * batch),
            "mm_token_type_ids": (ids == VIDEO).int() * 2,
        }

    return model, _arguments(lambda frames: [*(stamp or []), *[VIDEO] * cells] * frames, pixels)


def internvl(seed: int = 0) -> tuple[Any, Any]:
    """An `InternVLForConditionalGeneration`, whose frames are pictures, and the arguments of a greedy call."""
    return _internvl(InternVLForConditionalGeneration, seed)


def qianfan_ocr(seed: int = 0) -> tuple[Any, Any]:
    """A `QianfanOCRForConditionalGeneration`, which reads pages, and the arguments of a greedy call."""
    return _internvl(QianfanOCRForConditionalGeneration, seed)


def _internvl(cls: Any, seed: int) -> tuple[Any, Any]:
    side = 32
    config = cls.config_class(
        text_config=Qwen2Config(**TEXT),
        vision_config={**VISION, "image_size": [side, side], "patch_size": [4, 4]},
        image_token_id=IMAGE,
        image_seq_length=16,
    )
    return sharp(lambda: cls(config), seed), _tiles(side, flat=True)


def smolvlm(seed: int = 0) -> tuple[Any, Any]:
    """A `SmolVLMForConditionalGeneration`, whose frames are pictures, and the arguments of a greedy call."""
    side = 32
    sizes: dict[str, Any] = {"scale_factor": 2, "image_token_id": IMAGE, "pad_token_id": 0}
    config = SmolVLMConfig(
        text_config={"model_type": "llama", **TEXT},
        vision_config={**VISION, "image_size": side, "patch_size": 4},
        **sizes,
    )
    return sharp(lambda: SmolVLMForConditionalGeneration(config), seed), _tiles(side, flat=False)


def llava(seed: int = 0) -> tuple[Any, Any]:
    """A `LlavaForConditionalGeneration`, whose frames are pictures, and the arguments of a greedy call."""
    side = 32
    config = LlavaConfig(
        text_config=Qwen2Config(**TEXT),
        vision_config=CLIPVisionConfig(image_size=side, patch_size=8, projection_dim=32, **VISION),
        image_token_index=IMAGE,
        image_seq_length=16,
    )
    return sharp(lambda: LlavaForConditionalGeneration(config), seed), _tiles(side, flat=True)


def _tiles(side: int, flat: bool) -> Any:
    """Arguments of a model whose frames are pictures; `flat` if those of all prompts come in one row."""
    return _arguments(
        lambda frames: [5, *[IMAGE] * 16, 6] * frames,
        lambda batch, frames, _: {"pixel_values": clip(batch, frames, side).flatten(0, int(flat))},
    )
