"""The folder of outputs: each appears once, whole, and is found again after any interruption.

An output is committed in two steps: its record is appended to a list, and its file is moved into place. Where the
process ends between the two, the record without a file is dropped at the next start, and the item is made again.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from ..errors import SettingError, shown
from ..files.output import replacing
from .items import Item
from .work import Made

FOLDER, FORMAT = ".mmaccel", 2


class OutputFolder:
    """A folder that one run at a time writes to. Use it in a `with` block.

    Parameters
    ----------
    path
        It is made where there is none.
    manifest
        What makes the outputs. A folder with another one is refused, so that outputs of two settings never mix.
    ending
        Of the outputs.

    Attributes
    ----------
    records
        What is finished, by key.

    Raises
    ------
    SettingError
        If another run is at work there, or an earlier one made its outputs otherwise.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], ending: str) -> None:
        self.path, self.ending = path, ending
        self.manifest = {"format": FORMAT, **manifest, "ending": ending}
        self.inner = path / FOLDER
        self.unfinished = (self.inner / "unfinished").absolute()  # other processes write to it
        self.list = self.inner / "records.jsonl"
        self.records: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        if self.path.exists() and not self.path.is_dir():
            raise SettingError(f"{self.path} is a file: give a folder with -o")
        self.inner.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.inner / "lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise SettingError(f"another run writes to {self.path}: wait for its end, or choose another -o") from None
        try:
            self._go_on()
            shutil.rmtree(self.unfinished, ignore_errors=True)
            self.unfinished.mkdir()
            self._appended = self.list.open("ab")
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._appended.close()
        shutil.rmtree(self.unfinished, ignore_errors=True)
        self._lock.release()

    def _go_on(self) -> None:
        """Take over what is finished here; where it was made otherwise, nothing is written."""
        path, records = self.inner / "manifest.json", self._listed()
        wanted = json.loads(json.dumps(self.manifest))
        advice = f"choose another -o, or delete {self.path}"
        try:
            found = json.loads(path.read_bytes()) if records and path.exists() else wanted
        except (ValueError, RecursionError) as error:
            raise SettingError(f"{path} is not JSON ({error}): {advice}") from error
        settings = found if isinstance(found, dict) else {}
        ending = settings.get("ending", self.ending)  # of the outputs that are there
        self.records = {key: record for key, record in records.items() if (self.path / f"{key}{ending}").is_file()}
        if self.records and found != wanted:
            raise SettingError(f"{self.path} holds outputs of another run ({_difference(found, wanted)}): {advice}")
        _write(path, json.dumps(self.manifest, indent=1) + "\n")
        _write(self.list, "".join(map(_written, self.records.values())))

    def _listed(self) -> dict[str, dict[str, Any]]:
        """All records of the list, by key."""
        records = {}
        for line in self.list.read_bytes().splitlines() if self.list.exists() else ():
            try:
                record = json.loads(line)
                records[record["key"]] = record
            except (ValueError, TypeError, KeyError):
                continue  # the process ended while it wrote this one
        return records

    def output(self, key: str) -> Path:
        """Where the output of a key is."""
        return self.path / f"{key}{self.ending}"

    def holds(self, item: Item) -> bool:
        """Whether an item is finished.

        Raises
        ------
        SettingError
            If its output is there, but was made from something else.
        """
        output, record = self.output(item.key), self.records.get(item.key)
        if record is None and output.is_file():
            raise SettingError(
                f"{output} is there already, and this run did not make it: move it, or choose another -o"
            )
        if record is None:
            return False
        known = record.get("contents", {})
        contents = item.contents(known)
        if record.get("digest") != item.digest(contents):
            why = "from another item with this key, or from a file that has changed since"
            raise SettingError(f"{output} was made {why}: delete it, or choose another -o")
        if contents != known:  # a file that was touched, or a record of an earlier version: not read the next time
            self._append({**record, "contents": contents})
        return True

    def temporary(self, number: int) -> Path:
        """Where the output of a task is written before it is committed."""
        return self.unfinished / f"{os.getpid()}-{number}{self.ending}"

    def commit(self, made: Made) -> None:
        """Put an output into its place, and note it."""
        item = made.task.item
        record = {
            "key": item.key,
            "digest": made.digest,
            "contents": made.contents,
            "seconds": made.seconds,
            "plain_seconds": made.plain_seconds,
            "report": made.report,
        }
        output = self.output(item.key)
        output.parent.mkdir(parents=True, exist_ok=True)
        with made.task.temporary.open("rb+") as written:  # a record never outlives what it tells of
            os.fsync(written.fileno())
        self._append(record)
        os.fsync(self._appended.fileno())
        made.task.temporary.replace(output)
        self.records[item.key] = record

    def _append(self, record: dict[str, Any]) -> None:
        self._appended.write(_written(record).encode())
        self._appended.flush()

    def write_failures(self, failures: dict[str, str]) -> Path:
        """Write down which items failed in this run, and why; returns the file."""
        path = self.inner / "failures.jsonl"
        _write(path, "".join(_written({"key": key, "error": error}) for key, error in failures.items()))
        return path


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _written(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"


def _difference(found: Any, wanted: dict[str, Any]) -> str:
    """The first setting that differs."""
    if not isinstance(found, dict):
        return "its manifest is none"
    name = next(name for name in (*wanted, *found) if found.get(name) != wanted.get(name))
    return f"{name} was {shown(found.get(name))} and is {shown(wanted.get(name))}"
