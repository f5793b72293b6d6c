"""What the cache of texts that grow by drafts holds of them, for drafters that attend to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from ..unfit import prompt_mask

if TYPE_CHECKING:
    from ..generated_texts import GeneratedTexts


@dataclass(frozen=True)
class HeldKeys:
    """Keys and values of a layer, of each text all tokens but the last, or as many as the layer keeps.

    Attributes
    ----------
    keys, values
        `[B, H, M, D]`.
    behind
        How many tokens of its text stand between a place and the last token `[B, M]`; -1 for a place that is not of
        the text, as of padding.
    """

    keys: Tensor
    values: Tensor
    behind: Tensor


def held_keys(texts: GeneratedTexts, layer: int, held: Tensor) -> HeldKeys:
    """What a layer holds of texts whose prompt is read, of places that are `held` as :func:`held_places` tells."""
    found = texts.cache.layers[layer]
    seen = held[:, -found.keys.shape[2] :]
    behind = seen.flip(1).cumsum(1).flip(1) - 1
    return HeldKeys(found.keys, found.values, behind.masked_fill(~seen, -1))


def held_places(texts: GeneratedTexts) -> Tensor:
    """Which places of the cache are of each text `[B, S]`: neither padding, nor left by drafts that were rejected."""
    if texts.slots is not None:
        return texts.slots.seen
    mask, held = prompt_mask(texts.model, texts.kwargs), texts.cache.get_seq_length()
    if mask is None:
        return torch.ones(len(texts.texts), held, dtype=torch.bool, device=texts.device)
    return functional.pad(mask.bool(), (0, max(0, held - mask.shape[1])), value=True)[:, :held].to(texts.device)
