"""Latents, blocks, token streams and attention in the transformers of each family.

One row per class of diffusers. Methods that only see whole forward passes need the names of the latents alone; methods
that skip blocks or tokens work on the families that have a row, and refuse others by name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mmaccel.errors import UnsupportedTargetError
from mmaccel.stepping.layout import LatentLayout
from mmaccel.stepping.tensors import tensors


@dataclass(frozen=True)
class Family:
    """One class of transformer.

    Attributes
    ----------
    name
        As users call it.
    transformer
        Name of the class in diffusers; its subclasses count too.
    blocks
        Attributes that hold the blocks, in the order in which they run.
    outputs
        The token streams that a block returns, in order, named like its arguments. A single name stands for a bare
        tensor.
    hidden
        The stream that becomes the sample.
    attention
        Attribute of a block: self-attention, whose `hidden_states` are the block's input after norm and modulation.
    latents
        Arguments of the transformer that its outputs belong to, in the order of the outputs.
    text
        Position of the text in joint attention, ``"first"`` or ``"last"``; None if self-attention covers the latents'
        tokens alone.
    is_divisible
        Whether some of the tokens can be computed apart from the others, given their keys and values.
    layout
        Axes of the latents, where diffusers' FasterCache knows them and all guidance arguments are split by it.
    """

    name: str
    transformer: str
    blocks: tuple[str, ...] = ("transformer_blocks",)
    outputs: tuple[str, ...] = ("hidden_states",)
    hidden: str = "hidden_states"
    attention: str = "attn1"
    latents: tuple[str, ...] = ("hidden_states",)
    text: str | None = None
    is_divisible: bool = True
    layout: str = ""

    def block_list(self, denoiser: torch.nn.Module) -> list[torch.nn.Module]:
        """All blocks of a denoiser, in the order in which they run."""
        return [block for name in self.blocks for block in getattr(denoiser, name)]

    def streams(self, block: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The streams of tokens in a call of a block, by name and in the order of its outputs."""
        given = arguments(block, args, kwargs)
        return {name: given[name] for name in self.outputs}

    def returned(self, output: Any) -> dict[str, Any]:
        """The streams in what a block returned; one that ends here is None (text in the last block of SD3)."""
        return {self.hidden: output} if len(self.outputs) == 1 else dict(zip(self.outputs, output, strict=True))

    def as_output(self, streams: Mapping[str, Any]) -> Any:
        """What a block returns for these streams."""
        return streams[self.hidden] if len(self.outputs) == 1 else tuple(streams[name] for name in self.outputs)


_SINGLE = ("transformer_blocks", "single_transformer_blocks")
_HIDDEN_TEXT = ("hidden_states", "encoder_hidden_states")
_TEXT_HIDDEN = ("encoder_hidden_states", "hidden_states")
_HIDDEN_AUDIO = ("hidden_states", "audio_hidden_states")

FAMILIES = {
    family.transformer: family
    for family in (
        Family("Wan 2.1 and 2.2", "WanTransformer3DModel", blocks=("blocks",)),
        Family("LTX-Video", "LTXVideoTransformer3DModel"),
        Family(
            "LTX-2", "LTX2VideoTransformer3DModel", outputs=_HIDDEN_AUDIO, latents=_HIDDEN_AUDIO, is_divisible=False
        ),
        Family("HunyuanVideo", "HunyuanVideoTransformer3DModel", _SINGLE, _HIDDEN_TEXT, attention="attn", text="last"),
        Family("CogVideoX", "CogVideoXTransformer3DModel", outputs=_HIDDEN_TEXT, text="first", layout="BFCHW"),
        Family("Flux", "FluxTransformer2DModel", _SINGLE, _TEXT_HIDDEN, attention="attn", text="first"),
        Family("Stable Diffusion 3", "SD3Transformer2DModel", outputs=_TEXT_HIDDEN, attention="attn", text="last"),
        Family("PixArt", "PixArtTransformer2DModel"),
        Family("Qwen-Image", "QwenImageTransformer2DModel", outputs=_TEXT_HIDDEN, attention="attn", text="first"),
        Family(
            "Z-Image", "ZImageTransformer2DModel", ("layers",), ("x",), "x", "attention", ("x",), is_divisible=False
        ),
    )
}


def find_family(denoiser: torch.nn.Module) -> Family | None:
    """The family of a transformer, or None."""
    return next((FAMILIES[cls.__name__] for cls in type(denoiser).__mro__ if cls.__name__ in FAMILIES), None)


def divisible_family(denoiser: torch.nn.Module) -> Family | None:
    """The family of a transformer whose tokens can be computed apart, or None.

    None also where blocks have a second self-attention, over the picture alone: Stable Diffusion 3.5 medium.
    """
    family = find_family(denoiser)
    if family is None or not family.is_divisible:
        return None
    has_second = any(getattr(block, "use_dual_attention", False) for block in family.block_list(denoiser))
    return None if has_second else family


def layout_of(denoiser: torch.nn.Module, latents: torch.Tensor) -> LatentLayout:
    """The layout of a transformer's tokens in these latents."""
    family = divisible_family(denoiser)
    config: Any = denoiser.config
    if family is None:
        return LatentLayout()
    size = config.patch_size
    if isinstance(size, int):
        size = (getattr(config, "patch_size_t", None) or 1, size, size)
    return LatentLayout(tuple(size)[-(latents.ndim - 2) :], family.layout == "BFCHW")


def family_of(denoiser: torch.nn.Module, method: str) -> Family:
    """The family of a transformer.

    Raises
    ------
    UnsupportedTargetError
        Names the method and lists the supported families.
    """
    family = find_family(denoiser)
    if family is None:
        supported = ", ".join(f"{family.name} ({family.transformer})" for family in FAMILIES.values())
        raise UnsupportedTargetError(
            f"{method} has to know the blocks of a transformer, and {type(denoiser).__name__} is not among {supported}"
        )
    return family


def arguments(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of `module`, by name."""
    return bound(module, args, kwargs).arguments


def latents_of(denoiser: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that the outputs belong to; in an unknown family those of the first argument that holds numbers."""
    given, family = arguments(denoiser, args, kwargs), find_family(denoiser)
    if family is not None:
        return list(tensors([given[name] for name in family.latents]))
    found = (list(tensors(value)) for value in given.values())
    return next((values for values in found if values and values[0].is_floating_point()), [])


def bound(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """A call of `module`, whose arguments can be changed by name."""
    cls: Any = type(module)
    return _signature(cls).bind(*args, **kwargs)


@functools.cache
def _signature(cls: Any) -> inspect.Signature:
    signature = inspect.signature(cls.forward)
    return signature.replace(parameters=list(signature.parameters.values())[1:])
