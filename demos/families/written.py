"""What all tables share: the small models are read from a file, and what came out goes into one that the site reads."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

DOCS = Path(__file__).resolve().parents[2] / "docs"


@functools.cache
def read_rows(name: str) -> dict[str, Any]:
    """The line of every class in a file of this folder, by name."""
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def write(target: Path, names: Iterable[str], tried: Callable[[str], dict[str, Any]]) -> None:
    """Try every class, and write a line for each; one that was stopped goes on with the classes that are missing."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    partial = target.with_suffix(".partial")
    found = json.loads(partial.read_text(encoding="utf-8")) if partial.exists() else {}
    for name in names:
        if name not in found:
            found[name] = tried(name)
            print(name, found[name], flush=True)
            lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in found.items())
            partial.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    partial.replace(target)
    print(f"wrote {target}")
