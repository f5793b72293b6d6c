"""All methods and presets as text, from a file: to import them takes seconds, and to read about them need not.

`python -m mmaccel.demos.pages.method_listing` takes them over from the registry into `listing.json`; a test compares
the two.
"""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

FILE = "listing.json"
WIDEST = 100  # characters of a line
INDENT = 4


def methods_text(modality: str) -> str:
    """Methods of a modality: exact or lossy, what each does, and what its settings mean."""
    found = _listing()["methods"].items()
    return "\n\n".join(_method(name, told) for name, told in found if name.split(".")[0] == modality)


def presets_text(modality: str) -> str:
    """Presets of a modality, as :func:`mmaccel.presets.listing` writes them."""
    return str(_listing()["presets"][modality])


def _method(name: str, told: Mapping[str, Any]) -> str:
    lines = [f"{name}  [{'exact' if told['exact'] else 'lossy'}]", *_wrapped(told["summary"])]
    for setting in told["settings"]:
        text = f"{setting['name']}={setting['default']}"
        lines += _wrapped(f"{text}  {setting['meaning']}", 2 * INDENT)
    return "\n".join([*lines, *_wrapped(f"paper: {told['paper']}")])


def _wrapped(text: str, further: int = INDENT) -> list[str]:
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 0)).columns)
    return textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=" " * INDENT,
        subsequent_indent=" " * further,
        break_long_words=False,
        break_on_hyphens=False,
    )


@cache
def _listing() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(resources.files(__package__).joinpath(FILE).read_text("utf-8"))
    return found
