"""Where a setting of `generate` is given."""

from __future__ import annotations

from typing import Any


def setting(model: Any, kwargs: dict[str, Any], name: str) -> Any:
    """An argument of `generate`, from the call, its generation config or the model's; None for the default."""
    sources = (kwargs.get("generation_config"), model.generation_config)
    values = [kwargs.get(name), *(getattr(source, name, None) for source in sources if source is not None)]
    return next((value for value in values if value is not None), None)
