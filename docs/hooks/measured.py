"""The committed rows of the benchmarks, by method."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from included import ROOT

from mmaccel.bench.pages import markdown
from mmaccel.comparison import results
from mmaccel.method import Method
from mmaccel.modality import modalities
from mmaccel.registry import methods

BENCHMARKS = ROOT / "docs" / "benchmarks"
ALTERNATIVES = ("fewer steps", "fewer frames")
# Columns that tell measurements of the same settings apart, with how they read.
CONDITIONS = {"batch": "batch {}", "guidance": "guidance {:g}", "budget": "{:.0%} of the time", "share": "{:.0%} kept"}
PROSE = {"guidance 1": "no guidance"}


def sections(method: type[Method]) -> dict[str, str]:
    """A table for each group of rows that were measured together, by what it was measured on."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for name in _files():
        mine = [row for row, of in _rows(name) if of is method]
        for row in mine:
            groups.setdefault(_condition(row), []).append(row)
        for condition in dict.fromkeys(_condition(row) for row in mine):
            others = (row for row, _ in _rows(name) if row["method"] in ALTERNATIVES)
            groups[condition] += [row for row in others if _condition(row) == condition]
    return {condition: _table(rows) for condition, rows in groups.items()}


def pages(method: type[Method]) -> list[str]:
    """Names of the benchmarks that have rows of a method."""
    return [name for name in _files() if any(of is method for _, of in _rows(name))]


def where(name: str) -> str:
    """The machine that a benchmark ran on, and when."""
    return results.place(results.where(_result(name)["header"]))


def method_of(row: dict[str, Any]) -> type[Method] | None:
    """The method of a row; the rows of `video.json` name an entry, which can be a variant."""
    if row["method"] in ALTERNATIVES:
        return None
    table = methods()
    for name in (row["method"], f"{row['modality']}.{row['method']}"):
        if name in table:
            return table[name]
    settings = set(row["settings"])
    same = [cls for name, cls in table.items() if name.startswith(f"{row['modality']}.")]
    fits = [cls for cls in same if settings == _settings(cls)] if settings else []
    return fits[0] if len(fits) == 1 else None


@cache
def _settings(method: type[Method]) -> set[str]:
    """Names of its settings, which every row of the benchmarks is compared with."""
    return set(method().settings())


def _files() -> list[str]:
    """Names of the benchmarks with committed rows."""
    names = [name for modality in modalities() for name in modality.benchmarks()]
    return [name for name in names if (BENCHMARKS / f"{name}.json").is_file()]


@cache
def _result(name: str) -> dict[str, Any]:
    return results.load(BENCHMARKS / f"{name}.json")


@cache
def _rows(name: str) -> list[tuple[dict[str, Any], type[Method] | None]]:
    """The rows of a benchmark, each with its method."""
    return [(row, method_of(row)) for row in _result(name)["rows"]]


def _condition(row: dict[str, Any]) -> str:
    parts = [form.format(row[key]) for key, form in CONDITIONS.items() if row.get(key) is not None]
    return ", ".join([row["model"], *(PROSE.get(part, part) for part in parts)])


def _table(rows: list[dict[str, Any]]) -> str:
    """Columns that no row of the group has are left out."""
    columns = {
        "": _label,
        "seconds": lambda row: _number(row["wall_seconds"]),
        "speed-up": lambda row: _number(row["speedup"], "{:.2f}x"),
        "first token": lambda row: _number(row.get("first_token_speedup"), "{:.2f}x"),
        "work": lambda row: _number(row["work_ratio"], "{:.0%}"),
        "quality": lambda row: _number(row["quality"]),
        "worst": lambda row: _number(row.get("psnr_worst")),
        "plain": lambda row: _number(row["baseline_quality"]),
    }
    cells = {name: [make(row) for row in rows] for name, make in columns.items()}
    used = {name: column for name, column in cells.items() if any(column)}
    metric = next((row["quality_metric"] for row in rows if row["quality_metric"]), None)
    table = markdown(used, zip(*used.values(), strict=True))
    return table + (f"\n\n*quality* is {metric}." if metric and "quality" in used else "")


def _label(row: dict[str, Any]) -> str:
    method = method_of(row)
    if method is None:
        return str(row["method"]) if row.get("label") else results.called(row)
    usual = json.loads(json.dumps(method().settings()))  # with lists, as rows have them
    changed = {k: v for k, v in row["settings"].items() if usual[k] != v}
    shown = ", ".join(f"{name}={_short(value)}" for name, value in changed.items())
    name = "" if row["method"].split(".")[-1] == method.__name__ else f"{row['method']}: "
    return f"{name}`{method.__name__}({shown})`"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"[{len(value)} numbers]" if isinstance(value, list | tuple) and len(value) > 3 else repr(value)


def _number(value: float | None, form: str = "{:.4g}") -> str:
    return "" if value is None else form.format(value)
