"""Which tokens of screenshots to keep: what stands out on the screen, and what later screens do not repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional as F

from mmaccel.kernels.checks import require
from mmaccel.machine import unrounded

from ..scores import check_count
from ..tokens import top
from .snap_kv import window_votes

AT_ONCE = 1 << 26  # cosines to compute together, which bounds the memory that they take


class Span(NamedTuple):
    """Consecutive visual tokens: frame after frame, in each row after row. A picture is one frame."""

    first: int
    frames: int
    rows: int
    columns: int

    @property
    def end(self) -> int:
        """The slot after the last."""
        return self.first + self.frames * self.rows * self.columns


Visual = Sequence[Sequence[Span]]  # the spans of each row of a batch


def st_lite(
    q_window: torch.Tensor,
    k: torch.Tensor,
    *,
    count: int,
    visual: Visual | None = None,
    window: int = 32,
    kernel: int = 7,
    scale: float | None = None,
) -> torch.Tensor:
    """The tokens of screens that differ from their neighbours and from the newest screen (ST-Lite, 2026).

    A token's score is the attention `A` that it gets from the end of the prompt, as in :func:`snap_kv` but the
    mean over the query heads of a key head. Visual tokens score ``gate * (A + saliency)``. The saliency is one
    minus the mean cosine to the up to eight neighbours in the frame, no less than 0. The gate is 0 for those
    tokens before the last frame whose largest cosine to a token of the last frame is above that of the `count`
    least repeated ones, else 1.

    Without `visual` only attention counts, and the choice is that of :func:`snap_kv`.

    `q_window`, `window`, `kernel` and `scale` are as for :func:`snap_kv`.

    Parameters
    ----------
    k : `[B, Hkv, N, D]`
        All keys of the prompt, rotated. They stand in for the hidden states that the paper compares: a cache has
        no others, and the rotation between two tokens is the same wherever they lie at the same distance.
    count
        Tokens to keep per key head, the window included.
    visual
        The visual tokens of each row; the last frame of its last span is the screen at hand. None (default) for
        none.

    Returns
    -------
    int32 `[B, Hkv, min(count, N)]`, ascending.

    Raises
    ------
    ValueError
        If shapes do not fit, `count` is not above `window`, `kernel` is even, or a span is empty or reaches beyond
        the keys.
    """
    score, forced = window_votes(q_window, k, window, kernel, scale)
    check_count("count", count, 1)
    require(count > window, "count", f"above window, which is {window}", count)
    score = score.unflatten(1, (k.shape[1], -1)).mean(2)
    if visual is not None:
        _check_visual(visual, k)
        score = torch.stack([_visual_score(*row, count) for row in zip(score, k, visual, strict=True)])
    return top(score.masked_fill(forced, torch.inf), count)


def _check_visual(visual: Visual, k: torch.Tensor) -> None:
    require(len(visual) == k.shape[0], "visual", f"a list of spans for each of {k.shape[0]} rows", len(visual))
    for span in (span for spans in visual for span in spans):
        fits = span.first >= 0 and min(span[1:]) >= 1 and span.end <= k.shape[2]
        require(fits, "visual", f"spans of at least one token within {k.shape[2]} keys", tuple(span))


def _visual_score(score: torch.Tensor, k: torch.Tensor, spans: Sequence[Span], count: int) -> torch.Tensor:
    """The score `[H, N]` of one row with saliency added to its visual tokens, and repeated ones set to 0."""
    if not spans:
        return score
    spans = sorted(spans)
    states = [F.normalize(k[:, span.first : span.end].float(), dim=-1) for span in spans]
    for span, state in zip(spans, states, strict=True):
        score[:, span.first : span.end] += spatial_saliency(state.unflatten(1, span[1:])).flatten(1)
    slots = torch.cat([torch.arange(span.first, span.end, device=k.device) for span in spans])
    state, last = torch.cat(states, 1), spans[-1].rows * spans[-1].columns
    history = slots[:-last]
    repeated = redundancy(state[:, :-last], state[:, -last:])
    if history.numel() > count:
        limit = repeated.kthvalue(count, dim=-1, keepdim=True).values
        score[:, history] = score[:, history].masked_fill(repeated > limit, 0.0)
    return score


def spatial_saliency(states: torch.Tensor) -> torch.Tensor:
    """One minus the mean cosine of each token to its up to eight neighbours, `[..., rows, columns]`.

    `states [..., rows, columns, D]` have length 1. A token without neighbours has a saliency of 0.
    """
    rows, columns = states.shape[-3:-1]
    around, number = (_neighbours(x, rows, columns) for x in (states, torch.ones_like(states[..., :1])))
    number = number[..., 0]
    uniform = (states * around).sum(-1) / number.clamp(min=1)
    return (1 - uniform).clamp(min=0).masked_fill(number == 0, 0.0)


def _neighbours(values: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The sum over the neighbours of each place of `[..., rows, columns, D]`."""
    padded = F.pad(values, (0, 0, 1, 1, 1, 1))
    shifted = [padded[..., y : y + rows, x : x + columns, :] for y in range(3) for x in range(3) if (y, x) != (1, 1)]
    return torch.stack(shifted).sum(0)


def redundancy(history: torch.Tensor, current: torch.Tensor) -> torch.Tensor:
    """The largest cosine of each token of `history [H, T, D]` to one of `current [H, S, D]`, `[H, T]`."""
    parts = history.split(max(1, AT_ONCE // (len(current) * current.shape[1])), 1)
    with unrounded(history.device.type):
        return torch.cat([(part @ current.transpose(1, 2)).amax(-1) for part in parts], 1)
