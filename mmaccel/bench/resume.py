"""A benchmark that was stopped goes on where it was, if nothing has changed since."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..comparison import results
from ..comparison.ranks import Ranks
from ..errors import SettingError, WeightsError
from ..files.foreign_json import read_json
from ..files.output import replacing
from .benchmark import Benchmark, Group, Row

SAME = ("versions", "commit", "clean", "machine", "threads", "processes")  # rows of other headers are never mixed
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

    def add(self, name: str, rows: Group) -> None:
        """Keep the rows of a part."""
        self.parts[name] = rows
        self._write()

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
        same = all(found["header"].get(name) == self.header.get(name) for name in SAME)
        return same and self.header["clean"] is not False and found.get("full") == self.full

    def _write(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            told = {"header": self.header, "full": self.full, "parts": self.parts}
            with replacing(self.path) as temporary:
                temporary.write_text(json.dumps(told), encoding="utf-8")


def measure(
    benchmark: Benchmark, full: bool, page: Path | None, ranks: Ranks | None = None
) -> tuple[dict[str, Any], Unfinished]:
    """Header and rows of a benchmark, and what is to be removed once they are written; it is kept beside a page.

    Several processes share the parts, and the first one keeps them.
    """
    ranks = ranks or Ranks()
    header, parts = results.result([])["header"], benchmark.parts(full)
    if len(parts) < ranks.count:
        count = "one part" if len(parts) == 1 else f"{len(parts)} parts"
        raise SettingError(f"bench {benchmark.name} has {count}, which {ranks.count} processes cannot share")
    if ranks.count > 1:
        header["processes"] = ranks.count
    kept = Unfinished(page.with_suffix(SUFFIX) if page and ranks.rank == 0 else None, header, full)
    kept.parts = ranks.of_first(lambda: kept.parts)  # the others have read no file
    missing = [name for name in parts if name not in kept.parts]
    # in rounds, so that a launch that is stopped goes on after the last whole one
    rounds = [missing[first : first + ranks.count] for first in range(0, len(missing), ranks.count)]
    for names in tqdm(rounds, desc=benchmark.name, disable=len(parts) == 1 or ranks.rank > 0):
        made = ranks.gathered(partial(_rows, [parts[name] for name in ranks.mine(names)]))
        for name, rows in zip(names, (row for each in made for row in each), strict=True):
            kept.add(name, rows)
    return {"header": kept.header, "rows": [row for name in parts for row in kept.parts[name]]}, kept


def _rows(parts: list[Callable[[], Iterable[Row]]]) -> list[Group]:
    return [list(make()) for make in parts]
