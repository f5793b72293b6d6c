"""Tiny untrained transformers of diffusers' own classes, for the contract tests."""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
from diffusers import (
    AnyFlowFARPipeline,
    AnyFlowFARTransformer3DModel,
    DDIMScheduler,
    FlowMapEulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    LTXPipeline,
    LTXVideoTransformer3DModel,
    StableDiffusionPipeline,
    UNet2DConditionModel,
    WanPipeline,
    WanTransformer3DModel,
)

from mmaccel.testing.example import Example
from mmaccel.testing.untrained import untrained

FRAMES, HEIGHT, WIDTH = 4, 8, 8  # tokens; 256 in all, four blocks
STEPS = 12
STEPS_OF_A_BLOCK = 4  # each of three


def examples() -> list[Example]:
    """One example per family: its own pipeline, without encoders and decoder."""
    longer = ({"frames": FRAMES + 1}, {"height": HEIGHT + 2}, {"steps": STEPS + 3})
    return [
        _example("wan", wan_pipeline, longer),
        _example("ltx", ltx_pipeline, longer),
        _example("flux", flux_pipeline, longer[1:]),
        _example("blocks", block_pipeline, (*longer[:2], {"steps": STEPS_OF_A_BLOCK + 2}), without=("fraction",)),
        _example("unet", unet_pipeline, longer[1:], without=("fraction",)),  # its layers mix the tokens
    ]


def _example(family: str, build: Any, variants: tuple[dict[str, Any], ...], **more: Any) -> Example:
    more |= {"result": lambda output: output[0], "takes_generator": False}
    more["interrupt_after"] = 1  # the fewest passes that any budget leaves are two
    return Example(family, build, _last_block, "__call__", variants=variants, **more)


def _last_block(pipeline: Any) -> torch.nn.Module:
    """By the time it runs, attention has been intercepted."""
    names = ("blocks", "single_transformer_blocks", "transformer_blocks", "up_blocks")
    model = pipeline.components.get("transformer") or pipeline.unet
    return next(getattr(model, name) for name in names if hasattr(model, name))[-1]


def _bare(cls: Any, absent: tuple[str, ...], **parts: Any) -> Any:
    """A pipeline without the parts named `absent`, which are for text and pixels, and without a progress bar."""
    parts = {"scheduler": FlowMatchEulerDiscreteScheduler(shift=3), **parts}
    pipeline = cls(**dict.fromkeys(absent), **parts)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _latents_only(steps: int) -> dict[str, Any]:
    """Arguments of a run that ends before the decoder."""
    return {"num_inference_steps": steps, "output_type": "latent", "return_dict": False}


def wan_pipeline(seed: int = 0) -> tuple[Any, Any]:
    """A `WanPipeline` whose guidance takes a second forward pass, and `arguments(batch, frames, height, width)`."""
    pipe = _bare(WanPipeline, ("tokenizer", "text_encoder", "vae"), transformer=_frozen(_wan, seed))

    def arguments(
        batch: int = 1,
        frames: int = FRAMES,
        height: int = HEIGHT,
        width: int = WIDTH,
        steps: int = STEPS,
        **more: Any,
    ) -> dict[str, Any]:
        latents = _noise(batch, 4, frames, 2 * height, 2 * width)
        text = {"prompt_embeds": _noise(batch, 5, 16, seed=1), "negative_prompt_embeds": _noise(batch, 5, 16, seed=2)}
        size = {"height": 16 * height, "width": 16 * width, "num_frames": 4 * frames - 3}
        return {"latents": latents, **text, **size, **_latents_only(steps), **more}

    return pipe, arguments


def ltx_pipeline(seed: int = 0) -> tuple[Any, Any]:
    """An `LTXPipeline`, whose guidance doubles the batch."""
    pipe = _bare(LTXPipeline, ("tokenizer", "text_encoder", "vae"), transformer=_frozen(_ltx, seed))

    def arguments(
        batch: int = 1,
        frames: int = FRAMES,
        height: int = HEIGHT,
        width: int = WIDTH,
        steps: int = STEPS,
        **more: Any,
    ) -> dict[str, Any]:
        text = {"prompt_embeds": _noise(batch, 5, 16, seed=1), "negative_prompt_embeds": _noise(batch, 5, 16, seed=2)}
        mask = {"prompt_attention_mask": torch.ones(batch, 5), "negative_prompt_attention_mask": torch.ones(batch, 5)}
        size = {"height": 32 * height, "width": 32 * width, "num_frames": 8 * frames - 7}
        return {
            "latents": _noise(batch, frames * height * width, 4),
            **text,
            **mask,
            **size,
            **_latents_only(steps),
            **more,
        }

    return pipe, arguments


def flux_pipeline(seed: int = 0) -> tuple[Any, Any]:
    """A `FluxPipeline`, with joint attention over text and picture and without guidance."""
    names = ("tokenizer", "tokenizer_2", "text_encoder", "text_encoder_2", "vae")
    pipe = _bare(FluxPipeline, names, transformer=_frozen(_flux, seed))

    def arguments(
        batch: int = 1, height: int = 2 * HEIGHT, width: int = 2 * WIDTH, steps: int = STEPS, **more: Any
    ) -> dict[str, Any]:
        text = {"prompt_embeds": _noise(batch, 5, 16, seed=1), "pooled_prompt_embeds": _noise(batch, 16, seed=2)}
        size = {"height": 16 * height, "width": 16 * width}
        return {"latents": _noise(batch, height * width, 4), **text, **size, **_latents_only(steps), **more}

    return pipe, arguments


class _WithDraft(AnyFlowFARPipeline):
    """Takes what `video.BlockRouter` is given with a call also where no session takes it."""

    def __call__(self, *args: Any, draft: Any = None, score: Any = None, **kwargs: Any) -> Any:
        return cast(Any, super()).__call__(*args, **kwargs)


def block_pipeline(seed: int = 0) -> tuple[Any, Any]:
    """An `AnyFlowFARPipeline`, which draws three blocks of two latent frames, with a smaller transformer beside it."""
    names = ("tokenizer", "text_encoder", "vae")
    parts = {"transformer": _frozen(_far, seed), "scheduler": FlowMapEulerDiscreteScheduler(shift=3)}
    pipe, small = _bare(_WithDraft, names, **parts), _frozen(functools.partial(_far, layers=1), seed + 1)

    def arguments(
        batch: int = 1,
        frames: int = 6,
        height: int = HEIGHT,
        width: int = WIDTH,
        steps: int = STEPS_OF_A_BLOCK,
        **more: Any,
    ) -> dict[str, Any]:
        size = {"height": 16 * height, "width": 16 * width, "num_frames": 4 * frames - 3}
        drafts = {"draft": small, "score": lambda latents: latents.mean((2, 3, 4))}
        return {
            "latents": _noise(batch, 4, frames, 2 * height, 2 * width),
            "prompt_embeds": _noise(batch, 5, 16, seed=1),
            "chunk_partition": [2] * (frames // 2) + [1] * (frames % 2),
            **size,
            **drafts,
            **_latents_only(steps),
            **more,
        }

    return pipe, arguments


def unet_pipeline(seed: int = 0) -> tuple[Any, Any]:
    """A `StableDiffusionPipeline`, whose guidance doubles the batch."""
    names = ("tokenizer", "text_encoder", "vae", "safety_checker", "feature_extractor")
    parts = {
        "unet": _frozen(_unet, seed),
        "scheduler": DDIMScheduler(steps_offset=1, clip_sample=False),
    }
    pipe = _bare(StableDiffusionPipeline, names, **parts, requires_safety_checker=False)

    def arguments(
        batch: int = 1, height: int = HEIGHT, width: int = WIDTH, steps: int = STEPS, **more: Any
    ) -> dict[str, Any]:
        text = {"prompt_embeds": _noise(batch, 5, 16, seed=1), "negative_prompt_embeds": _noise(batch, 5, 16, seed=2)}
        size = {"height": 8 * height, "width": 8 * width}
        return {"latents": _noise(batch, 4, height, width), **text, **size, **_latents_only(steps), **more}

    return pipe, arguments


def _frozen(build: Any, seed: int) -> Any:
    return untrained(build, seed).requires_grad_(False)


def _noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _wan() -> WanTransformer3DModel:
    sizes = {"num_attention_heads": 2, "attention_head_dim": 24, "ffn_dim": 32, "num_layers": 2, "freq_dim": 16}
    channels = {"in_channels": 4, "out_channels": 4, "text_dim": 16}
    return WanTransformer3DModel(**sizes, **channels, patch_size=(1, 2, 2), rope_max_seq_len=32)


def _far(layers: int = 2) -> AnyFlowFARTransformer3DModel:
    sizes = {"num_attention_heads": 2, "attention_head_dim": 24, "ffn_dim": 32, "num_layers": layers, "freq_dim": 16}
    channels = {"in_channels": 4, "out_channels": 4, "text_dim": 16}
    patches = {"patch_size": (1, 2, 2), "compressed_patch_size": (1, 4, 4), "full_chunk_limit": 2}
    return AnyFlowFARTransformer3DModel(**sizes, **channels, **patches, rope_max_seq_len=32)


def _ltx() -> LTXVideoTransformer3DModel:
    sizes = {"num_attention_heads": 2, "attention_head_dim": 24, "cross_attention_dim": 48, "num_layers": 2}
    return LTXVideoTransformer3DModel(**sizes, in_channels=4, out_channels=4, caption_channels=16)


def _flux() -> FluxTransformer2DModel:
    sizes = {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2}
    text = {"joint_attention_dim": 16, "pooled_projection_dim": 16, "guidance_embeds": True}
    return FluxTransformer2DModel(**sizes, **text, in_channels=4, axes_dims_rope=(4, 4, 8))


def _unet() -> UNet2DConditionModel:
    down, up = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
    sizes = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 4}
    kinds = {"down_block_types": down, "up_block_types": up}
    return UNet2DConditionModel(**sizes, **kinds, sample_size=8, in_channels=4, out_channels=4, cross_attention_dim=16)
