"""A benchmark that was stopped goes on where it was, if nothing has changed since."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..comparison import results
from ..errors import WeightsError
from ..files.foreign_json import read_json
from ..files.output import replacing
from .benchmark import Benchmark, Group, Row

SAME = ("versions", "commit", "clean", "machine", "threads")  # of the header; rows of others are never mixed
SUFFIX = ".unfinished.json"


class Unfinished:
    """The finished parts of a benchmark, in a file beside its page until all are there.

    Parts that another commit, machine, version or number of threads made are dropped, and so are those of a tree with
    changes that were not committed, of which nobody knows what they measured.

    Parameters
    ----------
    path
        The file; None for none, so that nothing is kept.
    header
        Of the result that is being made.
    full
        Whether it is the one of full length.
    """

    def __init__(self, path: Path | None, header: Row, full: bool) -> None:
        self.path, self.header, self.full = path, header, full
        self.parts: dict[str, Group] = {}
        found = self._read()
        if found is not None and self._fits(found):
            self.header, self.parts = found["header"], found["parts"]
            sys.stderr.write(f"{path}: going on after {len(self.parts)} parts that are measured\n")
        elif found is not None:
            sys.stderr.write(f"{path}: of another commit, machine or setting, or with uncommitted changes: not used\n")

    def part(self, name: str, make: Callable[[], Iterable[Row]]) -> Group:
        """The rows of a part: those that are kept, or else made now."""
        if name not in self.parts:
            self.parts[name] = list(make())
            self._write()
        return self.parts[name]

    def remove(self) -> None:
        """All is written elsewhere."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any] | None:
        if self.path is None or not self.path.is_file():
            return None
        try:
            found = read_json(self.path, results.MOST_BYTES, "it is made anew")
        except WeightsError:  # as a machine that lost its power leaves it
            return {}
        return found if isinstance(found, dict) else {}

    def _fits(self, found: dict[str, Any]) -> bool:
        if not isinstance(found.get("header"), dict) or not isinstance(found.get("parts"), dict):
            return False
        same = all(found["header"].get(name) == self.header[name] for name in SAME)
        return same and self.header["clean"] is not False and found.get("full") == self.full

    def _write(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            told = {"header": self.header, "full": self.full, "parts": self.parts}
            with replacing(self.path) as temporary:
                temporary.write_text(json.dumps(told), encoding="utf-8")


def measure(benchmark: Benchmark, full: bool, page: Path | None) -> tuple[dict[str, Any], Unfinished]:
    """Header and rows of a benchmark, and what is to be removed once they are written; it is kept beside a page."""
    result = results.result([])
    parts = benchmark.parts(full)
    kept = Unfinished(page.with_suffix(SUFFIX) if page else None, result["header"], full)
    measured = tqdm(parts.items(), desc=benchmark.name, disable=len(parts) == 1)
    rows = [row for name, make in measured for row in kept.part(name, make)]
    return {"header": kept.header, "rows": rows}, kept
