"""`mmaccel methods` and `mmaccel presets`: from a file, since importing all methods takes seconds.

`python -m mmaccel.demos.pages.method_listing` writes `listing.json` from the registry; a test compares the two.
Modalities of other packages are not in the file, and are imported.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import resources
from typing import Any

from ..method import Method
from ..modality import Modality, get_modality, modalities

FILE = "listing.json"
WIDEST = 100  # characters of a line
INDENT = 4
ROLE = re.compile(r":\w+:`~?(?:mmaccel\.)?([\w.]+)`")


def add_parser(commands: Any) -> None:
    """Add `methods` and `presets` to the command line."""
    names = ", ".join(modality.name for modality in modalities())
    for name, about, text in (
        ("methods", "list all methods, what they do and what their settings mean", methods_text),
        ("presets", "list the methods behind exact, balanced and fast, with their measured figures", presets_text),
    ):
        parser = commands.add_parser(name, help=about)
        parser.add_argument("--modality", help=f"only those of one modality: {names}")
        parser.set_defaults(run=partial(run_list, text), loads_models=False)


def run_list(text: Callable[[Modality], str], arguments: argparse.Namespace) -> None:
    """Print the list of one modality, or of all."""
    chosen = modalities() if arguments.modality is None else (get_modality(arguments.modality),)
    print("\n\n".join(map(text, chosen)))


def methods_text(modality: Modality) -> str:
    """Methods of a modality: exact or lossy, what each does, and what its settings mean."""
    shipped = modality.name in _listed()["presets"]
    described = _listed()["methods"] if shipped else described_methods()
    parts = [_method(name, told) for name, told in described.items() if name.split(".")[0] == modality.name]
    return "\n\n".join([*parts, *(["\n".join(_wrapped(modality.note))] if modality.note else [])])


def presets_text(modality: Modality) -> str:
    """Presets of a modality, as :func:`mmaccel.presets.listing` writes them, in lines of the terminal's width."""
    from ..presets import listing

    found = _listed()["presets"].get(modality.name)
    lines = (listing(modality.name) if found is None else str(found)).split("\n")
    return "\n".join(part for line in lines for part in _wrapped(line, 3 * INDENT, 0) or [""])


def described_methods() -> dict[str, dict[str, Any]]:
    """Descriptions of all methods by name."""
    from ..registry import methods

    return {name: _told(cls) for name, cls in methods().items()}


def _told(method: type[Method]) -> dict[str, Any]:
    """The description of a method; a line of the docstring can name several settings, such as `first, last`."""
    known, usual = meanings(method), method()
    settings = [
        {
            "name": name,
            "default": repr(getattr(usual, name)),
            "meaning": _plain(next((text for names, text in known.items() if name in names.split(", ")), "")),
        }
        for name in usual.settings()
    ]
    summary = re.sub(r"; (lossy|lossless|exact)\.$", ".", method.summary())
    return {"exact": usual.exact, "summary": _plain(summary), "settings": settings, "paper": method.paper}


def meanings(method: type[Method]) -> dict[str, str]:
    """What settings are, by name or by several names as written: by the class's own docstring, else by its bases'."""
    found: dict[str, str] = {}
    for cls in method.__mro__:
        for names, text in parameters(inspect.cleandoc(cls.__doc__ or "")).items():
            found.setdefault(names, text)  # own entries come first
    return found


def parameters(docstring: str) -> dict[str, str]:
    """The section *Parameters* of a numpy docstring: text by name, or by several names as written.

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
    return {names: " ".join(lines) for names, lines in found.items()}


def _plain(text: str) -> str:
    """Text of a docstring without its marks for references and code."""
    return ROLE.sub(r"\1", text).replace("``", "").replace("`", "")


def _method(name: str, told: Mapping[str, Any]) -> str:
    lines = [f"{name}  [{'exact' if told['exact'] else 'lossy'}]", *_wrapped(told["summary"])]
    for setting in told["settings"]:
        text = f"{setting['name']}={setting['default']}"
        lines += _wrapped(f"{text}  {setting['meaning']}".rstrip(), 2 * INDENT)
    return "\n".join([*lines, *_wrapped(f"paper: {told['paper']}")])


def _wrapped(text: str, further: int = INDENT, first: int = INDENT) -> list[str]:
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 0)).columns)
    return textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=" " * first,
        subsequent_indent=" " * further,
        break_long_words=False,
        break_on_hyphens=False,
    )


@cache
def _listed() -> dict[str, Any]:
    return json.loads(resources.files(__package__).joinpath(FILE).read_text("utf-8"))
