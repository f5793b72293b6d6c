"""`mmaccel bench image`: passes, wall time and quality of every method on the shipped model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tqdm import tqdm

from mmaccel import zoo
from mmaccel.adapter import find_adapter
from mmaccel.bench.benchmark import Benchmark, Row, Section, in_one
from mmaccel.bench.winners import Figure
from mmaccel.comparison import results
from mmaccel.comparison.entry import Entry
from mmaccel.comparison.runner import Runner
from mmaccel.method import Method
from mmaccel.session import accelerate

from .. import generation
from ..quality import nats_per_token
from . import page
from .cases import GUIDED, MODEL, QUALITY_METHODS, Drawing, ImageCase, cases
from .distances import FrechetDistance, features

QUALITY_PICTURES = 200


def rows(full: bool = False) -> Iterator[Row]:
    """All rows of the benchmark, with progress on standard error."""
    painter = generation.load(MODEL)
    timed = [(entry, row) for case in cases(full) for entry, row in measure(painter, case)]
    judged = list(_quality(painter)) if full else []  # after all timing: the machine may do other things meanwhile
    for entry, row in timed:
        # quality is measured with guidance
        found = [more for method, more in judged if entry.plan and entry.plan.methods == (method,)]
        yield {**row, **found[0]} if found and row["guidance"] == GUIDED else row


def measure(painter: generation.Painter, case: ImageCase) -> Iterator[tuple[Entry, Row]]:
    """Time one case; every run of a round draws the same prompts."""
    baseline, entries = case.entries(painter.target)
    title = f"batch {case.batch}, guidance {case.guidance:g}"
    Runner(Drawing(painter, case), entries, range(case.rounds), title=title).run()
    for entry in entries:
        if entry.plan is not None:
            yield entry, _row(painter, case, entry, baseline)


def _row(painter: generation.Painter, case: ImageCase, entry: Entry, baseline: Entry) -> Row:
    reports = [sample.report for sample in entry.samples]
    forwards = sum(report["forwards"] for report in reports)
    plain = sum(report["plain_forwards"] for report in reports)
    return results.row(
        modality="image",
        model=painter.name,
        **entry.identity(),
        seeds=list(range(case.rounds)),
        **entry.timing(baseline),
        **entry.work(),
        batch=case.batch,
        guidance=case.guidance,
        **baseline.columns,
        passes=forwards / len(reports),
        tokens_per_pass=plain / forwards,
        acceptance=_acceptance([report["details"].get("stats", {}) for report in reports]),
        verify_cost=reports[-1]["details"].get("verify_cost"),
        all_seconds=entry.seconds,
    )


def _acceptance(stats: list[dict[str, Any]]) -> list[float]:
    """Share of drafts accepted at each depth, over all rounds."""
    depth = max((len(s.get("tested_by_depth", ())) for s in stats), default=0)
    passed, tested = [0] * depth, [0] * depth
    for s in stats:
        for i, (a, t) in enumerate(zip(s.get("accepted_by_depth", ()), s.get("tested_by_depth", ()), strict=True)):
            passed[i], tested[i] = passed[i] + a, tested[i] + t
    return [a / t if t else 0.0 for a, t in zip(passed, tested, strict=True)]


def _quality(painter: generation.Painter) -> Iterator[tuple[Method, Row]]:
    """Distance to real pictures, and surprise, of plain and accelerated samples of the same prompts."""
    prompts, real = zoo.reference(MODEL)
    count = min(QUALITY_PICTURES, len(prompts))
    adapter: Any = find_adapter(painter.target)
    codebook = adapter.begin(painter.inputs(prompts[:1], generation.ImageSettings())).codebook()
    distance = FrechetDistance(features(real[count:], codebook))

    def judge(target: Any, label: str) -> tuple[float, float]:
        tokens, surprise = [], []
        for start in tqdm(range(0, count, 20), desc=f"quality, {label}"):
            batch = prompts[start : min(start + 20, count)]
            drawn = painter.generate(target, batch, generation.ImageSettings(seed=start, guidance=GUIDED))
            inputs = painter.inputs(batch, generation.ImageSettings(guidance=GUIDED))
            tokens.append(drawn)
            surprise.append(nats_per_token(adapter, inputs, drawn))
        return distance(features(torch.cat(tokens), codebook)), float(torch.cat(surprise).mean())

    plain, plain_nats = judge(painter.target, "plain")
    floor = distance(features(real[:count], codebook))
    for method in QUALITY_METHODS:
        with accelerate(painter.target, method) as session:
            value, nats = judge(session, str(method))
        yield (
            method,
            {
                "quality_metric": f"Frechet distance to real pictures over {count} samples, lower is better",
                "quality": value,
                "baseline_quality": plain,
                "real_quality": floor,
                "nats_per_token": nats,
                "baseline_nats_per_token": plain_nats,
            },
        )


SECTION = Section(
    lambda rows: {"": [r for r in rows if r["batch"] == 1 and r["guidance"] != 1]},
    "none: every token of a picture has to be drawn; our own loop without drafts is set beside ours.",
    plot="distance to real pictures against time; exact settings whose pictures were not judged lie on the plain line",
    quality="Frechet distance to real pictures (lower is better)",
    higher_is_better=False,
    versus=page.versus,
    figures=(
        Figure("distance to real pictures (lower is better)", lambda row: row["quality"], higher_is_better=False),
    ),
    more=page.over_cases,
)
BENCHMARK = Benchmark(
    "image",
    page.TITLE,
    in_one(rows),
    SECTION,
    page.INTRO,
    page.tables,
    page.LIMITS,
    facts=lambda rows: {**page.facts(rows), **page.auto(rows)},
    plot=page.plot,
)
