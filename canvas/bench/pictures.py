"""`mmaccel bench pictures`: distance to real pictures, passes and time of every method on tiny-amused.

Beside the methods stand fewer steps, more steps, and tiny-janus, which draws the same pictures in the same codes one
after the other, plainly and with its own methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tqdm import tqdm

from mmaccel import zoo
from mmaccel.bench.benchmark import Benchmark, Row, Section, in_one
from mmaccel.bench.winners import Figure
from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload

from . import picture_page as page
from .page import groups
from .picture_cases import JANUS, MODEL, STEPS, cases

TIMED, FEW, JUDGED, BATCH = 12, 3, 200, 20  # pictures that are timed, or at short length; judged, so many together
CAPTIONS = 200  # of the real pictures the captions of the first are drawn, and the others are what is near or far


class Drawing(Workload):
    """The codes of pictures `[B, 256]`; a seed is the number of a batch of prompts."""

    def __init__(self, pipe: Any, prompts: list[str], batch: int) -> None:
        self.target, self.prompts, self.batch = pipe, prompts, batch

    @torch.no_grad()
    def run(self, target: Any, seed: int, fewer: int | None = None) -> torch.Tensor:
        chosen = self.prompts[seed * self.batch : (seed + 1) * self.batch]
        generator = torch.Generator().manual_seed(seed)
        call = {"num_inference_steps": fewer or STEPS, "generator": generator, "output_type": "latent"}
        codes: torch.Tensor = target(chosen, **call).images
        return codes.flatten(1)

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        return one.shape == other.shape and torch.equal(one, other)


def rows(full: bool = False) -> Iterator[Row]:
    """All rows; `full` has every setting, and the distance to real pictures."""
    pipe = zoo.load(MODEL)
    prompts, real = zoo.reference(JANUS)
    entries = cases(pipe, full)
    count = TIMED if full else FEW
    Runner(Drawing(pipe, prompts, 1), entries, range(count), title="pictures").run()
    distance, codes = _judge(real), real[:CAPTIONS]
    floor = distance(codes)
    plain = _distance(pipe, prompts, entries[0], distance) if full else None
    for entry in entries:
        found = plain if entry is entries[0] or not full else _distance(pipe, prompts, entry, distance)
        yield _row(entry, entries[0], found, plain, floor)


def _judge(real: torch.Tensor) -> Callable[[torch.Tensor], float]:
    """The Frechet distance of codes to those of real pictures that are not among the prompts."""
    from mmaccel.image.bench.distances import FrechetDistance, features

    codebook = zoo.load(JANUS)[0].model.vqmodel.quantize.embedding.weight.detach()
    distance = FrechetDistance(features(real[CAPTIONS:], codebook))
    return lambda codes: distance(features(codes, codebook))


def _distance(pipe: Any, prompts: list[str], entry: Entry, distance: Callable[[torch.Tensor], float]) -> float:
    runner = Runner(Drawing(pipe, prompts, BATCH), [entry], [0])
    batches = tqdm(range(JUDGED // BATCH), desc=f"distance, {entry.label}")
    return distance(torch.cat([runner.once(entry, number)[1] for number in batches]))


def _row(entry: Entry, plain: Entry, quality: float | None, own: float | None, floor: float) -> Row:
    methods = entry.plan.methods if entry.plan is not None else ()
    passes = [sample.report.get("details", {}).get("passes") for sample in entry.samples]
    settings = methods[0].settings() if methods else {}
    return results.row(
        modality="canvas",
        model=JANUS if entry.label.startswith(JANUS) else MODEL,
        method=methods[0].name if len(methods) == 1 else entry.label,
        settings=settings if len(methods) < 2 else {},
        exact=entry.kind == PLAIN,
        kind=entry.kind,
        steps=entry.fewer or STEPS,
        seeds=list(range(len(entry.samples))),
        **entry.timing(plain),
        **entry.work(),
        speedup_worst=min(entry.ratios(plain)),
        passes=sum(passes) / len(passes) if all(passes) else None,
        quality_metric=f"Frechet distance to real pictures over {JUDGED} samples, lower is better",
        quality=quality,
        baseline_quality=own,
        real_quality=floor,
    )


SECTION = Section(
    groups,
    "fewer steps.",
    plot="distance to real pictures against time",
    quality="Frechet distance to real pictures (lower is better)",
    higher_is_better=False,
    name=page.name,
    series=page.series,
    figures=(
        Figure("distance to real pictures (lower is better)", lambda row: row["quality"], higher_is_better=False),
    ),
)
BENCHMARK = Benchmark(
    "pictures", page.TITLE, in_one(rows), SECTION, page.INTRO, page.tables, page.LIMITS, facts=page.facts
)
