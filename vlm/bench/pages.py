"""`mmaccel bench pages`: what drafts of a light pipeline save a reader, by how many of its words are wrong.

`tiny-reader` reads pages that it never saw plainly, with drafts from nothing but the text itself, and with the regions
of a light pipeline, with and without their crops, all in one alternation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from mmaccel import zoo
from mmaccel.bench.benchmark import Benchmark, Row, Section, by
from mmaccel.bench.findings import plain_of
from mmaccel.bench.pages import markdown
from mmaccel.bench.winners import ahead, speed
from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload, counted
from mmaccel.session import Session

from ..drafts.document_draft import DocumentDraft
from ..drafts.fused_draft import FusedDraft
from ..input.misread import misread

MODEL = "tiny-reader"
SEED, PAGES, FEW = 9, 12, 3
WRONG = (0.0, 0.02, 0.05, 0.1, 0.3)  # shares of words
MOST = 480  # tokens of a page


@dataclass(frozen=True)
class Read:
    """Tokens `[1, N]` of a page, whether its Markdown is right, and the passes it took."""

    ids: torch.Tensor
    right: bool
    passes: int


class Reading(Workload):
    """Pages are read; a seed is the number of one."""

    def __init__(self, model: Any, processor: Any, count: int, wrong: float) -> None:
        self.target, self.processor = model, processor
        self.pages = zoo.pages(MODEL, count, seed=SEED)
        self.regions = [misread(page.regions, wrong, seed) for seed, page in enumerate(self.pages)]
        self.inputs = [dict(processor(images=page.picture)) for page in self.pages]

    def run(self, target: Any, seed: int, fewer: int | None = None) -> Read:
        inputs, given = self.inputs[seed], dict[str, Any]()
        if isinstance(target, Session) and "regions" in target.plan.call_arguments:
            given = {"regions": self.regions[seed], "page": self.pages[seed].picture, "processor": self.processor}
        with counted(self.target) as passes:
            ids = target.generate(**inputs, **given, do_sample=False, max_new_tokens=MOST)
        new = ids[:, inputs["input_ids"].shape[1] :]
        text = self.processor.tokenizer.decode(new[0], skip_special_tokens=True)
        return Read(new, text == self.pages[seed].text, len(passes))

    def equal(self, one: Read, other: Read) -> bool:
        return torch.equal(one.ids, other.ids)

    def judge(self, plain: Read, other: Read) -> dict[str, Any]:
        return {"right": other.right, "passes": other.passes, "plain_passes": plain.passes}


def entries(model: Any) -> list[Entry]:
    """The plain reader, drafts without a pipeline, and both ways to use one."""
    ours = (FusedDraft(), DocumentDraft(), DocumentDraft(regions=True))
    return [Entry(PLAIN, PLAIN), *(Entry.of(model, each) for each in ours)]


def parts(full: bool = False) -> dict[str, Callable[[], Iterable[Row]]]:
    """The rows for each share of wrong words; `full` has twelve pages."""
    loaded = functools.cache(lambda: zoo.load(MODEL))
    return {f"{wrong:.0%} wrong": functools.partial(measured, loaded, wrong, full) for wrong in WRONG}


def measured(loaded: Callable[[], tuple[Any, Any]], wrong: float, full: bool) -> Iterator[Row]:
    """The row of each entry, with a pipeline that errs on a share of the words."""
    model, processor = loaded()
    count = PAGES if full else FEW
    running, work = entries(model), Reading(model, processor, count, wrong)
    work.run(model, 0)  # before anything is timed; sessions begin with nothing
    Runner(work, running, range(count), title=f"{wrong:.0%} wrong").run(warm_up=False)
    for entry in running[1:]:
        yield row(entry, running[0], wrong)


def row(entry: Entry, plain: Entry, wrong: float) -> Row:
    """Mean and worst of an entry over the pages."""
    found, ratios, same = entry.metrics.values(), entry.ratios(plain), entry.equal.values()
    fewer = [each["plain_passes"] / each["passes"] for each in found]
    return results.row(
        modality="pages",
        model=MODEL,
        **entry.identity(),
        kind=entry.kind,
        wrong=wrong,
        seeds=list(entry.metrics),
        **entry.timing(plain),
        speedup_worst=min(ratios),
        work_ratio=sum(each["passes"] for each in found) / sum(each["plain_passes"] for each in found),
        fewest=min(fewer),
        passes=sum(each["passes"] for each in found) / len(found),
        plain_passes=sum(each["plain_passes"] for each in found) / len(found),
        equal=sum(same) / len(same),
        quality_metric=f"share of {len(same)} pages without a mistake",
        quality=sum(each["right"] for each in found) / len(found),
        baseline_quality=sum(each["right"] for each in plain.metrics.values()) / len(plain.metrics),
        warnings=entry.warnings,
    )


INTRO = """
Measured by `mmaccel bench pages --full` on the shipped `tiny-reader` (a real `LightOnOcrForConditionalGeneration`,
float32), which writes a printed page as Markdown: {pages} pages that it never saw, of {passes:.0f} tokens in the mean.
The plain reader gets {right:.1%} of them without a mistake. A light pipeline, whose own time is not counted, gives the
regions of each page; a share of its words is wrong, by a letter mistaken, left out or doubled. All entries alternate
page by page with the plain reader, and a session keeps what it learned from one page to the next. Cells are the time of
the plain reader divided by that of the entry, the median of all pages; in brackets the page with the least, and passes
of the plain reader for each pass. The raw rows are in [{json}]({json}).
"""
LIMITS = """
- **DocumentDraft** verifies the page alone by default, with the pipeline's text as its draft. A wrong word costs about
  one more pass.
- **With `regions=True`** the crops are read first, in one batch, so that each region's mistakes are put right beside
  those of the others, and the page itself then follows its draft almost without one. That costs a second reading of
  everything{crops}.
- **FusedDraft** knows nothing of the picture: a page repeats little, so that its guesses are seldom right.
- **Prompt lookup** of transformers is not in the table: it copies a placeholder of the picture into its draft, at which
  the reader raises an error.
- **Assisted generation** of transformers needs a second, smaller reader with the same tokenizer, and there is none
  beside this one.
"""


def facts(rows: list[Row]) -> dict[str, Any]:
    """How many pages, how long and how well read; and from which share of wrong words on crops pay."""
    pays = [row["wrong"] for row in rows if _crops(row) and row["speedup"] > _alone(rows, row["wrong"])]
    crops = f", which pays here from {min(pays):.0%} wrong words on" if pays else ", which pays at none of these shares"
    first = rows[0]
    return {
        "pages": len(first["seeds"]),
        "passes": first["plain_passes"],
        "right": first["baseline_quality"],
        "crops": crops,
    }


def _crops(row: Row) -> bool:
    return row["method"] == "vlm.DocumentDraft" and bool(row["settings"]["regions"])


def _alone(rows: list[Row], wrong: float) -> float:
    """The speed-up of the draft of the page alone."""
    return next(
        row["speedup"]
        for row in rows
        if row["method"] == "vlm.DocumentDraft" and not _crops(row) and row["wrong"] == wrong
    )


def tables(rows: list[Row]) -> dict[str, str]:
    """A line for each entry, a column for each share of wrong words; and how many pages were equal."""
    groups = by("wrong", "{:.0%} wrong", rows)
    names = [_name(row) for row in rows if row["wrong"] == rows[0]["wrong"]]
    lines = [[name, *(_cell(group[number]) for group in groups.values())] for number, name in enumerate(names)]
    same = [
        [name, *(f"{group[number]['equal']:.0%}" for group in groups.values())] for number, name in enumerate(names)
    ]
    return {
        "Time": markdown(("entry", *groups), lines),
        "Pages equal to those of the plain reader": markdown(("entry", *groups), same),
    }


def _cell(row: Row) -> str:
    return f"{row['speedup']:.2f}x ({row['speedup_worst']:.2f}x, {1 / row['work_ratio']:.1f})"


def _name(row: Row) -> str:
    return results.called(row).removeprefix("vlm.")


FIGURES = (speed("speed on the median page"), speed("speed on the worst page", "speedup_worst"))


def said(rows: list[Row]) -> str:
    """Drafts of a pipeline and of nothing, and what crops add, over the shares of wrong words."""
    crops = [row for row in rows if _crops(row)]
    piped = [row for row in rows if row["method"] == "vlm.DocumentDraft" and row not in crops]
    fused = [row for row in rows if row["method"] == "vlm.FusedDraft"]
    pairs = {
        "`vlm.DocumentDraft()` against the plain reader": [(row, plain_of([row])) for row in piped],
        "`vlm.DocumentDraft()` against drafts without a pipeline, `vlm.FusedDraft()`": _beside(piped, fused),
        "`vlm.DocumentDraft()` against reading crops too, `regions=True`": _beside(piped, crops),
        "`vlm.FusedDraft()` against the plain reader": [(row, plain_of([row])) for row in fused],
    }
    found = {what: [ahead(figure, each, _wrong) for figure in FIGURES] for what, each in pairs.items()}
    return "\n".join(f"- {what}: {'; '.join(told)}." for what, told in found.items() if any(told))


def _beside(ours: list[Row], others: list[Row]) -> list[tuple[Row, Row]]:
    """Rows of the same share of wrong words."""
    by_wrong = {row["wrong"]: row for row in others}
    return [(row, by_wrong[row["wrong"]]) for row in ours if row["wrong"] in by_wrong]


def _wrong(row: Row) -> str:
    return f"{row['wrong']:.0%} of the words wrong"


SECTION = Section(
    lambda rows: {"": rows},
    "there is none; transformers' own prompt lookup fails on prompts with pictures.",
    quality="pages without a mistake",
    form=".1%",
    worst=lambda row: f"{row['speedup_worst']:.2f}x on one page",
    is_mixed=True,
    name=lambda row: f"`{results.called(row)}`, {_wrong(row)}",
    said=said,
)
BENCHMARK = Benchmark("pages", "Drafts for pages", parts, SECTION, INTRO, tables, LIMITS, facts=facts)
