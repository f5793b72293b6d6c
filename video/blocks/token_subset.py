"""A subset of a transformer's tokens: their arguments, and their attention to the kept keys and values of all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mmaccel.cache import BranchCache
from mmaccel.errors import UnsupportedTargetError
from mmaccel.forwards import diffusers_hooks

from ..families.compiled import refuse_compiled
from ..families.families import FAMILIES, Family, divisible_family, why_indivisible
from .sdpa import AttentionMode

Forward = Callable[..., Any]
READS = (
    "tokens cannot be chosen where a transformer attends to keys and values of given pictures too, as that of"
    " GLM-Image: leave the pictures out, or choose whole steps with video.HeterogeneousSteps()"
)
TWICE = (
    "tokens cannot be chosen where attention has a second part, as with an IP-Adapter or perturbed attention guidance"
    " (PAG): leave it out, or choose whole steps with video.HeterogeneousSteps()"
)
UNSEEN = (
    "tokens are chosen within torch's scaled_dot_product_attention, and this transformer attends with another kernel:"
    ' call pipe.transformer.set_attention_backend("native") first'
)
SKIPPED = (
    "tokens cannot be chosen where guidance skips the first or last block: skip others, or choose whole steps with"
    " video.HeterogeneousSteps()"
)
# diffusers' hooks that change attention for guidance: they need as many queries as keys, or those of a whole picture
_PERTURBING = {"AttentionProcessorSkipHook", "SmoothedEnergyGuidanceHook"}
KINDS = {"native": (None, None), "fp8": (torch.float8_e4m3fn, None), "cpu": (None, "cpu")}
# arguments of blocks that may have an entry per token, with the axis of the tokens where there are two
_PER_TOKEN = {"rotary_emb": 0, "image_rotary_emb": 0, "freqs_cis": 0, "temb": 0, "timestep": 0, "modulate_index": 1}


@dataclass(frozen=True)
class TokenSubset:
    """Some of the latents' tokens, and all of the text's where both share attention.

    Attributes
    ----------
    tokens
        Sorted indices `[A]` among the latents' tokens.
    total
        Number of tokens of the latents.
    text
        Number of text tokens that share attention with them.
    order
        Position of the text, ``"first"`` or ``"last"``.
    """

    tokens: torch.Tensor
    total: int
    text: int = 0
    order: str | None = None

    @functools.cached_property
    def places(self) -> torch.Tensor:
        """Indices of the tokens among those of text and picture, text included."""
        if not self.text:
            return self.tokens
        text = torch.arange(self.text, device=self.tokens.device)
        if self.order == "first":
            return torch.cat([text, self.tokens + self.text])
        return torch.cat([self.tokens, text + self.total])

    def choose(self, given: dict[str, Any]) -> None:
        """Cut the arguments of a block that have an entry per token; the hidden states are left alone."""
        for name, axis in _PER_TOKEN.items():
            if name in given:
                given[name] = self.of(given[name], axis)

    def of(self, value: Any, axis: int = 0) -> Any:
        """The subset's entries of a tensor with one entry per token, or per token of text and picture.

        Of two axes, `axis` is that of the tokens; of more, it is the second.
        """
        if isinstance(value, tuple | list):
            return type(value)(self.of(part, axis) for part in value)
        if not isinstance(value, torch.Tensor) or value.ndim < 2:
            return value
        dim = axis if value.ndim == 2 else 1
        if value.shape[dim] == self.total:
            return value.index_select(dim, self.tokens.to(value.device))
        if self.text and value.shape[dim] == self.total + self.text:
            return value.index_select(dim, self.places.to(value.device))
        return value


class KeysValues:
    """Keys, values and masks of the self-attentions of a transformer, for each branch.

    Parameters
    ----------
    layers
        Number of self-attentions.
    kv
        How they are kept: ``"native"``, ``"fp8"`` (a half or a quarter of the bytes) or ``"cpu"``.
    """

    def __init__(self, layers: int, kv: str = "native") -> None:
        self.cache = BranchCache(layers, *KINDS[kv])
        self.masks: dict[int, torch.Tensor] = {}  # over all keys, of each branch

    def attend(
        self, layer: int, branch: int, subset: TokenSubset | None, forward: Forward, args: Any, kwargs: Any
    ) -> Any:
        """The forward of one self-attention, whose keys and values are kept.

        With a subset, hidden states are those of its tokens: they overwrite theirs among the kept ones, and attend to
        all.

        Raises
        ------
        UnsupportedTargetError
            If the model has keys and values of its own to attend to, attends with another kernel than torch's, or
            attends twice.
        """
        if getattr(kwargs.get("kv_cache"), "mode", None) == "read":
            raise UnsupportedTargetError(READS)
        calls = 0

        def attention(
            function: Forward, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any
        ) -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise UnsupportedTargetError(TWICE)
            places = None if subset is None else subset.places.to(key.device)
            key, value = self.cache.write(layer, key, value, branch, places)
            if more.get("attn_mask") is not None:
                if subset is None:
                    self.masks[branch] = more["attn_mask"]
                # some blocks build theirs for the tokens they see; the layers may be spread over devices
                more["attn_mask"] = self.masks[branch].to(query.device)
            return function(query, key, value, *rest, **more)

        with AttentionMode(attention):
            output = forward(*args, **kwargs)
        if not calls:
            raise UnsupportedTargetError(UNSEEN)
        return output

    def reset(self) -> None:
        """Forget all of it."""
        self.cache.reset()
        self.masks.clear()


def refuse_perturbed(attention: torch.nn.Module) -> None:
    """Refuse an attention that a guider perturbs in this pass, which has no effect on some tokens or a wrong one."""
    parts = attention, getattr(attention, "to_q", None)
    if any(_hook_names(part) & _PERTURBING for part in parts):
        raise UnsupportedTargetError(TWICE)


def refuse_skipped(*blocks: torch.nn.Module) -> None:
    """Refuse to choose tokens in a pass where a guider's hook answers for one of these blocks."""
    if any("TransformerBlockSkipHook" in _hook_names(block) for block in blocks):
        raise UnsupportedTargetError(SKIPPED)


def _hook_names(module: torch.nn.Module | None) -> set[str]:
    return set() if module is None else {type(hook).__name__ for hook in diffusers_hooks(module).values()}


def require_divisible(denoiser: torch.nn.Module, advice: str) -> Family:
    """The family of a transformer whose tokens can be computed apart.

    Parameters
    ----------
    denoiser
        Any transformer.
    advice
        What to do instead, for the error.

    Raises
    ------
    UnsupportedTargetError
        If the family is not one of those, which it lists, if this one of the family is not, or if the transformer or
        its blocks are compiled.
    """
    family, name = divisible_family(denoiser), type(denoiser).__name__
    if family is None:
        known = ", ".join(family.name for family in FAMILIES.values() if family.is_divisible)
        reason = why_indivisible(denoiser) or f"only those of {known}"
        raise UnsupportedTargetError(f"the tokens of {name} cannot be computed apart, {reason}: {advice}")
    refuse_compiled("choosing tokens", advice, denoiser, *family.block_list(denoiser))
    return family
