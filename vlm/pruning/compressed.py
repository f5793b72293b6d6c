"""The remaining visual tokens of one video, and how methods choose them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Compressed(NamedTuple):
    """The `K` tokens that remain of one video with `F` frames of `N` tokens.

    Attributes
    ----------
    tokens : `[K, D]`
        Kept or merged features, in the order in which the language model reads them: frames never go back.
    anchor_index : int64 `[K]`
        Position of each among the ``F * N`` input tokens, all different. Rotary positions, newline tokens and pictures
        follow from it.
    size : `[K]`
        Number of input tokens that each is the mean of; 1 for a kept token.
    """

    tokens: torch.Tensor
    anchor_index: torch.Tensor
    size: torch.Tensor


def attention(scores: torch.Tensor | None) -> torch.Tensor:
    """The scores `[F, N]` in float32; raises a `ValueError` if a method needs them and has none."""
    if scores is None:
        raise ValueError("this method ranks tokens by attention: give scores `[F, N]`, such as torch.rand(F, N)")
    return scores.float()


def everything(features: torch.Tensor) -> Compressed:
    """All tokens of `[F, N, D]`."""
    return chosen(features, torch.arange(features.shape[0] * features.shape[1], device=features.device))


def in_order(tokens: torch.Tensor, index: torch.Tensor, size: torch.Tensor) -> Compressed:
    """Tokens `[K, D]` sorted by position."""
    order = index.argsort()
    return Compressed(tokens[order], index[order], size[order])


def joined(parts: Sequence[Compressed]) -> Compressed:
    """Join the remaining tokens of consecutive parts of a video."""
    return Compressed(*(torch.cat(part) for part in zip(*parts, strict=True)))


def chosen(features: torch.Tensor, index: torch.Tensor) -> Compressed:
    """The tokens of `features` `[F, N, D]` at sorted flat indices, unchanged."""
    index = index.sort().values
    return Compressed(features.flatten(0, 1)[index], index, torch.ones_like(index))


def top(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` highest scores, ties by index, in ascending order of index."""
    return scores.sort(descending=True, stable=True).indices[:count].sort().values
