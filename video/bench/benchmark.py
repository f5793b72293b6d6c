"""`mmaccel bench video`: what each method keeps of a clip at a half and a quarter of the time.

Every entry is tuned to the wall time that is asked for, on a prompt of its own, and judged on others: against the clips
of the plain pipeline, and against converged ones. The runs of a prompt follow each other, so that a busy machine is
busy for all. A grid of samplers follows, where the settings are those of the methods' own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tqdm import tqdm

from mmaccel import zoo
from mmaccel.bench.benchmark import Benchmark, Row, Section, by
from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.results import called
from mmaccel.comparison.runner import Runner

from . import findings, page
from .cases import BUDGETS, MODEL, MotionPrompt, VideoCase, cases, converging, fewer_steps, ours, scenes
from .filming import Filming
from .packages import missing_row
from .rivals import masked, rivals, sea_cache_as_it_comes, spectral
from .sampling import GRID, QUICK_GRID, Clips, Sampling, converged

TUNING_SEED, TUNING_PROMPTS, TUNING_ROUNDS = 900, 1, 7
CLOSE = 0.02  # share of the plain time within which an entry is tuned
JUDGED = {True: 16, False: 2}  # prompts, at full length and else
JUDGED_IN_GRID = {True: 6, False: 1}
METRIC = "PSNR in dB to the clip of the plain pipeline, mean over prompts"


def parts(full: bool = False) -> dict[str, Callable[[], Iterable[Row]]]:
    """What is measured, by name: all entries with the default sampler, and the most telling ones with others."""
    pipe = functools.cache(lambda: zoo.load(MODEL))
    grid, judged = (GRID if full else QUICK_GRID), scenes(JUDGED[full])
    clips: Clips = {}
    half = len(judged) // 2  # still ones, and then lively ones
    some = [scene for pair in zip(judged[:half], judged[half:], strict=False) for scene in pair][: JUDGED_IN_GRID[full]]

    def filming(sampling: Sampling) -> Filming:
        prompts = [scene.prompt for scene in judged]
        return Filming(prompts, pipe=pipe(), sampling=sampling, reference=converged(sampling, grid), clips=clips)

    found: dict[str, Callable[[], Iterable[Row]]] = {}
    for budget in BUDGETS:
        found[f"{budget:.0%}"] = functools.partial(lambda b: all_entries(filming(Sampling()), judged, b, full), budget)
    for sampling in grid:
        found[str(sampling)] = functools.partial(lambda s: sampled(filming(s), some), sampling)
    return found


def all_entries(filming: Filming, judged: list[MotionPrompt], budget: float, full: bool) -> Iterator[Row]:
    """Rows of every entry at a budget; in a short run of those that need no tuning."""
    made = list(_cases(filming, budget, full))
    found = [case for case in made if not case.is_missing]
    tuning = Filming(zoo.prompts(MODEL, TUNING_PROMPTS, seed=TUNING_SEED), pipe=filming.target)
    tuned = [tune(tuning, case, budget) for case in tqdm(found, desc=f"tune to {budget:.0%}")]
    yield from judge(filming, budget, tuned, judged)
    yield from (not_installed(filming, budget, case) for case in made if case.is_missing)


def _cases(filming: Filming, budget: float, full: bool) -> Iterator[VideoCase]:
    if full:
        yield from cases(filming.target, filming.steps, budget)
        yield from rivals(filming.target, filming.sampling, budget)
    else:
        yield from (ours(budget), converging(budget), fewer_steps(filming.steps, budget), *untuned(filming, budget))


def sampled(filming: Filming, judged: list[MotionPrompt]) -> Iterator[Row]:
    """Rows of one sampler: ours and fewer steps at both budgets, and the best rivals at half of the steps."""
    both = (ours, converging, functools.partial(fewer_steps, filming.steps))
    made = [(budget, case(budget)) for budget in BUDGETS for case in both]
    made += [(max(BUDGETS), case) for case in untuned(filming, max(BUDGETS))]
    columns = {"table": "samplers", **filming.sampling.columns}
    found = [(budget, case.entry(filming.target, case.low)) for budget, case in made if not case.is_missing]
    plain = _run(filming, [entry for _, entry in found], judged)
    yield from (_row(filming, budget, entry, plain, judged, columns) for budget, entry in found)
    yield from (not_installed(filming, budget, case, **columns) for budget, case in made if case.is_missing)


def untuned(filming: Filming, budget: float) -> list[VideoCase]:
    """The rivals with settings of their own; SeaCache's are for about half of the time."""
    found = [masked(filming.sampling, budget, "TaylorSeer"), spectral(budget)]
    return [*found, sea_cache_as_it_comes()] if budget == max(BUDGETS) else found


def tune(tuning: Filming, case: VideoCase, budget: float) -> Entry:
    """The entry of a case that takes `budget` of the plain time, by bisection."""
    if case.low == case.high:
        return case.entry(tuning.target, case.low)
    low, high = case.low, case.high  # the higher, the faster
    best, setting = float("inf"), low
    for _ in range(TUNING_ROUNDS):
        middle = (low * high) ** 0.5
        share = share_of(tuning, case.entry(tuning.target, middle))
        if abs(share - budget) < best:
            best, setting = abs(share - budget), middle
        if best < CLOSE:
            break
        low, high = (middle, high) if share > budget else (low, middle)
    return case.entry(tuning.target, setting)


def share_of(tuning: Filming, entry: Entry) -> float:
    """Share of the plain time that an entry takes: each of its runs beside a plain one, as the machine may be busy."""
    plain = Entry(PLAIN, "reference")  # nothing is judged here
    Runner(tuning, [plain, entry], range(len(tuning.prompts))).run(warm_up=False)
    return _share(entry, plain)


def judge(
    filming: Filming, budget: float, entries: list[Entry], judged: list[MotionPrompt], **columns: Any
) -> Iterator[Row]:
    """Run all entries on all prompts beside the plain pipeline."""
    plain = _run(filming, entries, judged)
    for entry in entries:
        yield _row(filming, budget, entry, plain, judged, columns)


def _run(filming: Filming, entries: list[Entry], judged: list[MotionPrompt]) -> Entry:
    """Run entries in turns with the plain pipeline; returns that one."""
    plain = Entry(PLAIN, PLAIN)
    seeds = [scene.seed for scene in judged]
    Runner(filming, [plain, *entries], seeds, title=str(filming.sampling)).run(warm_up=False)
    return plain


def _row(filming: Filming, budget: float, entry: Entry, plain: Entry, judged: list[MotionPrompt], columns: Row) -> Row:
    samples = [
        {
            **scene._asdict(),
            **figures,
            "plain_converged": itself["psnr_converged"],
            "seconds": seconds,
            "plain_seconds": base,
        }
        for scene, figures, itself, seconds, base in zip(
            judged, entry.metrics.values(), plain.metrics.values(), entry.seconds, plain.seconds, strict=True
        )
    ]
    still, lively = ([sample["psnr"] for sample in samples if sample["motion"] == kind] for kind in ("still", "lively"))
    return results.row(
        modality="video",
        model=_model(filming, columns),
        **{**entry.identity(filming.unit), "method": entry.label, "exact": False},
        seeds=[scene.seed for scene in judged],
        budget=budget,
        kind=entry.kind,
        **entry.columns,
        **entry.timing(plain),
        wall_share=_share(entry, plain),
        **_work(entry, samples),
        quality_metric=METRIC,
        **_figures(samples),
        psnr_still=_mean(still),
        psnr_lively=_mean(lively),
        samples=samples,
        **columns,
    )


def _share(entry: Entry, plain: Entry) -> float:
    return results.median(1 / ratio for ratio in entry.ratios(plain))


def _figures(samples: list[Row]) -> Row:
    """Mean and worst over the prompts, also of the plain clips where they are not themselves the measure."""
    keys = ("psnr", "ssim", "psnr_converged", "plain_converged")
    values = {key: [sample[key] for sample in samples] for key in keys}
    means = {key: _mean(found) for key, found in values.items()}
    return {"quality": means.pop("psnr"), **means, **{f"{key}_worst": min(found) for key, found in values.items()}}


def _work(entry: Entry, samples: list[Row]) -> Row:
    """What its reports say, or else the share of the transformer's blocks that it computed."""
    told = entry.work()
    return (
        told if told["work_ratio"] is not None else {**told, "work_ratio": _mean([each["blocks"] for each in samples])}
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def not_installed(filming: Filming, budget: float, case: VideoCase, **columns: Any) -> Row:
    """What a rival has that is not installed."""
    about = {"model": _model(filming, columns), "method": case.label, "settings": {}, "kind": case.kind}
    return missing_row(case.package, **about, budget=budget, **columns)


def _model(filming: Filming, columns: Row) -> str:
    return f"{MODEL}, {filming.sampling if columns else f'{filming.steps} steps'}"


SECTION = Section(
    lambda rows: by("budget", "{:.0%} of the time", page.of_default(rows)),
    "fewer steps.",
    plot="mean PSNR to the plain clip against time, at a half and a quarter of it",
    quality="PSNR to the plain clip, dB",
    form=".1f",
    # of ours, with something left out or put in
    name=lambda row: f"HeterogeneousSteps, {called(row)}" if row["kind"] == "part" else called(row),
    said=findings.of_budget,
    more=lambda rows: findings.of_samplers(page.of_samplers(rows)),
)
BENCHMARK = Benchmark("video", page.TITLE, parts, SECTION, page.INTRO, page.tables, page.LIMITS, plot=page.plot)
