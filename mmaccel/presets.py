"""Presets: names for measured methods, with the benchmark row that justifies them.

A modality says which ones its families have: what ``accelerate(target, preset=...)`` stands for, and why a family lacks
one. The rows themselves are in `presets.json`, which `python -m mmaccel.demos.pages.preset_rows` copies from
`docs/benchmarks`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from .modality import get_modality

if TYPE_CHECKING:
    from .method import Method

NAMES = ("exact", "balanced", "fast")
FILE = "presets.json"


@dataclass(frozen=True)
class Preset:
    """Methods, and the row in which they were measured.

    Attributes
    ----------
    methods
        The methods behind the name.
    benchmark
        The file of `docs/benchmarks` without its ending, such as ``"image"``; empty by default.
    columns
        Columns that tell the row from others with the same settings, such as the model.
    note
        A remark needed to judge the row; empty if the row is clear.
    """

    methods: tuple[Method, ...]
    benchmark: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def key(self) -> str:
        """Its name in `presets.json`."""
        return f"{self.benchmark}: {' + '.join(map(str, self.methods))}"

    @property
    def row(self) -> dict[str, Any]:
        """The measured row: `model`, `speedup`, `quality_metric`, `quality`, `baseline_quality`, `machine`, ...

        Empty for presets of other packages, whose figures stand in `note`.
        """
        return dict(_rows().get(self.key, {}))

    def __str__(self) -> str:
        figures = describe(self.row) if self.row else ""
        return "; ".join(filter(None, (figures, self.note))) or "not measured"


def presets_of(modality: str, family: str) -> Mapping[str, Preset]:
    """The presets of one family by name; empty for families without any."""
    return dict(get_modality(modality).presets().get(family, {}))


def absent_of(modality: str, family: str) -> Mapping[str, str]:
    """Names of :data:`NAMES` that a family lacks, with the reason."""
    return dict(get_modality(modality).absent_presets().get(family, {}))


def families(modality: str) -> tuple[str, ...]:
    """All families of a modality that have presets, or a reason why they have none."""
    found = get_modality(modality)
    return tuple(dict.fromkeys([*found.presets(), *found.absent_presets()]))


def listing(modality: str) -> str:
    """All presets of a modality as text; families with the same ones share a heading."""
    by_text: dict[str, list[str]] = {}
    for family in families(modality):
        presets, absent = presets_of(modality, family), absent_of(modality, family)
        lines = []
        for name in NAMES:
            if name in presets:
                methods = " + ".join(map(str, presets[name].methods))
                lines += [f"  {name:<10}{methods}", f"  {'':<10}{presets[name]}"]
            elif name in absent:
                lines.append(f"  {name:<10}none: {absent[name]}")
        by_text.setdefault("\n".join(lines), []).append(family)
    return "\n\n".join(f"{modality}: {', '.join(names)}\n{text}" for text, names in by_text.items())


def describe(row: Mapping[str, Any]) -> str:
    """A measured row in one sentence.

    Examples
    --------
    >>> row = {"model": "tiny-wan", "speedup": 2.0, "machine": "AMD EPYC", "threads": 2, "date": "2026-11-22"}
    >>> describe({**row, "quality_metric": "PSNR in dB", "quality": 55.0, "baseline_quality": None})
    '2.00x; PSNR in dB: 55 (measured on tiny-wan, AMD EPYC, 2 threads, 2026-11-22)'
    """
    from .comparison import results

    figures = [f"{row['speedup']:.2f}x"]
    if row.get("first_token_speedup"):
        figures = [f"{figures[0]} to the first token", f"{row['first_token_speedup']:.2f}x behind the vision tower"]
    if row.get("quality") is not None:
        plain = "" if row.get("baseline_quality") is None else f" (plain {row['baseline_quality']:.3g})"
        figures.append(f"{row['quality_metric']}: {row['quality']:.3g}{plain}")
    elif row.get("exact"):
        figures.append("exact")
    return f"{'; '.join(figures)} (measured on {row['model']}, {results.place(row)})"


@cache
def _rows() -> dict[str, dict[str, Any]]:
    return json.loads(resources.files(__package__).joinpath(FILE).read_text("utf-8"))
