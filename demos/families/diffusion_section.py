"""The part of the page of model families that shows what ran on the denoisers of diffusers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from mmaccel.bench.pages import markdown

from .notes import by_reason, note, shares
from .table import TARGET, count_halved

RAN = """Every transformer and UNet of diffusers, built small and run in a sampler's loop with guidance, by
`python -m mmaccel.demos.families.table`. On {halved} of {all} classes `HeterogeneousSteps()` saves half the calls. On
all of them exact settings give the plain sample bit for bit, and nothing is left behind. `EasyCache` and `auto` work
wherever `HeterogeneousSteps` does; `SparseAttention` on every transformer whose attention torch computes. Blocks are
found in the source of a class: a transformer of your own works if it is written as diffusers writes them."""


def section(planned: Iterable[str]) -> Iterator[str]:
    """The table of the diffusion models, all of which were run: it says more than plans, and stands for them."""
    found = json.loads(TARGET.read_text(encoding="utf-8"))
    yield RAN.format(halved=count_halved(found), all=len(found))
    lines = [[row["name"], f"`{name}`", shares(row["work"])] for name, row in found.items()]
    yield markdown(("family", "class", "methods that work, and the share of the work that they did"), lines)
    told = {
        name: {label: reason.split(", only those of")[0] for label, reason in row["refused"].items()}
        for name, row in found.items()
    }
    yield note(by_reason("video", told, {name: row["name"] for name, row in found.items()}))
