"""One result format for the benchmarks of all modalities."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from .version import versions

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


def row(**values: Any) -> dict[str, Any]:
    """A row with all columns; further ones may follow.

    Raises
    ------
    ValueError
        If a column that identifies the row is missing.
    """
    for name in ("modality", "model", "method", "settings", "exact"):
        if name not in values:
            raise ValueError(f"a benchmark row needs {name!r}")
    return {**dict.fromkeys(COLUMNS), **values}


def result(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Header and rows; the rows are computed here."""
    began = datetime.datetime.now(datetime.UTC)
    return {
        "header": {
            "versions": versions(),
            "machine": machine(),
            "threads": torch.get_num_threads(),
            "date": began.isoformat(timespec="seconds"),
        },
        "rows": list(rows),
    }


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def alternate(runs: dict[Any, Callable[[int], Any]], rounds: int) -> dict[Any, list[Any]]:
    """Call every run once a round, in an order that turns, so that drift of the machine hits all alike.

    Each run gets the number of the round, and its results are returned in that order.
    """
    names = list(runs)
    results: dict[Any, list[Any]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            results[name].append(runs[name](number))
    return results


def synchronize() -> None:
    """Wait for the accelerator, so that a clock means something; CUDA is never started just for that."""
    started: Callable[[], bool] = torch.cuda.is_initialized  # covers for a missing annotation in torch
    if started():
        torch.cuda.synchronize()


def median(values: Iterable[float]) -> float:
    return float(statistics.median(values))


def page(result: dict[str, Any], title: str, intro: str, sections: dict[str, str]) -> str:
    """A Markdown page: title, what was measured on what, and one table a section.

    Parameters
    ----------
    intro
        What was measured and how to read it.
    sections
        Heading to the finished table.
    """
    header = result["header"]
    facts = (
        f"- versions: {', '.join(f'{k} {v}' for k, v in header['versions'].items())}",
        f"- machine: {', '.join(header['machine'].values())}, {header['threads']} threads",
        f"- date: {header['date']}",
    )
    parts = [f"# {title}", intro.strip(), "\n".join(facts)]
    parts += [f"## {heading}\n\n{body}" for heading, body in sections.items()]
    return "\n\n".join(parts) + "\n"


def markdown(headings: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    headings = list(headings)
    rows = [headings, ["---"] * len(headings), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def table(result: dict[str, Any]) -> str:
    """The rows as a Markdown table, fastest last within what was measured together."""
    lines = ["| method | exact | seconds | speed-up | passes | quality |", "|---|---|---|---|---|---|"]
    for r in result["rows"]:
        quality = "" if r["quality"] is None else f"{r['quality']:.3g}"
        if r["baseline_quality"] is not None:
            quality += f" (plain {r['baseline_quality']:.3g})"
        work = "" if r["work_ratio"] is None else f"{1 / r['work_ratio']:.2f}x fewer"
        speed = "" if r["speedup"] is None else f"{r['speedup']:.2f}x"
        wall = "" if r["wall_seconds"] is None else f"{r['wall_seconds']:.2f}"
        name = r["method"] + _settings(r["settings"])
        lines.append(f"| {name} | {'yes' if r['exact'] else 'no'} | {wall} | {speed} | {work} | {quality} |")
    return "\n".join(lines)


def _settings(settings: dict[str, Any]) -> str:
    return f"({', '.join(f'{k}={v}' for k, v in settings.items())})" if settings else ""
