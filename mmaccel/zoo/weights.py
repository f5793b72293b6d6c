"""Loading of safetensors checkpoints with checks that transformers leaves to the reader of its warnings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ..errors import WeightsError

# How diffusers, which raises nothing of its own here, begins to say that a file is damaged or foreign.
_DAMAGED, _FOREIGN = "Unable to load weights", "Cannot load"


def load_pretrained(cls: Any, source: str | Path, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """`cls.from_pretrained(source)` from safetensors only, refusing weights that do not belong to the class.

    Raises
    ------
    WeightsError
        If the file is truncated, or tensors are missing or of the wrong shape.
    """
    try:
        model, info = cls.from_pretrained(
            source, dtype=dtype or "auto", use_safetensors=True, output_loading_info=True, **options
        )
    except (SafetensorError, EOFError) as error:
        raise WeightsError(f"the weights in {source} are damaged ({error}): fetch or install them again") from error
    except OSError as error:
        if not str(error).startswith(_DAMAGED):
            raise
        raise WeightsError(f"the weights in {source} are damaged: fetch or install them again") from error
    except (RuntimeError, ValueError) as error:
        if isinstance(error, ValueError) and not str(error).startswith(_FOREIGN):
            raise
        reason = str(error).splitlines()[0]
        raise WeightsError(f"the weights in {source} are not those of a {cls.__name__} ({reason})") from error
    wrong = [*info["missing_keys"], *info["mismatched_keys"]]
    if wrong:
        raise WeightsError(
            f"the weights in {source} are not those of a {cls.__name__}: {len(wrong)} tensors are missing"
            f" or of another shape, such as {wrong[0]}"
        )
    return model.eval()
