"""Latents, blocks, token streams and attention in the transformers of each family.

What a class of diffusers says of itself is read by :mod:`.structure`; a row holds what that does not tell.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mmaccel.errors import UnsupportedTargetError
from mmaccel.stepping.layout import LatentLayout
from mmaccel.stepping.tensors import tensors

from .structure import BlockStructure, block_structure, class_of


@dataclass(frozen=True)
class FamilyRow:
    """What is known of a class of transformers beyond what its source says.

    Attributes
    ----------
    name
        As users call it.
    transformer
        Name of the class in diffusers; its subclasses count too.
    latents
        Arguments of the transformer that its outputs belong to, in the order of the outputs; without any, the first
        that holds numbers.
    text
        Position of the text in joint attention, ``"first"`` or ``"last"``; None if self-attention covers the latents'
        tokens alone.
    is_divisible
        Whether some of the tokens can be computed apart from the others, given their keys and values.
    layout
        Axes of the latents, where diffusers' FasterCache knows them and all guidance arguments are split by it.
    structure
        Its blocks, where its source does not tell them.
    """

    name: str
    transformer: str
    latents: tuple[str, ...] = ()
    text: str | None = None
    is_divisible: bool = False
    layout: str = ""
    structure: BlockStructure | None = None


@dataclass(frozen=True)
class Family(FamilyRow):
    """One transformer: its row, if its class has one, and where its blocks are."""

    structure: BlockStructure = BlockStructure((), (), "", "")  # which a family always has

    @property
    def hidden(self) -> str:
        """The stream that becomes the sample."""
        return self.structure.hidden

    @property
    def outputs(self) -> tuple[str, ...]:
        """The token streams that a block returns, in order, named like its arguments."""
        return self.structure.outputs

    @property
    def attention(self) -> str:
        """Attribute of a block: its self-attention; empty if it is not known."""
        return self.structure.attention

    def block_list(self, denoiser: torch.nn.Module) -> list[torch.nn.Module]:
        """All blocks of a denoiser, in the order in which they run."""
        return [block for name in self.structure.blocks for block in getattr(denoiser, name)]

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


_MOE = BlockStructure(("layers",), ("und_seq", "gen_seq"), "gen_seq", attention="")
_STREAMS = BlockStructure(("double_stream_blocks",), ("hidden_states", "encoder_hidden_states"), "hidden_states", "")

# Held against whole passes by the tests, in which some tokens computed alone come out as among all.
_DIVISIBLE = {
    "AllegroTransformer3DModel": ("Allegro", None),
    "BriaTransformer2DModel": ("Bria", "first"),
    "ChronoEditTransformer3DModel": ("ChronoEdit", None),
    "CogView3PlusTransformer2DModel": ("CogView3", "first"),
    "CogView4Transformer2DModel": ("CogView4", "first"),
    "DiTTransformer2DModel": ("DiT", None),
    "EasyAnimateTransformer3DModel": ("EasyAnimate", "first"),
    "FluxTransformer2DModel": ("Flux", "first"),
    "GlmImageTransformer2DModel": ("GLM-Image", "first"),
    "HunyuanImageTransformer2DModel": ("HunyuanImage", "last"),
    "HunyuanVideoTransformer3DModel": ("HunyuanVideo", "last"),
    "LTXVideoTransformer3DModel": ("LTX-Video", None),
    "LongCatImageTransformer2DModel": ("LongCat-Image", "first"),
    "MotifVideoTransformer3DModel": ("Motif-Video", "last"),
    "OvisImageTransformer2DModel": ("Ovis-Image", "first"),
    "PixArtTransformer2DModel": ("PixArt", None),
    "QwenImageTransformer2DModel": ("Qwen-Image", "first"),
    "SD3Transformer2DModel": ("Stable Diffusion 3", "last"),
    "SkyReelsV2Transformer3DModel": ("SkyReels-V2", None),
    "WanTransformer3DModel": ("Wan 2.1 and 2.2", None),
}
_COG = "CogVideoXTransformer3DModel"
_ROWS = (
    *(FamilyRow(name, cls, text=text, is_divisible=True) for cls, (name, text) in _DIVISIBLE.items()),
    FamilyRow("CogVideoX", _COG, text="first", is_divisible=True, layout="BFCHW"),
    FamilyRow("LTX-2", "LTX2VideoTransformer3DModel", latents=("hidden_states", "audio_hidden_states")),
    FamilyRow("Cosmos 3", "Cosmos3OmniTransformer", latents=("vision_tokens",), structure=_MOE),
    FamilyRow("HiDream", "HiDreamImageTransformer2DModel", structure=_STREAMS),
    FamilyRow("Z-Image", "ZImageTransformer2DModel"),
)
FAMILIES = {row.transformer: row for row in _ROWS}

# What a ControlNet makes, and a transformer adds to the tokens between its blocks.
BETWEEN_BLOCKS = ("controlnet_block_samples", "controlnet_single_block_samples", "block_controlnet_hidden_states")

# What was read of each transformer, since every forward pass asks.
_read: weakref.WeakKeyDictionary[torch.nn.Module, Family | None] = weakref.WeakKeyDictionary()


def find_family(denoiser: torch.nn.Module) -> Family | None:
    """The family of a transformer: its row, and what its class says of itself; None where that is not clear."""
    if denoiser not in _read:
        row = _row(denoiser)
        structure = row.structure or block_structure(denoiser)
        _read[denoiser] = None if structure is None else Family(**{**vars(row), "structure": structure})
    return _read[denoiser]


def _row(denoiser: torch.nn.Module) -> FamilyRow:
    names = [cls.__name__ for cls in type(denoiser).__mro__]
    row = next((FAMILIES[name] for name in names if name in FAMILIES), None)
    return row or FamilyRow(name=names[0], transformer=names[0])


def divisible_family(denoiser: torch.nn.Module) -> Family | None:
    """The family of a transformer whose tokens can be computed apart, or None."""
    family = find_family(denoiser)
    return None if family is None or not family.is_divisible or why_indivisible(denoiser) else family


def why_indivisible(denoiser: torch.nn.Module) -> str:
    """Why tokens cannot be computed apart in this transformer of a family in which they can; empty if they can."""
    family, config = find_family(denoiser), getattr(denoiser, "config", None)
    if family is None or not family.is_divisible:
        return ""
    if getattr(config, "image_condition_type", None) == "token_replace":  # HunyuanVideo's image-to-video
        return "since its blocks find the first frame by its place"
    if any(getattr(block, "use_dual_attention", False) for block in family.block_list(denoiser)):  # SD 3.5 medium
        return "since some of its blocks attend a second time, over the picture alone"
    return ""


def begins_again(denoiser: torch.nn.Module) -> bool:
    """Whether its last blocks begin again at the tokens before the first, beside what the others made of them."""
    return getattr(getattr(denoiser, "config", None), "num_decoder_layers", 0) > 0  # Motif-Video's


def layout_of(denoiser: torch.nn.Module, latents: torch.Tensor) -> LatentLayout:
    """The layout of a transformer's tokens in these latents."""
    family = divisible_family(denoiser)
    if family is None:  # and then it may have no configuration either
        return LatentLayout()
    config: Any = denoiser.config
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
        raise UnsupportedTargetError(
            f"{method} skips blocks of a transformer, and {type(denoiser).__name__} has no list of equal blocks that"
            " pass on what they are given: use video.HeterogeneousSteps or video.EasyCache, which choose whole steps"
        )
    return family


def arguments(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of `module`, by name."""
    return bound(module, args, kwargs).arguments


def text_of(given: dict[str, Any]) -> torch.Tensor | None:
    """The text that a call with these arguments is told, by which its branch is known."""
    return next(tensors(given.get("encoder_hidden_states")), None)


def is_controlled(denoiser: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of a transformer is given what a ControlNet adds between its blocks."""
    given = arguments(denoiser, args, kwargs)
    return any(given.get(name) is not None for name in BETWEEN_BLOCKS)


def latents_of(denoiser: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that the outputs belong to: without a row, those of the first argument that holds numbers."""
    given, family = arguments(denoiser, args, kwargs), find_family(denoiser)
    if family is not None and family.latents:
        return list(tensors([given[name] for name in family.latents]))
    found = (list(tensors(value)) for value in given.values())
    return next((values for values in found if values and values[0].is_floating_point()), [])


def bound(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """A call of `module`, whose arguments can be changed by name."""
    return _signature(class_of(module)).bind(*args, **kwargs)


@functools.cache
def _signature(cls: Any) -> inspect.Signature:
    signature = inspect.signature(cls.forward)
    return signature.replace(parameters=list(signature.parameters.values())[1:])
