"""Takes methods and presets over from the registry into the package, for the command line: `mmaccel/listing.json`.

    python -m mmaccel.demos.pages.method_listing

Run it whenever a method, its docstring or a preset has changed; a test compares the two.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

from mmaccel import presets
from mmaccel.cli import listing
from mmaccel.method import Method
from mmaccel.registry import MODALITIES, methods

TARGET = Path(listing.__file__).with_name(listing.FILE)
ROLE = re.compile(r":\w+:`~?(?:mmaccel\.)?([\w.]+)`")


def main() -> None:
    TARGET.write_text(collect(), encoding="utf-8")
    print(f"wrote {TARGET}")


def collect() -> str:
    """The text of `listing.json`."""
    found = {
        "methods": {name: told(method) for name, method in methods().items()},
        "presets": {modality: presets.listing(modality) for modality in MODALITIES},
    }
    return json.dumps(found, indent=1) + "\n"


def told(method: type[Method]) -> dict[str, Any]:
    """What a method says of itself; a line of the docstring can be of several settings, such as `first, last`."""
    meanings = parameters(inspect.getdoc(method) or "")
    usual = method()
    settings = [
        {
            "name": name,
            "default": repr(getattr(usual, name)),
            "meaning": next(text for names, text in meanings.items() if name in names.split(", ")),
        }
        for name in usual.settings()
    ]
    summary = re.sub(r"; (lossy|lossless|exact)\.$", ".", method.summary())
    return {"exact": usual.exact, "summary": _plain(summary), "settings": settings, "paper": method.paper}


def parameters(docstring: str) -> dict[str, str]:
    """The section *Parameters* of a numpy docstring: text by name, or by names as they stand there.

    Examples
    --------
    >>> parameters("What it does.\\n\\nParameters\\n----------\\nkeep\\n    A share;\\n    by default a half.")
    {'keep': 'A share; by default a half.'}
    """
    section = docstring.partition("Parameters\n----------\n")[2]
    section = re.split(r"\n\n\S[^\n]*\n-{3,}", section)[0]
    found: dict[str, list[str]] = {}
    for line in section.splitlines():
        if line and not line.startswith(" "):
            found[line.partition(" : ")[0].strip()] = []
        elif line.strip() and found:
            found[next(reversed(found))].append(line.strip())
    return {names: _plain(" ".join(lines)) for names, lines in found.items()}


def _plain(text: str) -> str:
    """Text of a docstring without its marks for references and code."""
    return ROLE.sub(r"\1", text).replace("``", "").replace("`", "")


if __name__ == "__main__":
    main()
