"""Rows of results: the one format of comparisons and of all benchmarks."""

from __future__ import annotations

import contextlib
import datetime
import shutil
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import WeightsError, shown
from ..files.foreign_json import read_json
from ..machine import machine
from ..version import commit, versions

LONGEST = 90  # characters of a method with its settings

# Every row has these; None where a column was not measured.
COLUMNS = (
    "modality",
    "model",
    "method",
    "settings",
    "exact",
    "seeds",
    "wall_seconds",
    "baseline_seconds",
    "speedup",
    "work_ratio",
    "quality_metric",
    "quality",
    "baseline_quality",
    "peak_extra_bytes",
)
IDENTITY = ("modality", "model", "method", "settings", "exact")  # never None
# The type of a column's values other than None; numbers where a column is not listed.
KINDS = {
    **dict.fromkeys(("modality", "model", "method", "quality_metric"), (str, "a text")),
    "settings": (dict, "an object"),
    "exact": (bool, "true or false"),
    "seeds": (list, "a list"),
}
HEADER = {"versions": dict, "machine": dict, "threads": int, "date": str}
MACHINE = ("system", "processor", "cores", "accelerator")
MOST_BYTES = 64 << 20  # of a file with results; those of docs/benchmarks take up to 0.2 MiB


def row(**values: Any) -> dict[str, Any]:
    """A row with all columns; further ones may follow.

    Raises
    ------
    ValueError
        If a column that identifies the row is missing.
    """
    for name in IDENTITY:
        if name not in values:
            raise ValueError(f"a benchmark row needs {name!r}")
    return {**dict.fromkeys(COLUMNS), **values}


def result(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Header and rows; the rows are computed here."""
    import torch

    began = datetime.datetime.now(datetime.UTC)
    return {
        "header": {
            "versions": versions(),
            **commit(),
            "machine": machine(),
            "threads": torch.get_num_threads(),
            "date": began.isoformat(timespec="seconds"),
        },
        "rows": list(rows),
    }


def load(path: str | Path) -> dict[str, Any]:
    """Header and rows of a file that `mmaccel bench --json` or a comparison's ``save("x.json")`` wrote.

    Raises
    ------
    WeightsError
        If the file cannot be read or is not a result; the error names what is missing.
    """
    found = read_json(path, MOST_BYTES, f"write one with `mmaccel bench image --json > {path}`")
    missing = faults(found)
    if missing:
        raise WeightsError(f"{path} is not a result of `mmaccel bench --json`: {missing[0]}")
    return dict(found)


def faults(result: Any) -> list[str]:
    """What a result lacks; empty if it is complete."""
    if not isinstance(result, dict) or not isinstance(result.get("rows"), list):
        return ["it has no rows"]
    header = result.get("header")
    if not isinstance(header, dict):
        return ["it has no header"]
    found = [f"its header has no {name}" for name in HEADER if name not in header]
    found += [f"its header has a wrong {n}" for n, kind in HEADER.items() if not isinstance(header.get(n), kind)]
    found += [f"its machine has no {name}" for name in MACHINE if name not in header["machine"]] if not found else []
    for number, each in enumerate(result["rows"]):
        if not isinstance(each, dict):
            found.append(f"row {number} is no object")
            continue
        found += [f"row {number} has no {name}" for name in COLUMNS if name not in each]
        found += [f"row {number} leaves {name} empty" for name in IDENTITY if name in each and each[name] is None]
        found += [f"row {number} has {fault}" for fault in _misfits(each)]
    return found


def _misfits(row: dict[str, Any]) -> Iterator[str]:
    """Columns with values of the wrong type."""
    for name in COLUMNS:
        kind, called = KINDS.get(name, (int | float, "a number"))
        value = row.get(name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool) != (kind is bool)):
            yield f"{name}={shown(value)}, which is not {called}"


def seconds(row: dict[str, Any]) -> tuple[float | None, float | None]:
    """Seconds of a row and of its baseline: wall time, or processor time where a row has it.

    Rows of speech count processor time, since a stream waits for its audio.
    """
    if row.get("cpu_seconds") is not None:
        return row["cpu_seconds"], row.get("baseline_cpu_seconds")
    return row["wall_seconds"], row["baseline_seconds"]


def described(header: dict[str, Any]) -> str:
    """The machine of a header in words.

    Examples
    --------
    >>> machine = {"system": "Linux x86_64", "processor": "AMD EPYC", "cores": "2", "accelerator": "none"}
    >>> described({"machine": machine, "threads": 1})
    'Linux x86_64, AMD EPYC, 1 thread of 2 cores, no accelerator'
    >>> described({"machine": machine, "threads": 1, "processes": 2})
    'Linux x86_64, AMD EPYC, 1 thread in each of 2 processes, 2 cores, no accelerator'
    """
    machine = header["machine"]
    accelerator = "no accelerator" if machine["accelerator"] == "none" else machine["accelerator"]
    each = f" in each of {header['processes']} processes," if header.get("processes", 1) > 1 else ""
    of = f"{in_threads(header['threads'])}{each or ' of'} {machine['cores']} cores"
    return f"{machine['system']}, {machine['processor']}, {of}, {accelerator}"


def in_threads(count: int) -> str:
    """A number of threads in words."""
    return "1 thread" if count == 1 else f"{count} threads"


def where(header: dict[str, Any]) -> dict[str, Any]:
    """Where a row was measured, for a row that is shown alone: chip, threads and date."""
    machine = header["machine"]
    chip = machine["processor"] if machine["accelerator"] == "none" else machine["accelerator"]
    return {"machine": chip, "threads": header["threads"], "date": header["date"]}


def place(found: Mapping[str, Any]) -> str:
    """The same in words.

    Examples
    --------
    >>> place({"machine": "AMD EPYC", "threads": 1, "date": "2026-11-22T08:00:00+00:00"})
    'AMD EPYC, 1 thread, 2026-11-22'
    """
    return f"{found['machine']}, {in_threads(found['threads'])}, {found['date'][:10]}"


def median(values: Iterable[float]) -> float:
    return float(statistics.median(values))


def cell(value: float | None, form: str, unit: str = "") -> str:
    """A figure in a table; empty where it was not measured."""
    return "" if value is None else f"{value:{form}}{unit}"


def aligned(lines: Iterable[Iterable[str]]) -> str:
    """Lines of cells as columns, the first of them headings; one below the other where a terminal is too narrow."""
    cells = [list(line) for line in lines]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    if is_terminal and max(map(len, drawn)) > shutil.get_terminal_size().columns:
        headings, *others = cells
        wide = max(map(len, headings))
        drawn = [
            cell if place == 0 else f"  {heading.ljust(wide)}  {cell}".rstrip()
            for line in others
            for place, (heading, cell) in enumerate(zip(headings, line, strict=True))
            if cell
        ]
    return "\n".join(drawn)


def called(row: dict[str, Any]) -> str:
    """The method of a row as Python writes it, with the settings that differ from the defaults.

    Examples
    --------
    >>> called({"method": "image.ZipAR", "settings": {"window": 2, "verify": False, "draft_window": 8}})
    'image.ZipAR(window=2)'
    >>> called({"method": "fewer frames", "settings": {"step": 7}})
    'fewer frames(step=7)'
    """
    from ..registry import methods  # imports the modalities, which the format does not need

    name, label = row["method"], row.get("label")
    full = name if "." in name else f"{row.get('modality')}.{name}"
    with contextlib.suppress(KeyError, TypeError, ValueError):  # of another version, or not one of our methods
        usual = methods()[full]().settings()
        typed = str(methods()[full].from_settings({k: _rounded(v, usual[k]) for k, v in row["settings"].items()}))
        if len(typed) <= LONGEST:
            return typed
    if label is not None:
        return f"{name}, {label}" if label else name
    settings = ", ".join(f"{key}={_short(value)}" for key, value in row["settings"].items() if value is not None)
    return f"{name}({settings})" if settings else name


def _rounded(value: Any, usual: Any) -> Any:
    """Three digits tell settings apart, except from a default."""
    return float(f"{value:.3g}") if isinstance(value, float) and value != usual else value


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 2:
        return f"[{len(value)} numbers]"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
