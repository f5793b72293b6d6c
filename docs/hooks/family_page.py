"""The page of the model families: which methods work on each, asked of the plans themselves, or of runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from included import ROOT
from method_page import address

import mmaccel
from mmaccel import presets
from mmaccel.adapter import find_adapter
from mmaccel.bench.pages import markdown
from mmaccel.errors import MmaccelError
from mmaccel.modality import Modality, get_modality, modalities
from mmaccel.registry import methods

INTRO = """# Model families

What works on which model. Nothing here is typed: this page makes a small model of every family, asks `mmaccel.plan`
for each method with its default settings, and writes down what it says; diffusion models are run as well.
`mmaccel.plan(model, method)` answers for the checkpoint in your hands, before anything is touched, and `accelerate`
refuses with the same words.

Subclasses of a class count as it does. [Adding a model](adding/model.md) says how to teach one that is missing."""

RUNS = ROOT / "docs" / "families.json"
RAN = """Every transformer and UNet of diffusers, built small and run in a sampler's loop with guidance, by
`python -m mmaccel.demos.families.table`. On {halved} of {all} classes `HeterogeneousSteps()` saves half the calls. On
all of them exact settings give the plain sample bit for bit, and nothing is left behind. `EasyCache` and `auto` work
wherever `HeterogeneousSteps` does; `SparseAttention` on every transformer whose attention torch computes. Blocks are
found in the source of a class: a transformer of your own works if it is written as diffusers writes them."""


@dataclass(frozen=True)
class FamilyRow:
    """One family: the classes that users load, and what plans said of each method."""

    title: str
    family: str
    classes: tuple[str, ...]
    refused: dict[str, str]  # the reason by name of the method


def family_page() -> str:
    """A table for each modality, and below it why methods were refused."""
    return "\n\n".join([INTRO, *(part for modality in modalities() for part in _section(modality))]) + "\n"


@cache
def family_rows(modality: str) -> tuple[FamilyRow, ...]:
    """The families of a modality with what works on them."""
    return tuple(_asked(title, target, modality) for title, target in _models(modality))


def _models(modality: str) -> Iterator[tuple[str, Any]]:
    """The tiny models of the contract tests, one of each family."""
    targets: dict[str, Any] = {}
    for example in get_modality(modality).examples():
        target = example.build(0)[0]
        targets.setdefault(find_adapter(target).family, target)
    yield from targets.items()


def _asked(title: str, target: Any, modality: str) -> FamilyRow:
    adapter, refused = find_adapter(target), {}
    for name, method in methods().items():
        if name.split(".")[0] == modality:
            try:
                mmaccel.plan(target, method())
            except MmaccelError as error:
                refused[name] = str(error)
    return FamilyRow(title, adapter.family, adapter.classes, refused)


def _section(modality: Modality) -> Iterator[str]:
    yield f"## {modality.title}"
    if modality.name == "video":
        yield from _runs(json.loads(RUNS.read_text(encoding="utf-8")))
        return
    names = [name for name in methods() if name.split(".")[0] == modality.name]
    rows = family_rows(modality.name)
    if modality.note:
        yield modality.note
    shared = [name for name in names if sum(name not in row.refused for row in rows) > 1]
    yield markdown(("family", "classes", "methods that work", "presets"), [_line(row, names, shared) for row in rows])
    reasons = _reasons(rows)
    if reasons:
        lines = "\n".join(f"    - {told}: {reason}" for reason, told in reasons.items())
        yield f'??? note "Why a method is refused, in the words of the error"\n\n{lines}'


def _runs(found: dict[str, Any]) -> Iterator[str]:
    """The table of the diffusion models, which were run, and why methods were refused."""
    halved = sum((row["work"].get("HeterogeneousSteps") or 1) <= 0.5 for row in found.values())
    yield RAN.format(halved=halved, all=len(found))
    lines = [[row["name"], f"`{name}`", _worked(row)] for name, row in found.items()]
    yield markdown(("family", "class", "methods that work, and the share of the work that they did"), lines)
    reasons: dict[str, dict[str, set[str]]] = {}
    for name, row in found.items():
        for label, reason in row["refused"].items():
            same = reason.split(", only those of")[0].replace(name, "it").removeprefix(f"video.{label} ")
            reasons.setdefault(same, {}).setdefault(f"`{label}`", set()).add(row["name"])
    told = {
        reason: "; ".join(f"{label} on {', '.join(sorted(on))}" for label, on in by.items())
        for reason, by in reasons.items()
    }
    lines_told = "\n".join(f"    - {reason}: {on}" for reason, on in told.items())
    yield f'??? note "Why a method is refused, in the words of the error"\n\n{lines_told}'


def _worked(row: dict[str, Any]) -> str:
    return ", ".join(f"{label} {share:.0%}" for label, share in row["work"].items() if share is not None)


def _reasons(rows: tuple[FamilyRow, ...]) -> dict[str, str]:
    """Families and methods by reason, but for methods that are of other families by what they say of themselves."""
    found: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        for name, reason in row.refused.items():
            families = methods()[name].families
            if families is None or row.family in families:
                told = found.setdefault(reason.removeprefix(name).strip(), {})
                told.setdefault(row.title, set()).add(f"`{name}`")
    return {
        reason: "; ".join(f"{', '.join(sorted(named))} on {title}" for title, named in told.items())
        for reason, told in found.items()
    }


def _line(row: FamilyRow, names: list[str], shared: list[str]) -> list[str]:
    found = presets.presets_of(names[0].split(".")[0], row.family)
    classes = ", ".join(f"`{name}`" for name in row.classes)
    return [row.title, classes, _told(row, names, shared), ", ".join(found) or "none"]


def _told(row: FamilyRow, names: list[str], shared: list[str]) -> str:
    """All that several families have, all of these but a few, or the few that there are."""
    works = [name for name in names if name not in row.refused]
    lacking = [name for name in shared if name in row.refused]
    if set(works) <= set(shared) and len(lacking) <= len(works):
        return f"all {len(shared)}" + (f" but {', '.join(map(_link, lacking))}" if lacking else "")
    return ", ".join(map(_link, works)) or "none"


def _link(name: str) -> str:
    return f"[{name.split('.')[1]}]({address(methods()[name])})"
