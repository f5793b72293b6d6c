"""`mmaccel bench image`: passes, wall time and quality of every method on the shipped model."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mmaccel import zoo
from mmaccel.adapter import find_adapter
from mmaccel.bench import result as bench
from mmaccel.session import Session, accelerate

from .. import generation, quality
from ..decoding.coupling import COUPLINGS
from ..grouped_speculative import GroupedSpeculative
from ..method import ImageMethod
from ..speculative_jacobi import SpeculativeJacobi
from ..zipar import ZipAR

MODEL = "tiny-janus"
WINDOWS = (8, 16, 32, 64)
GUIDED = 3.0
QUALITY_PICTURES = 200
QUALITY_METHODS: tuple[ImageMethod, ...] = (
    SpeculativeJacobi(window=8),
    GroupedSpeculative(),
    GroupedSpeculative(window=16, group_size=51, delta=0.3, distance=1.0),
    ZipAR(window=8),
    ZipAR(window=4),
    ZipAR(window=2),
    ZipAR(window=4, verify=True),
)


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that are measured in one alternation: same batch, same guidance."""

    batch: int
    guidance: float
    rounds: int
    methods: tuple[ImageMethod, ...]


def groups(full: bool) -> list[Group]:
    """What is measured; the short version takes two minutes, the full one is that of docs/benchmarks."""
    short = (SpeculativeJacobi(), SpeculativeJacobi(window=16), ZipAR(window=4))
    if not full:
        return [Group(1, GUIDED, 3, short)]
    windows = tuple(SpeculativeJacobi(window=w, coupling=c) for c in COUPLINGS for w in WINDOWS)
    lossy = tuple(method for method in QUALITY_METHODS if not method.exact)
    plain_loop = SpeculativeJacobi(window=1)
    everything = (plain_loop, SpeculativeJacobi(), *windows, SpeculativeJacobi(window=16, init="repeat_left"), *lossy)
    return [
        Group(1, GUIDED, 8, everything),
        Group(1, 1.0, 4, everything),
        Group(4, GUIDED, 2, everything),
        Group(4, 1.0, 2, everything),
    ]


def rows(full: bool = False) -> Iterator[dict[str, Any]]:
    """All rows of the benchmark, with progress on standard error."""
    painter = generation.load(MODEL)
    timed = [(group, row) for group in groups(full) for row in measure(painter, group)]
    judged = dict(_quality(painter, full))  # after all timing, so that a machine may do other things meanwhile
    for group, row in timed:
        found = judged.get(row.pop("_method"), {})
        yield {**row, **found} if group.guidance == GUIDED else row  # quality is measured with guidance


def measure(painter: generation.Painter, group: Group) -> Iterator[dict[str, Any]]:
    """Time one group; every run of a round draws the same prompts."""
    label = f"batch {group.batch}, guidance {group.guidance:g}"
    sessions = {method: accelerate(_twin(painter.target), method) for method in group.methods}
    runs: dict[Any, Callable[[int], tuple[float, dict[str, Any]]]] = {
        method: _timed(painter, session, group) for method, session in sessions.items()
    }
    guided = group.guidance != 1
    # Janus's own generate cannot turn guidance off, so the plain loop is the baseline there.
    baseline = "plain" if guided else SpeculativeJacobi(window=1)
    if guided:
        runs["plain"] = _timed(painter, painter.target, group)
    for run in tqdm(runs.values(), desc=f"warm-up, {label}", leave=False):
        run(0)
    with tqdm(total=group.rounds * len(runs), desc=label) as bar:
        results: dict[Any, Any] = bench.alternate({k: _ticking(v, bar) for k, v in runs.items()}, group.rounds)
    base = [seconds for seconds, _ in results[baseline]]
    for method, values in results.items():
        if method != "plain":
            yield _row(painter, group, method, values, base, "own generate" if guided else "plain loop")


def _row(
    painter: generation.Painter,
    group: Group,
    method: ImageMethod,
    values: list[tuple[float, dict[str, Any]]],
    base: list[float],
    baseline: str,
) -> dict[str, Any]:
    reports = [report for _, report in values]
    forwards = sum(report["forwards"] for report in reports)
    plain = sum(report["plain_forwards"] for report in reports)
    stats = [report["details"].get("stats", {}) for report in reports]
    return bench.row(
        modality="image",
        model=painter.name,
        method=method.name,
        settings=method.settings(),
        exact=method.exact,
        seeds=list(range(group.rounds)),
        wall_seconds=bench.median(seconds for seconds, _ in values),
        baseline_seconds=bench.median(base),
        # round by round, since both runs of a round met the same state of the machine
        speedup=bench.median(b / seconds for b, (seconds, _) in zip(base, values, strict=True)),
        work_ratio=forwards / plain,
        peak_extra_bytes=max(report["peak_extra_bytes"] for report in reports),
        batch=group.batch,
        guidance=group.guidance,
        baseline=baseline,
        passes=forwards / len(reports),
        tokens_per_pass=plain / forwards,
        acceptance=_acceptance(stats),
        verify_cost=reports[-1]["details"].get("verify_cost"),
        all_seconds=[seconds for seconds, _ in values],
        _method=method,
    )


def _acceptance(stats: list[dict[str, Any]]) -> list[float]:
    """Share of drafts accepted at each depth, over all rounds."""
    depth = max((len(s.get("tested_by_depth", ())) for s in stats), default=0)
    passed, tested = [0] * depth, [0] * depth
    for s in stats:
        for i, (a, t) in enumerate(zip(s.get("accepted_by_depth", ()), s.get("tested_by_depth", ()), strict=True)):
            passed[i], tested[i] = passed[i] + a, tested[i] + t
    return [a / t if t else 0.0 for a, t in zip(passed, tested, strict=True)]


def _twin(model: Any) -> Any:
    """Another instance over the same weights, so that many sessions can be live in one alternation."""
    return copy.deepcopy(model, {id(p): p for p in (*model.parameters(), *model.buffers())})


def _timed(painter: generation.Painter, target: Any, group: Group) -> Callable[[int], tuple[float, dict[str, Any]]]:
    prompts = zoo.prompts(MODEL, 8 * group.batch, seed=1)

    def run(number: int) -> tuple[float, dict[str, Any]]:
        chosen = [prompts[(number * group.batch + i) % len(prompts)] for i in range(group.batch)]
        settings = generation.Settings(seed=number, guidance=group.guidance)
        began = time.perf_counter()
        painter.generate(target, chosen, settings)
        bench.synchronize()
        seconds = time.perf_counter() - began
        return seconds, copy.deepcopy(target.report.to_dict()) if isinstance(target, Session) else {}

    return run


def _ticking(run: Callable[[int], Any], bar: Any) -> Callable[[int], Any]:
    def tick(number: int) -> Any:
        value = run(number)
        bar.update()
        return value

    return tick


def _quality(painter: generation.Painter, full: bool) -> Iterator[tuple[ImageMethod, dict[str, Any]]]:
    """Distance to real pictures, and surprise, of plain and accelerated samples of the same prompts."""
    if not full:
        return
    prompts, real = zoo.reference(MODEL)
    count = min(QUALITY_PICTURES, len(prompts))
    adapter: Any = find_adapter(painter.target)
    codebook = adapter.begin(painter.inputs(prompts[:1], generation.Settings())).codebook()
    distance = quality.FrechetDistance(quality.features(real[count:], codebook))

    def judge(target: Any, label: str) -> tuple[float, float]:
        tokens, surprise = [], []
        for start in tqdm(range(0, count, 20), desc=f"quality, {label}"):
            batch = prompts[start : min(start + 20, count)]
            drawn = painter.generate(target, batch, generation.Settings(seed=start, guidance=GUIDED))
            inputs = painter.inputs(batch, generation.Settings(guidance=GUIDED))
            tokens.append(drawn)
            surprise.append(quality.nats_per_token(adapter, inputs, drawn))
        return distance(quality.features(torch.cat(tokens), codebook)), float(torch.cat(surprise).mean())

    plain, plain_nats = judge(painter.target, "plain")
    floor = distance(quality.features(real[:count], codebook))
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


def write_page(result: dict[str, Any], path: Path) -> None:
    """The Markdown page with its plots beside it."""
    from .page import page, plot

    path.parent.mkdir(parents=True, exist_ok=True)
    picture = path.with_suffix(".png")
    plot(result, picture)
    path.write_text(page(result, picture.name), encoding="utf-8")
