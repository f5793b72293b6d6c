"""The part of the page of model families that shows what ran on causal language models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mmaccel.bench.pages import markdown

from .notes import by_class, by_reason, note
from .text_models import UNTRIED
from .text_table import DRAFTS, TARGET, count_drafted

RAN = """Every causal language model that transformers lists, built small and untrained, and run by
`python -m mmaccel.demos.families.text_table`. On {drafted} of {all} classes all drafts ({names}) give the plain tokens,
`FusedDraft` in another turn on the cache of the first, too, and all in a padded batch of three. Caches and prompts are
compared at settings by which all is kept, or read back from the disk. Nothing is left behind on any."""
OWN_LOOP = "the model's own loop ran: "


def text_lines() -> Iterator[str]:
    """The table of the language models, which were run: a line for those of which the same is to be told."""
    found = json.loads(TARGET.read_text(encoding="utf-8"))
    drafts = [method.name.removeprefix("vlm.") for method in DRAFTS]
    names = ", ".join(f"`{name}`" for name in drafts)
    yield RAN.format(drafted=count_drafted(found), all=len(found), names=names)
    short = {name: f"`{name.removesuffix('ForCausalLM')}`" for name in sorted(found, key=str.lower)}
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in short:
        groups.setdefault(tuple(_cells(name, found[name], drafts)), []).append(short[name])
    lines = [[", ".join(names), *cells] for cells, names in sorted(groups.items(), key=lambda group: -len(group[1]))]
    chains = "in chains, and the texts of a batch in step, since"
    yield markdown(("classes, ...ForCausalLM", "drafts", chains, "caches and prompts", "not compared"), lines)
    told = {
        name: {label: why.replace(f"vlm.{label}", "the method") for label, why in row["refused"].items()}
        for name, row in found.items()
    }
    caches = {name: {label: why for label, why in whys.items() if label not in drafts} for name, whys in told.items()}
    yield note(by_reason("vlm", caches, short))
    yield note(by_class(UNTRIED), "Language models that were not run")


def _cells(name: str, row: dict[str, Any], drafts: list[str]) -> Iterator[str]:
    """What drafts did on a class, how they read a batch, what else gave the plain tokens, and what nothing tells."""
    why = row["refused"].get(drafts[0], "").removeprefix(OWN_LOOP).removeprefix(f"{name} ")
    apart = [f"{what}, since transformers' own call fails" for what in ("turns", "batch") if what in row]
    is_run = "one" not in row
    yield why or ("equal" if is_run else "")
    yield "" if why or not is_run else row.get("chains", "").replace(name, "it")
    yield ", ".join(f"`{label}`" for label in row["equal"] if label not in drafts)
    yield "; ".join(apart) if is_run else f"all; the model alone: {row['one'].partition(':')[0]}"
