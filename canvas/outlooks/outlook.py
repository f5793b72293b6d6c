"""Base of the methods that change how sure a model seems, before the pipeline and the rules decide by it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from ..method import CanvasMethod


@dataclass
class Seen:
    """What a step of a pipeline is about to decide by.

    Attributes
    ----------
    logits : `[B, L, V]`
        Of the model.
    sample : int64 `[B, L]`
        The block.
    mask : int
        The token that stands for nothing yet.
    end : int or None
        The token that ends a text, also where the call does not stop at it; None where there is none.
    tokenizer
        Of the pipeline, or None.
    """

    logits: torch.Tensor
    sample: torch.Tensor
    mask: int
    end: int | None
    tokenizer: Any = None


class Outlook(CanvasMethod):
    """Changes how sure the model seems of some tokens, and not which tokens it deems likeliest.

    Works beside a commit rule or :class:`canvas.FreeDave`, which then verifies the pipeline's steps with this change.
    A function of the block alone, so that a step can be foreseen. It needs greedy decoding: draws follow how sure the
    model seems, and a schedule may commit what should wait.
    """

    @abstractmethod
    def adjust(self, seen: Seen) -> torch.Tensor:
        """Logits `[B, L, V]` to decide by."""
