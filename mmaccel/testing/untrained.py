"""Untrained models for examples, tests and benchmarks of work that does not depend on what a model knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..comparison.trial import seeded

# Sizes of a small decoder.
DECODER = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}


def untrained(build: Callable[[], Any], seed: int = 0, scale: float = 1.0) -> Any:
    """A model in evaluation mode, a pure function of the seed; the global random state stays.

    Parameters
    ----------
    build
        Makes the model, such as ``lambda: MimiModel(config)``.
    seed
        Of its weights, default 0.
    scale
        What all matrices are multiplied by, default 1. Above it attention is sharp, and outputs differ clearly.

    Examples
    --------
    >>> import torch
    >>> untrained(lambda: torch.nn.Linear(2, 2), seed=1).training
    False
    """
    with seeded(seed):
        model = build().eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.mul_(scale)
    return model
