"""Private names of diffusers that canvases need; `tests/canvas` compares them with the installed version."""

from __future__ import annotations

from typing import Any

import torch

COMMITTED = "_committed"  # where BlockRefinementScheduler notes what it has committed of a canvas without masks


def committed(scheduler: Any, sample: torch.Tensor, step: int) -> torch.Tensor:
    """What a scheduler without masks has committed before a step, bool `[B, L]`; it begins anew at step 0."""
    found = getattr(scheduler, COMMITTED)
    return torch.zeros_like(sample, dtype=torch.bool) if step == 0 or found is None else found


def commit(scheduler: Any, added: torch.Tensor) -> None:
    """Let a scheduler without masks keep these positions `[B, L]`, too."""
    setattr(scheduler, COMMITTED, getattr(scheduler, COMMITTED) | added)
