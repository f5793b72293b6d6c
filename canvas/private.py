"""Private names of diffusers that canvases need; `tests/canvas` compares them with the installed version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

COMMITTED = "_committed"  # where BlockRefinementScheduler notes what it has committed of a canvas without masks


def committed(scheduler: Any, sample: torch.Tensor, step: int) -> torch.Tensor:
    """What a scheduler without masks has committed before a step, bool `[B, L]`; it begins anew at step 0."""
    found = getattr(scheduler, COMMITTED)
    return torch.zeros_like(sample, dtype=torch.bool) if step == 0 or found is None else found


def edits_committed(scheduler: Any, call: dict[str, Any]) -> bool:
    """Whether a scheduler called so edits tokens that it has committed: by its own settings where the call has none."""
    threshold = call.get("editing_threshold")
    return ((scheduler.config.editing_threshold if threshold is None else threshold) or 0) > 0


def is_greedy(call: dict[str, Any]) -> bool:
    """Whether a scheduler called so draws nothing at random."""
    return call.get("sampling_method", "auto") == "greedy" or not call.get("temperature", 0.0) > 0


def drawn(scheduler: Any, call: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The chances `[..., V]` by which a scheduler, called so with a temperature, draws tokens from logits."""

    def chances(logits: torch.Tensor) -> torch.Tensor:
        warm = scheduler._top_k_filtering(logits / call["temperature"], top_k=call.get("top_k"))
        return torch.as_tensor(scheduler._top_p_filtering(warm, top_p=call.get("top_p")).float().softmax(-1))

    return chances


def commit(scheduler: Any, added: torch.Tensor) -> None:
    """Let a scheduler without masks keep these positions `[B, L]`, too."""
    setattr(scheduler, COMMITTED, getattr(scheduler, COMMITTED) | added)
