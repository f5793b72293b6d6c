"""Tiny untrained transformers of diffusers' own classes, for the contract tests."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import FluxTransformer2DModel, LTXVideoTransformer3DModel, WanTransformer3DModel

from mmaccel.testing import Example

FRAMES, HEIGHT, WIDTH = 4, 8, 8  # tokens; 256 in all, four blocks


def examples() -> list[Example]:
    """One example per family."""
    longer = ({"frames": FRAMES + 1}, {"height": HEIGHT + 2})
    return [
        _example("wan", wan, longer),
        _example("ltx", ltx, longer),
        _example("flux", flux, longer[1:]),
    ]


def _example(family: str, build: Any, variants: tuple[dict[str, Any], ...]) -> Example:
    return Example(family, build, _last_block, "__call__", takes_generator=False, variants=variants, interrupt_after=0)


def _last_block(model: Any) -> torch.nn.Module:
    """By the time it runs, attention has been intercepted."""
    names = ("blocks", "single_transformer_blocks", "transformer_blocks")
    return next(getattr(model, name) for name in names if hasattr(model, name))[-1]  # type: ignore[no-any-return]


def _seeded(build: Any, seed: int) -> Any:
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = build().eval()
    torch.set_rng_state(state)
    model.requires_grad_(False)
    return model


def _noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class _Sample:
    """Makes a transformer's call return the tensor itself: `return_dict=False` gives a tuple of one."""

    @staticmethod
    def of(model: Any) -> Any:
        model.register_forward_hook(lambda module, args, output: output[0] if isinstance(output, tuple) else output)
        return model


def wan(seed: int = 0) -> tuple[Any, Any]:
    """A `WanTransformer3DModel`, and `arguments(batch, frames, height, width, **more)`."""
    sizes = {"num_attention_heads": 2, "attention_head_dim": 24, "ffn_dim": 32, "num_layers": 2, "freq_dim": 16}
    model = _Sample.of(
        _seeded(
            lambda: WanTransformer3DModel(
                **sizes, patch_size=(1, 2, 2), in_channels=4, out_channels=4, text_dim=16, rope_max_seq_len=32
            ),
            seed,
        )
    )

    def arguments(
        batch: int = 1, frames: int = FRAMES, height: int = HEIGHT, width: int = WIDTH, **more: Any
    ) -> dict[str, Any]:
        common = {"timestep": torch.full((batch,), 500), "encoder_hidden_states": _noise(batch, 5, 16, seed=1)}
        latents = _noise(batch, 4, frames, 2 * height, 2 * width)
        return {"hidden_states": latents, **common, "return_dict": False, **more}

    return model, arguments


def ltx(seed: int = 0) -> tuple[Any, Any]:
    """An `LTXVideoTransformer3DModel`, whose tokens come packed."""
    sizes = {"num_attention_heads": 2, "attention_head_dim": 24, "cross_attention_dim": 48, "num_layers": 2}
    model = _Sample.of(
        _seeded(lambda: LTXVideoTransformer3DModel(**sizes, in_channels=4, out_channels=4, caption_channels=16), seed)
    )

    def arguments(
        batch: int = 1, frames: int = FRAMES, height: int = HEIGHT, width: int = WIDTH, **more: Any
    ) -> dict[str, Any]:
        grid = {"num_frames": frames, "height": height, "width": width}
        text = {"encoder_hidden_states": _noise(batch, 5, 16, seed=1), "encoder_attention_mask": torch.ones(batch, 5)}
        tokens = _noise(batch, frames * height * width, 4)
        return {
            "hidden_states": tokens,
            "timestep": torch.full((batch,), 500),
            **text,
            **grid,
            "return_dict": False,
            **more,
        }

    return model, arguments


def flux(seed: int = 0) -> tuple[Any, Any]:
    """A `FluxTransformer2DModel`: an image model with joint attention over text and picture."""
    sizes = {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2}
    model = _Sample.of(
        _seeded(
            lambda: FluxTransformer2DModel(
                **sizes, in_channels=4, joint_attention_dim=16, pooled_projection_dim=16, axes_dims_rope=(4, 4, 8)
            ),
            seed,
        )
    )

    def arguments(batch: int = 1, height: int = 2 * HEIGHT, width: int = 2 * WIDTH, **more: Any) -> dict[str, Any]:
        place = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), -1)
        ids = torch.nn.functional.pad(place.reshape(-1, 2), (1, 0)).float()
        text = {"encoder_hidden_states": _noise(batch, 5, 16, seed=1), "txt_ids": torch.zeros(5, 3)}
        common = {
            "timestep": torch.full((batch,), 0.5),
            "pooled_projections": _noise(batch, 16, seed=2),
            "img_ids": ids,
        }
        return {"hidden_states": _noise(batch, height * width, 4), **text, **common, "return_dict": False, **more}

    return model, arguments
