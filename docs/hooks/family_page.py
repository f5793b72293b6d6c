"""The page of the model families: which methods work on each, asked of the plans themselves, or of runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from method_page import address

import mmaccel
from mmaccel import presets
from mmaccel.adapter import find_adapter
from mmaccel.bench.pages import markdown
from mmaccel.demos.families.notes import note
from mmaccel.errors import MmaccelError
from mmaccel.modality import Modality, get_modality, modalities
from mmaccel.registry import methods

INTRO = """# Model families

What works on which model. Nothing here is typed: this page makes a small model of every family, asks `mmaccel.plan`
for each method with its default settings, and writes down what it says; diffusion models, vision-language models and
language models are run as well.
`mmaccel.plan(model, method)` answers for the checkpoint in your hands, before anything is touched, and `accelerate`
refuses with the same words.

Subclasses of a class count as it does. [Adding a model](adding/model.md) says how to teach one that is missing."""

MOST = 8  # classes of a family in one cell


@dataclass(frozen=True)
class FamilyPlans:
    """One family: the classes that users load, and what plans said of each method."""

    title: str
    family: str
    classes: tuple[str, ...]
    refused: dict[str, str]  # the reason by name of the method


def family_page() -> str:
    """A table for each modality, and below it why methods were refused."""
    return "\n\n".join([INTRO, *(part for modality in modalities() for part in _section(modality))]) + "\n"


@cache
def family_rows(modality: str) -> tuple[FamilyPlans, ...]:
    """The families of a modality with what works on them."""
    return tuple(_asked(title, target, modality) for title, target in _models(modality))


def _models(modality: str) -> Iterator[tuple[str, Any]]:
    """The tiny models of the contract tests, one of each family."""
    targets: dict[str, Any] = {}
    for example in get_modality(modality).examples():
        target = example.build(0)[0]
        targets.setdefault(find_adapter(target).family, target)
    yield from targets.items()


def _asked(title: str, target: Any, modality: str) -> FamilyPlans:
    adapter, refused = find_adapter(target), {}
    for name, method in methods().items():
        if name.split(".")[0] == modality:
            try:
                mmaccel.plan(target, method())
            except MmaccelError as error:
                refused[name] = str(error)
    return FamilyPlans(title, adapter.family, adapter.classes, refused)


def _section(modality: Modality) -> Iterator[str]:
    yield f"## {modality.title}"
    if modality.families_section:
        yield from import_module(modality.families_section).section(_planned(modality))
    else:
        yield from _planned(modality)


def _planned(modality: Modality) -> Iterator[str]:
    """What plans say of the modality's methods on each family."""
    names = [name for name in methods() if name.split(".")[0] == modality.name]
    rows = family_rows(modality.name)
    if modality.note:
        yield modality.note
    shared = [name for name in names if sum(name not in row.refused for row in rows) > 1]
    yield markdown(("family", "classes", "methods that work", "presets"), [_line(row, names, shared) for row in rows])
    reasons = _reasons(rows)
    if reasons:
        yield note({told: reason for reason, told in reasons.items()})


def _reasons(rows: tuple[FamilyPlans, ...]) -> dict[str, str]:
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


def _line(row: FamilyPlans, names: list[str], shared: list[str]) -> list[str]:
    found = presets.presets_of(names[0].split(".")[0], row.family)
    classes = ", ".join(f"`{name}`" for name in row.classes)
    if len(row.classes) > MOST:
        classes = f"{len(row.classes)} classes, one by one below"
    return [row.title, classes, _told(row, names, shared), ", ".join(found) or "none"]


def _told(row: FamilyPlans, names: list[str], shared: list[str]) -> str:
    """All that several families have, all of these but a few, or the few that there are."""
    works = [name for name in names if name not in row.refused]
    lacking = [name for name in shared if name in row.refused]
    if set(works) <= set(shared) and len(lacking) <= len(works):
        return f"all {len(shared)}" + (f" but {', '.join(map(_link, lacking))}" if lacking else "")
    return ", ".join(map(_link, works)) or "none"


def _link(name: str) -> str:
    return f"[{name.split('.')[1]}]({address(methods()[name])})"
