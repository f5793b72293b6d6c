"""Items: a folder's files, or the rows of a JSONL or parquet file."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import SettingError, required, shown
from .batching import Batching

TEXT = ".txt"  # of a folder's files, where a kind takes texts
LONGEST_TEXT, LONGEST_LINE = 1 << 16, 1 << 20  # bytes
SETTLED = 2_000_000_000  # nanoseconds since a change; some file systems tell times only to two seconds
LONGEST_NAME, LONGEST_KEY = 200, 1000  # bytes, without folder and ending
NAMED = 8  # endings, and links, that are named where files are left out
# Of a part of a key, which names a file: nothing that a file system, or a terminal, takes for something else.
PART = re.compile(r"""[^./\\:*?"<>|\x00-\x1f\x7f ][^/\\:*?"<>|\x00-\x1f\x7f]*""")


@dataclass
class Item:
    """One input.

    Attributes
    ----------
    key
        Names its output, below the output's folder and without ending.
    fields
        What it has.
    problem
        Why it cannot be read; empty where it can.
    files
        The fields that name files.
    """

    key: str
    fields: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    files: tuple[str, ...] = ()

    def contents(self, known: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
        """The hash of each file, and the state in which it was read; one that is still in the `known` is not read."""
        before = known or {}
        return {name: _content(self.fields[name], before.get(name)) for name in self.files}

    def digest(self, contents: Mapping[str, Any] | None = None) -> str:
        """Equal for equal fields, where a file is what it holds, wherever it lies."""
        held = self.contents() if contents is None else contents
        fields = {**self.fields, **{name: content["sha256"] for name, content in held.items()}}
        return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _content(path: str, known: Any = None) -> dict[str, Any]:
    """The hash of a file, and its state; None where it changed so lately that another change may leave it the same."""
    found = os.stat(path)
    times = found.st_mtime_ns, found.st_ctime_ns
    state = [path, found.st_size, *times]
    if known and known["state"] == state:
        return dict(known)
    rests = time.time_ns() - max(times) > SETTLED
    with open(path, "rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "state": state if rests else None}


def read_items(path: Path, batching: Batching, root: Path | None = None) -> list[Item]:
    """All items, each with a key of its own; those that cannot be read have a problem.

    Parameters
    ----------
    path
        A folder, or a file that ends with .jsonl or .parquet.
    root
        Where the files lie that rows name; default: beside the list. They may not lie elsewhere.

    Raises
    ------
    SettingError
        If there is nothing to do, or two items have one key.
    MissingExtraError
        If parquet cannot be read here.
    """
    if path.is_dir():
        endings = batching.reads or (TEXT,)
        found, what = list(_of_folder(path, endings, batching)), f"files that end with {', '.join(endings)}"
    else:
        rows = _rows(path)
        found, what = list(_of_rows(rows, batching, (root or path.parent).resolve())), "rows"
    if not found:
        raise SettingError(f"{path} has no {what}: there is nothing to do")
    seen: dict[str, Item] = {}
    shortened = slice(-60, None) if batching.reads else slice(60)  # paths differ at their end
    for item in found:
        folded = item.key.casefold()  # some file systems do not tell "a" from "A"
        if folded in seen:
            names = " and ".join(str(one.fields.get(batching.field))[shortened] for one in (seen[folded], item))
            advice = "rename one, or give a list with a `key`" if path.is_dir() else "give each a key of its own"
            raise SettingError(f"two items have the key {shown(item.key)} ({names}): {advice}")
        seen[folded] = item
    return found


def left_out(folder: Path, batching: Batching) -> str:
    """What lies in a folder and is no item, in words; empty where that is nothing, or there is no folder."""
    endings, others, links = batching.reads or (TEXT,), Counter[str](), list[str]()
    for place, folders, files in os.walk(folder):  # which passes over what it may not read
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible = sorted(name for name in files if not name.startswith("."))
        others.update(Path(name).suffix.lower() for name in visible)
        below = [os.path.join(place, name) for name in (*folders, *visible)]
        dead = (path for path in below if os.path.islink(path) and not os.path.isfile(path))
        links += [shown(os.path.relpath(path, folder)) for path in dead]
    counts = [
        f"{count} x {shown(ending) if ending else 'no ending'}"
        for ending, count in sorted(others.items(), key=lambda found: (-found[1], found[0]))
        if ending not in endings
    ]
    said = [f"{_some(counts)} (what is read ends with {', '.join(endings)})"] if counts else []
    said += [f"links to folders, which are not followed, or to nothing: {_some(links)}"] if links else []
    return f"left out of {folder}: {'; '.join(said)}" if said else ""


def _some(words: list[str]) -> str:
    """The first of some words, and how many more there are."""
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return f"{', '.join(words[:NAMED])}{more}"


def _of_folder(folder: Path, endings: tuple[str, ...], batching: Batching) -> Iterator[Item]:
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        if path.suffix.lower() not in endings or any(p.startswith(".") for p in place.parts) or not path.is_file():
            continue
        key = place.with_suffix("").as_posix()
        value, problem = (str(path.absolute()), "") if batching.reads else _text(path)
        fields: dict[str, Any] = {batching.field: value}
        if not _is_name(key):
            problem = f"{shown(str(place))} cannot name an output: rename it, or give a list with a `key`"
        yield Item(key, fields, problem, batching.files_of(fields))


def _text(path: Path) -> tuple[str, str]:
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST_TEXT + 1)
        if len(data) > LONGEST_TEXT:
            return "", f"{path.name} is longer than {LONGEST_TEXT >> 10} KiB"
        return data.decode("utf-8-sig").strip(), ""
    except (OSError, UnicodeDecodeError) as error:
        return "", f"{path.name} is no text: {error}"


def _rows(path: Path) -> Iterable[Any]:
    """Rows of a file; a text says why one cannot be read."""
    if not path.is_file():
        raise SettingError(f"there is no folder or file {path}: give a folder, or a list such as items.jsonl")
    if path.suffix.lower() == ".jsonl":
        return _of_jsonl(path)
    if path.suffix.lower() == ".parquet":
        return _of_parquet(path)
    raise SettingError(f"{path.name} is no list: give a folder, or a file that ends with .jsonl or .parquet")


def _of_jsonl(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise SettingError(f"{path} has a line of more than {LONGEST_LINE >> 20} MiB: it is no list of items")
            if line.strip():
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError) as error:
                    yield f"it is no JSON: {error}"


def _of_parquet(path: Path) -> Iterator[Any]:
    parquet = required("pyarrow.parquet", "reading .parquet needs pyarrow: pip install pyarrow")
    from pyarrow import ArrowException

    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(1000):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise SettingError(f"{path} is no parquet file that can be read: {error}") from error


def _of_rows(rows: Iterable[Any], batching: Batching, root: Path) -> Iterator[Item]:
    for number, row in enumerate(rows, 1):
        usual = f"{number:06}"
        if not isinstance(row, dict):
            what = row if isinstance(row, str) and row.startswith("it is") else f"it is no object: {shown(row)}"
            yield Item(usual, problem=f"row {number}: {what}")
            continue
        fields = {name: _whole(value) for name, value in row.items() if value is not None}
        key = str(fields.pop("key", usual))
        refused = "" if _is_name(key) else f"key={shown(key)} is no name of a file: use letters, digits, - and _"
        problem = refused or _lacking(fields, batching) or _placed(fields, batching, root)
        told = f"row {number}: {problem}" if problem else ""
        yield Item(usual if refused else key, fields, told, batching.files_of(fields))


def _whole(value: Any) -> Any:
    """A value, where 3.0 is 3: tables write so the whole numbers of a column with gaps."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_name(key: str) -> bool:
    """Whether a key names a file below the output's folder."""
    return all(PART.fullmatch(part) and not part.endswith((" ", ".")) for part in key.split("/")) and _fits(key)


def _fits(key: str) -> bool:
    """Whether a key is text, and it and its parts are short enough for file systems."""
    try:
        whole = key.encode()
        return len(whole) <= LONGEST_KEY and all(len(part) <= LONGEST_NAME for part in whole.split(b"/"))
    except UnicodeEncodeError:  # half of a character, as JSON can write it
        return False


def _lacking(fields: dict[str, Any], batching: Batching) -> str:
    value = fields.get(batching.field)
    if not isinstance(value, str) or not value.strip():
        return f"{batching.field} is missing: give {'the path of a file' if batching.reads else 'a text'}"
    return ""


def _placed(fields: dict[str, Any], batching: Batching, root: Path) -> str:
    """Make paths of files absolute; why one is refused, or empty."""
    for name in batching.files_of(fields):
        try:
            path = (root / str(fields[name])).resolve()
        except (ValueError, RuntimeError) as error:  # characters that no path has, or links in a circle
            return f"{name}={shown(fields[name])} is no path: {error}"
        if not path.is_relative_to(root):
            if Path(os.path.normpath(root / str(fields[name]))).is_relative_to(root):
                return f"{name}={shown(fields[name])} leads out of {root} by a link: make a copy without links (cp -rL)"
            return f"{name}={shown(fields[name])} is not below {root}: say --root FOLDER"
        if not os.path.isfile(path):
            return f"{name}={shown(fields[name])}: there is no file {path}"
        fields[name] = str(path)
    return ""
