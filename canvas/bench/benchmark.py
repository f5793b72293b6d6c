"""`mmaccel bench canvas`: whole lists that are right, passes and time of every rule and cache, on tiny-canvas.

Lists are of pictures that the model never saw. The plain pipeline commits one token a step; beside the methods stand
fewer steps, the threshold that the pipeline has itself, and the same weights writing word by word.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, ClassVar

import torch

from mmaccel import zoo
from mmaccel.bench.benchmark import Benchmark, Row, Section, in_one
from mmaccel.bench.winners import Figure
from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload
from mmaccel.registry import get_method
from mmaccel.session import accelerate

from ..arguments import ONE_BY_ONE
from ..commits import Commits
from . import page
from .cases import cases

MODEL = "tiny-canvas"
SEED = 5
PICTURES, FEW = 60, 4
LENGTH, STEPS = 128, 32  # of canvas and schedule
TRACED = ("canvas.FreeDave", "canvas.FactorCommit")  # of which the page shows what was committed when


class Listing(Workload):
    """A picture is listed; a seed is its number."""

    remembers: ClassVar[bool] = False

    def __init__(self, pipe: Any, processor: Any, count: int) -> None:
        self.target = pipe
        asked = zoo.questions(MODEL, count, seed=SEED)
        self.answers = [each.answer for each in asked]
        self.inputs = [dict(processor(videos=[each.frames], text=each.question)) for each in asked]

    @torch.no_grad()
    def run(self, target: Any, seed: int, fewer: int | None = None) -> tuple[str, bool]:
        call = {"gen_length": LENGTH, "num_inference_steps": fewer or STEPS, "threshold": ONE_BY_ONE}
        text = target(**self.inputs[seed], **call).texts[0].strip()
        return text, text == self.answers[seed]

    def equal(self, one: tuple[str, bool], other: tuple[str, bool]) -> bool:
        return one[0] == other[0]

    def judge(self, plain: tuple[str, bool], other: tuple[str, bool]) -> dict[str, Any]:
        return {"right": other[1]}


def rows(full: bool = False) -> Iterator[Row]:
    """All rows; `full` has every setting and sixty pictures."""
    pipe, processor = zoo.load(MODEL)
    count = PICTURES if full else FEW
    work, entries = Listing(pipe, processor, count), cases(pipe, full)
    Runner(work, entries, range(count), title="pictures").run()
    for entry in entries:
        yield {**_row(entry, entries[0]), **_traced(work, entry)}


def _row(entry: Entry, plain: Entry) -> Row:
    cached = bool(entry.columns.get("cache"))
    name, settings, beside = _identity(entry)
    own = [sample.report.get("details", {}).get("passes") for sample in entry.samples]
    return results.row(
        modality="canvas",
        model=MODEL,
        method=name,
        settings=settings,
        exact=entry.kind == PLAIN or (name in ("one token a step", "canvas.FreeDave") and not beside),
        kind=entry.kind,
        cache=cached,
        beside=beside,
        seeds=list(entry.metrics),
        **entry.timing(plain),
        **entry.work(),
        speedup_worst=min(entry.ratios(plain)),
        passes=sum(own) / len(own) if all(own) else None,
        equal=sum(entry.equal.values()) / len(entry.equal),
        quality_metric=f"share of {len(entry.metrics)} lists without a mistake",
        quality=_right(entry),
        baseline_quality=_right(plain),
    )


def _right(entry: Entry) -> float:
    return sum(found["right"] for found in entry.metrics.values()) / len(entry.metrics)


def _identity(entry: Entry) -> tuple[str, dict[str, Any], str]:
    """Name and settings of an entry, and what stands beside it but for the usual cache."""
    methods = entry.plan.methods if entry.plan is not None else ()
    own = [method for method in methods if method.name != "canvas.PrefixCache"]
    if own:
        return own[0].name, own[0].settings(), " + ".join(str(each).removeprefix("canvas.") for each in own[1:])
    settings = {"steps": entry.fewer} if entry.fewer else {}
    settings |= {"threshold": entry.columns["threshold"]} if "threshold" in entry.columns else {}
    return entry.label, settings, ""


def _traced(work: Listing, entry: Entry) -> Row:
    """The step in which each token of the first picture was committed, for the entries that the page shows."""
    name, settings, beside = _identity(entry)
    shown = entry.kind == PLAIN or (name in TRACED and not beside and settings == get_method(name)().settings())
    if not shown or entry.columns.get("cache"):
        return {}
    commits = Commits()
    call = {
        "gen_length": LENGTH,
        "num_inference_steps": STEPS,
        "threshold": ONE_BY_ONE,
        "callback_on_step_end": commits,
    }
    with accelerate(work.target, entry.plan) if entry.plan else nullcontext(work.target) as target:
        target(**call, **work.inputs[0])
    steps = commits.steps[0]
    return {"committed": (steps[int((steps > 0).long().argmax()) :] - 1).tolist()}


SECTION = Section(
    page.groups,
    "fewer steps.",
    plot="lists without a mistake against time",
    quality="lists without a mistake",
    form=".1%",
    name=page.name,
    series=page.series,
    figures=(Figure("lists without a mistake", lambda row: row["quality"], " points", scale=100),),
    versus=page.versus,
)
BENCHMARK = Benchmark(
    "canvas", page.TITLE, in_one(rows), SECTION, page.INTRO, page.tables, page.LIMITS, facts=page.facts, plot=page.plot
)
