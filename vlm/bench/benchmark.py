"""`mmaccel bench vlm`: accuracy and time of every way to leave out visual tokens, on tiny-onevision.

Questions are about clips of scenes that the model never saw: first about things that are seen for a moment, so that
frames cannot be skipped, then about slow clips. Beside the methods stands what anyone can do: look at fewer frames.
Accuracy is over all questions; times are of a few clips, in one alternation with the plain model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, ClassVar

import torch

from mmaccel import zoo
from mmaccel.bench.benchmark import Benchmark, Row, Section
from mmaccel.bench.findings import of_table
from mmaccel.comparison import results
from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload
from mmaccel.session import Session

from ..answering import prepare
from ..input.visual import Visual
from ..pruning.compressor import Compressor
from ..pruning.holitom import HoliTom
from . import page
from .cases import FULL, QUICK, Grid, cases
from .timing import NEW, Timed, Timing

MODEL = "tiny-onevision"
SEED = 0
ENOUGH = 8  # questions of a kind, so that its share says something


def parts(full: bool = False) -> dict[str, Callable[[], Iterable[Row]]]:
    """The rows of each kind of clip, by its table; `full` has more clips, more shares and clips of 64 frames."""
    loaded = functools.cache(lambda: zoo.load(MODEL))
    return {grid.table: functools.partial(asked, loaded, grid) for grid in (FULL if full else QUICK)}


def asked(loaded: Callable[[], tuple[Any, Any]], grid: Grid) -> Iterator[Row]:
    """The row of each entry on clips of a kind."""
    model, processor = loaded()
    questions = zoo.questions(MODEL, 4 * grid.clips, seed=SEED, **grid.choice)
    clips = [list(group) for _, group in groupby(questions, key=lambda q: id(q.frames))]
    answered = answer(model, processor, cases(model, grid.shares), clips)
    timed = measure(model, processor, cases(model, grid.shares), [clip[0] for clip in clips[: grid.timed]])
    kinds = [question.kind for question in questions]
    for one, other in zip(timed, answered, strict=True):
        found = row(one, timed[0], right(other), right(answered[0]), kinds)
        yield {**found, "table": grid.table, "frames": len(clips[0][0].frames)}


def answer(model: Any, processor: Any, entries: list[Entry], clips: list[Any]) -> list[Entry]:
    """Let entries answer all questions about the clips; the plain model is the first."""
    Runner(Answering(model, processor, clips), entries, range(len(clips)), title="questions").run(warm_up=False)
    return entries


def measure(model: Any, processor: Any, entries: list[Entry], questions: list[Any]) -> list[Entry]:
    """Time an answer to each question, of a clip of its own."""
    Runner(Timing(model, processor, questions), entries, range(len(questions)), title="times").run()
    return entries


def right(entry: Entry) -> list[bool]:
    """Which answers of an entry are right."""
    return [is_right for figures in entry.metrics.values() for is_right in figures["right"]]


class Answering(Workload):
    """All questions about a clip in one batch; `fewer` is the step from one frame to the next."""

    remembers: ClassVar[bool] = False

    def __init__(self, model: Any, processor: Any, clips: list[Any]) -> None:
        self.target, self.processor, self.clips = model, processor, clips
        self._clip, self._seen = -1, dict[Any, list[Visual]]()

    @torch.no_grad()
    def run(self, target: Any, seed: int, fewer: int | None = None) -> list[bool]:
        clip = self.clips[seed]
        inputs = prepare(self.processor, clip[0].frames[::fewer], [q.question for q in clip])
        if isinstance(target, Session):
            self._see_once(target.adapter, seed)
        else:
            video = target.model.get_video_features(inputs.pop("pixel_values_videos")[:1])
            video.pooler_output = video.pooler_output.expand(len(clip), -1, -1)
            inputs["mm_encoder_outputs"] = {"video": video}
        tokens = target.generate(**inputs, max_new_tokens=NEW, do_sample=False)
        answers = self.processor.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return [answer.strip() == q.answer for answer, q in zip(answers, clip, strict=True)]

    def judge(self, plain: list[bool], other: list[bool]) -> dict[str, Any]:
        return {"right": other}

    def _see_once(self, adapter: Any, seed: int) -> None:
        """Let the tower look once at a clip for all its questions, and once for all methods that leave it be."""
        if self._clip != seed:
            self._clip, self._seen = seed, {}
        encode, known = adapter.encode, self._seen

        def once(kind: str, method: Compressor, kwargs: dict[str, Any], seen: int = 0) -> list[Visual]:
            pixels = kwargs["pixel_values_videos"]
            key = method if method.merges_after(2) else None
            if key not in known:
                watching = method if key else HoliTom()  # which needs scores and, with them, has keys
                known[key] = encode(kind, watching, {**kwargs, "pixel_values_videos": pixels[:1]})
            return known[key] * len(pixels)

        adapter.encode = once


def by_kind(answers: list[bool], kinds: list[str]) -> dict[str, float]:
    """The share of right answers to each kind of question, of kinds that were asked often enough to tell."""
    found: dict[str, list[bool]] = {}
    for kind, is_right in zip(kinds, answers, strict=True):
        found.setdefault(kind, []).append(is_right)
    return {kind: sum(each) / len(each) for kind, each in found.items() if len(each) >= ENOUGH}


def row(
    entry: Entry, plain: Entry, answers: list[bool], plain_answers: list[bool], kinds: list[str] | None = None
) -> Row:
    """The row of an entry that was timed, with what it answered right; of each kind where `kinds` of all are given."""
    shares = by_kind(answers, kinds) if kinds else {}
    times, base = ([figures["timed"] for figures in each.metrics.values()] for each in (entry, plain))

    def middle(figure: Callable[[Timed], float], of: list[Timed] = times) -> float:
        return results.median(figure(each) for each in of)

    def speedup(figure: Callable[[Timed], float]) -> float:
        return results.median(figure(p) / figure(t) for p, t in zip(base, times, strict=True))

    settings = {"settings": {"step": entry.fewer}} if entry.fewer else {}
    return results.row(
        modality="vlm",
        model=MODEL,
        **{**entry.identity("frames"), **settings, "exact": entry.kind == PLAIN},
        kind=entry.kind,
        **entry.columns,
        seeds=[0],
        wall_seconds=middle(lambda t: t.total),
        baseline_seconds=middle(lambda t: t.total, base),
        speedup=speedup(lambda t: t.total),
        tower_seconds=middle(lambda t: t.tower),
        first_token_seconds=middle(lambda t: t.first),
        first_token_speedup=speedup(lambda t: t.first),
        tower_speedup=speedup(lambda t: t.tower),
        cache_bytes=times[0].cache_bytes,
        visual_share=sum(t.visual_share for t in times) / len(times),
        peak_extra_bytes=entry.work()["peak_extra_bytes"],
        tokens_per_second=1 / middle(lambda t: t.token),
        quality_metric=f"share of {len(answers)} questions answered right",
        quality=sum(answers) / len(answers),
        quality_worst=min(shares.values(), default=None),
        by_kind=shares,
        baseline_quality=sum(plain_answers) / len(plain_answers),
    )


SECTION: Section = Section(
    page.groups,
    "fewer frames.",
    plot="questions answered right against time",
    quality="questions answered right",
    form=".1%",
    series=page.series,
    one_group=True,
    figures=page.FIGURES,
    said=lambda rows: f"{of_table(SECTION, rows)}\n{page.at_equal_tokens(rows)}",
)
BENCHMARK = Benchmark("vlm", page.TITLE, parts, SECTION, page.INTRO, page.tables, page.LIMITS, facts=page.facts)
