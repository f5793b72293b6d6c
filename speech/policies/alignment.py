"""When each token was spoken, by what a decoder's cross-attention looks at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from mmaccel.machine import unrounded

from ..decoding.projections import split_heads, watched_projections

MEDIAN_WIDTH = 7  # frames of the filter over time, as in OpenAI's Whisper


@contextmanager
def captured_attention(modules: Sequence[Any]) -> Iterator[list[torch.Tensor]]:
    """Record what cross-attention modules attend to in the next forward of their decoder in this thread.

    The list that is given holds, after the forward, `[H, L, T]` probabilities for each module, in their order. They
    are computed from what the projections of queries and keys return.

    Parameters
    ----------
    modules
        Modules with `q_proj`, `k_proj` and `head_dim`, without positions, such as `layer.encoder_attn`. Keys must be
        projected in the forward, so it must not use a cache of an earlier one.
    """
    found: list[torch.Tensor] = []
    with watched_projections(modules) as states:  # others may hear meanwhile
        yield found
    for module, projected in zip(modules, states, strict=True):
        found.append(_probabilities(projected["q_proj"], projected["k_proj"], module.head_dim))


def _probabilities(query: torch.Tensor, key: torch.Tensor, head_dim: int) -> torch.Tensor:
    """`[H, L, T]` of projections `[1, L, H * head_dim]` and `[1, T, K * head_dim]`."""
    query, key = (split_heads(states[:1], head_dim)[0].float() for states in (query, key))
    key = key.repeat_interleave(query.shape[0] // key.shape[0], 0)
    with unrounded(query.device.type):
        return torch.softmax(query @ key.mT * head_dim**-0.5, -1)


def sharpened(attention: torch.Tensor) -> torch.Tensor:
    """One map `[L, T]` of several heads' `[H, L, T]`: z-score over tokens, median over time, mean over heads.

    Robust Speech Recognition via Large-Scale Weak Supervision (Radford et al., 2022), as released.
    """
    deviation, mean = torch.std_mean(attention, dim=-2, keepdim=True, unbiased=False)
    scores = (attention - mean) / deviation.clamp_min(1e-9)
    side = MEDIAN_WIDTH // 2
    if scores.shape[-1] > side:
        padded = torch.nn.functional.pad(scores, (side, side), mode="reflect")
        scores = padded.unfold(-1, MEDIAN_WIDTH, 1).median(-1).values
    return scores.mean(0)


def warp(scores: np.ndarray) -> np.ndarray:
    """First frame of each row on the best monotone path through `[L, T]`, by dynamic time warping: `[L]`.

    Paths go from the first to the last corner by steps of one row, one frame or both, and collect the scores of where
    they pass. A row is filled at once: where a path has entered it, the rest of what it collects there is a sum.
    """
    rows, frames = scores.shape
    above = np.full(frames + 1, -np.inf)  # the best that a path to each frame of the row before collects
    above[0] = 0.0
    step = np.zeros((rows, frames), np.int8)  # 0 by one of both, 1 by one row, 2 by one frame
    for row in range(rows):
        entered = np.maximum(above[:-1], above[1:])
        sums = np.cumsum(scores[row], dtype=np.float64)
        here = np.full(frames + 1, -np.inf)
        here[1:] = sums + np.maximum.accumulate(entered - (sums - scores[row]))
        step[row] = np.where(here[:-1] > entered, 2, above[:-1] < above[1:])
        above = here
    first = np.zeros(rows, np.int64)
    row, frame = rows - 1, frames - 1
    while row >= 0:
        first[row] = frame
        moved = step[row, frame]
        row, frame = row - int(moved < 2), frame - int(moved != 1)
    return first
