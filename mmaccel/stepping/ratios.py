"""MagCache's ratios: how what a model adds to its tokens grows from step to step."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def growth(old: torch.Tensor, new: torch.Tensor) -> float:
    """Mean ratio of the tokens' norms in two residuals `[B, S, C]` that follow each other."""
    before, after = (x.float().norm(dim=-1) for x in (old, new))
    return float((after / before.clamp_min(1e-8)).mean())


def stretched(ratios: Sequence[float], steps: int) -> list[float]:
    """Ratios for a run with this number of steps: those of the nearest step of the run that was measured.

    Examples
    --------
    >>> stretched((1.0, 1.02, 0.98, 0.9), 2)
    [1.0, 0.9]
    """
    last = len(ratios) - 1
    return [ratios[round(step * last / max(1, steps - 1))] for step in range(steps)]
