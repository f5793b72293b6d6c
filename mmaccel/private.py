"""Private names of transformers that mmaccel calls; `tests/test_private.py` holds them against the version."""

from __future__ import annotations

from typing import Any


def generation_settings(model: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Split arguments of `generate` as the model itself does.

    Returns
    -------
    A filled `GenerationConfig` of this call, and the arguments that are meant for the model.

    Raises
    ------
    ValueError
        If an argument is meant for neither.
    """
    rest = dict(kwargs)
    config, model_kwargs = model._prepare_generation_config(rest.pop("generation_config", None), **rest)
    config.validate()
    model._validate_model_kwargs(model_kwargs.copy())
    return config, model_kwargs
