"""The loop of both tables: each class is tried, and what came out goes into a file that the site reads."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

DOCS = Path(__file__).resolve().parents[2] / "docs"


def write(target: Path, names: Iterable[str], tried: Callable[[str], dict[str, Any]]) -> None:
    """Try every class, and write a line for each."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    found = {}
    for name in names:
        found[name] = tried(name)
        print(name, found[name], flush=True)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in found.items())
    target.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    print(f"wrote {target}")
