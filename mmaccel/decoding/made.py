"""What a call of `generate` was given, and what it made of it."""

from __future__ import annotations

from typing import Any

import torch


def prompt_ids(kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The token ids of the prompt of a call of `generate`; None if it has embeddings alone."""
    found = (kwargs.get(name) for name in ("inputs", "input_ids"))
    return next((value for value in found if isinstance(value, torch.Tensor)), None)


def tokens_made(result: Any, kwargs: dict[str, Any]) -> int:
    """Tokens behind the prompts, in all rows; padding of texts that ended before others counts.

    0 where a `custom_generate` of the caller gave something else.
    """
    sequences = result if isinstance(result, torch.Tensor) else getattr(result, "sequences", None)
    if sequences is None:
        return 0
    ids = prompt_ids(kwargs)
    given = 0 if ids is None else ids.shape[1]
    return int(sequences.shape[0] * (sequences.shape[1] - given))
