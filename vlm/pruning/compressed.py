"""What is left of the visual tokens of one video, and how methods choose it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Compressed(NamedTuple):
    """What is left of the `F` frames of `N` tokens of one video, `K` tokens in all.

    Attributes
    ----------
    tokens : `[K, D]`
        Kept or merged features, in the order in which the language model reads them: frames never go back.
    anchor_index : int64 `[K]`
        Which of the ``F * N`` input tokens each stands at, all different. Positions, newline tokens and pictures
        follow from it.
    size : `[K]`
        How many input tokens each is the mean of; 1 for a kept one.
    """

    tokens: torch.Tensor
    anchor_index: torch.Tensor
    size: torch.Tensor


def attention(scores: torch.Tensor | None) -> torch.Tensor:
    """The scores `[F, N]` in float32; a `ValueError` where a method needs them and has none."""
    if scores is None:
        raise ValueError("this method goes by attention: give scores `[F, N]`, such as torch.rand(F, N)")
    return scores.float()


def everything(features: torch.Tensor) -> Compressed:
    """All tokens of `[F, N, D]`."""
    return chosen(features, torch.arange(features.shape[0] * features.shape[1], device=features.device))


def in_order(tokens: torch.Tensor, index: torch.Tensor, size: torch.Tensor) -> Compressed:
    """Tokens `[K, D]` sorted by where they stand."""
    order = index.argsort()
    return Compressed(tokens[order], index[order], size[order])


def joined(parts: Sequence[Compressed]) -> Compressed:
    """What is left of consecutive parts of a video."""
    return Compressed(*(torch.cat(part) for part in zip(*parts, strict=True)))


def chosen(features: torch.Tensor, index: torch.Tensor) -> Compressed:
    """The tokens of `features` `[F, N, D]` at sorted flat indices, unchanged."""
    index = index.sort().values
    return Compressed(features.flatten(0, 1)[index], index, torch.ones_like(index))


def top(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` highest scores, ties by index, in ascending order of index."""
    return scores.sort(descending=True, stable=True).indices[:count].sort().values
