"""The tokens of a prompt that stand for something else than text; no drafter proposes them."""

from __future__ import annotations

from typing import Any

KINDS = ("image", "video", "audio", "vision")  # as configurations name them


def placeholders(config: Any) -> frozenset[int]:
    """The placeholder tokens that a model's configuration names.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> placeholders(SimpleNamespace(image_token_id=5, video_token_id=None))
    frozenset({5})
    """
    names = [f"{kind}_token_{end}" for kind in KINDS for end in ("id", "index")]
    found = (getattr(config, name, None) for name in names)
    return frozenset(token for token in found if isinstance(token, int))
