"""`mmaccel bench vlm`: accuracy and time of every way to leave out visual tokens, on tiny-onevision.

Questions are about clips of scenes that the model never saw. Beside the methods stands what anyone can do: look at
fewer frames. Accuracy is over all questions; times are of a few clips, in one alternation with the plain model.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from tqdm import tqdm
from transformers import LogitsProcessor

from mmaccel import zoo
from mmaccel.bench import result as bench
from mmaccel.registry import methods
from mmaccel.session import Session, accelerate

from ..answering import prepare
from ..families.visual_adapter import VisualAdapter
from ..input.visual import Visual
from ..pruning.compressor import Compressor
from ..pruning.holitom import HoliTom
from .page import write_page

__all__ = ["rows", "write_page"]

MODEL = "tiny-onevision"
SHARES = (0.25, 0.2, 0.15, 0.1)
NEW = 16  # tokens that are timed; answers are shorter
FAMILY = "llava_onevision"
# Settings that suit this model better than the paper's, beside those: its tower finds all of a slow clip alike.
TUNED: dict[str, dict[str, Any]] = {"vlm.HoliTom": {"tau": 0.9}, "vlm.EarlyTom": {"window": 16}}


@dataclass(frozen=True)
class Contestant:
    """One row of the table.

    Attributes
    ----------
    method
        None for the plain model.
    frames
        Of how many frames it looks at every `step`-th.
    """

    share: float
    method: Compressor | None = None
    step: int = 1

    @property
    def name(self) -> str:
        if self.method is not None:
            return self.method.name
        return "fewer frames" if self.step > 1 else "plain"

    @property
    def settings(self) -> dict[str, Any]:
        if self.method is not None:
            return self.method.settings()
        return {"step": self.step} if self.step > 1 else {}

    @property
    def kind(self) -> str:
        """As the rows of a comparison say it."""
        return "method" if self.method is not None else "simple" if self.step > 1 else "plain"


def contestants(shares: tuple[float, ...] = SHARES) -> list[Contestant]:
    """The plain model, fewer frames, and every method, at each share of the tokens."""
    found = [Contestant(1.0)]
    for share in shares:
        found.append(Contestant(share, step=round(1 / share)))
        for method in compressors(share):
            found.append(Contestant(share, method))
            if more := TUNED.get(method.name):
                found.append(Contestant(share, dataclasses.replace(method, **more)))
    return found


def compressors(share: float) -> list[Compressor]:
    """Every method that leaves this family so much of its visual tokens."""
    found = [cls for cls in methods().values() if issubclass(cls, Compressor) and FAMILY in (cls.families or ())]
    return [cls(keep=share) for cls in found]  # type: ignore[call-arg]


class TokenClock(LogitsProcessor):
    """Notes when each token is there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        bench.synchronize()
        self.times.append(time.perf_counter())
        return scores


@dataclass
class Timed:
    """Seconds of one answer: the vision tower's, from there to the first token, and of each token after that.

    `cache_bytes` are those of the keys and values at its end, `extra_bytes` what the method allocated, counted, and
    `visual_share` the visual tokens that the language model got, of all, a mean over its layers.
    """

    tower: float
    first: float
    token: float
    cache_bytes: int
    extra_bytes: int = 0
    visual_share: float = 1.0

    @property
    def total(self) -> float:
        return self.tower + self.first


def rows(full: bool = False) -> Iterator[dict[str, Any]]:
    """One row for each contestant; `full` asks 520 questions about 130 clips, else 80 about 20."""
    model, processor = zoo.load(MODEL)
    questions = zoo.questions(MODEL, 520 if full else 80, seed=0)
    clips = [list(group) for _, group in groupby(questions, key=lambda q: id(q.frames))]
    field = contestants() if full else contestants((0.15, 0.1))
    rounds = 24 if full else 3
    right = _accuracy(model, processor, field, clips)
    times = _times(model, processor, field, [clip[0] for clip in clips[:rounds]])
    plain = Contestant(1.0)
    for contestant in field:
        yield _row(contestant, times[contestant], times[plain], right[contestant], right[plain], len(questions))


def _accuracy(model: Any, processor: Any, field: list[Contestant], clips: list[Any]) -> dict[Contestant, list[bool]]:
    right: dict[Contestant, list[bool]] = {contestant: [] for contestant in field}
    for clip in tqdm(clips, desc="questions"):
        seen: dict[Any, list[Visual]] = {}
        for contestant in field:
            with _session(model, contestant) as target:
                if isinstance(target, Session):
                    _see_once(target.adapter, seen)  # type: ignore[arg-type]
                answers = _answers(target, processor, clip, contestant.step)
            right[contestant] += [a == q.answer for a, q in zip(answers, clip, strict=True)]
    return right


def _see_once(adapter: VisualAdapter, known: dict[Any, list[Visual]]) -> None:
    """Let the tower look once at a clip that several questions are about, and once for all methods that leave it be."""
    encode = adapter.encode

    def once(kind: str, method: Compressor, kwargs: dict[str, Any], seen: int = 0) -> list[Visual]:
        pixels = kwargs["pixel_values_videos"]
        key = method if method.merges_after(2) else None
        if key not in known:
            watching = method if key else HoliTom()  # which needs scores and, with them, has keys
            known[key] = encode(kind, watching, {**kwargs, "pixel_values_videos": pixels[:1]})
        return known[key] * len(pixels)

    adapter.encode = once  # type: ignore[method-assign]


class _session:  # noqa: N801  reads as a phrase
    """The model, or a session with the contestant's method."""

    def __init__(self, model: Any, contestant: Contestant) -> None:
        self.target = model if contestant.method is None else accelerate(model, contestant.method)

    def __enter__(self) -> Any:
        return self.target

    def __exit__(self, *_: Any) -> None:
        if isinstance(self.target, Session):
            self.target.remove()


@torch.no_grad()
def _answers(target: Any, processor: Any, clip: Any, step: int) -> list[str]:
    inputs = prepare(processor, clip[0].frames[::step], [q.question for q in clip])
    if not isinstance(target, Session):
        video = target.model.get_video_features(inputs.pop("pixel_values_videos")[:1])
        video.pooler_output = video.pooler_output.expand(len(clip), -1, -1)
        inputs["mm_encoder_outputs"] = {"video": video}
    tokens = target.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    answers = processor.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [answer.strip() for answer in answers]


def _times(model: Any, processor: Any, field: list[Contestant], questions: list[Any]) -> dict[Contestant, list[Timed]]:
    def run(contestant: Contestant) -> Any:
        return lambda number: _timed(model, processor, contestant, questions[number])

    for contestant in field:  # first runs are slower
        _timed(model, processor, contestant, questions[0])
    return bench.alternate({c: run(c) for c in tqdm(field, desc="times")}, len(questions))


def _timed(model: Any, processor: Any, contestant: Contestant, question: Any) -> Timed:
    inputs = prepare(processor, question.frames[:: contestant.step], [question.question])
    clock, tower = TokenClock(), _TowerClock()
    with _session(model, contestant) as target, tower.on(model):
        began = time.perf_counter()
        length = {"max_new_tokens": NEW, "min_new_tokens": NEW, "return_dict_in_generate": True}
        result = target.generate(**inputs, **length, do_sample=False, logits_processor=[clock])
    first, *_, last = clock.times
    cache_bytes = sum(x.nbytes for layer in result.past_key_values.layers for x in (layer.keys, layer.values))
    seconds = (tower.seconds, first - began - tower.seconds, (last - first) / (NEW - 1))
    if not isinstance(target, Session):
        return Timed(
            *seconds, cache_bytes, visual_share=len(question.frames[:: contestant.step]) / len(question.frames)
        )
    report = target.report
    share = report.visual_tokens / report.plain_visual_tokens
    return Timed(*seconds, cache_bytes, report.peak_extra_bytes, share)


class _TowerClock:
    """Seconds that the vision tower took."""

    seconds = 0.0

    def on(self, model: Any) -> Any:
        from contextlib import ExitStack

        stack = ExitStack()
        tower = model.model.vision_tower

        def start(*_: Any) -> None:
            self._began = time.perf_counter()

        def stop(*_: Any) -> None:
            self.seconds += time.perf_counter() - self._began

        stack.callback(tower.register_forward_pre_hook(start).remove)
        stack.callback(tower.register_forward_hook(stop).remove)
        return stack


def _row(
    contestant: Contestant,
    times: list[Timed],
    plain: list[Timed],
    right: list[bool],
    plain_right: list[bool],
    count: int,
) -> dict[str, Any]:
    def middle(values: list[float]) -> float:
        return bench.median(values)

    return bench.row(
        modality="vlm",
        model=MODEL,
        method=contestant.name,
        settings=contestant.settings,
        kind=contestant.kind,
        share=contestant.share,
        exact=contestant.method is None and contestant.step == 1,
        seeds=[0],
        wall_seconds=middle([t.total for t in times]),
        baseline_seconds=middle([t.total for t in plain]),
        speedup=middle([p.total / t.total for p, t in zip(plain, times, strict=True)]),
        tower_seconds=middle([t.tower for t in times]),
        first_token_seconds=middle([t.first for t in times]),
        first_token_speedup=middle([p.first / t.first for p, t in zip(plain, times, strict=True)]),
        tower_speedup=middle([p.tower / t.tower for p, t in zip(plain, times, strict=True)]),
        cache_bytes=times[0].cache_bytes,
        visual_share=sum(t.visual_share for t in times) / len(times),
        peak_extra_bytes=max(t.extra_bytes for t in times),
        tokens_per_second=1 / middle([t.token for t in times]),
        quality_metric=f"share of {count} questions answered right",
        quality=sum(right) / len(right),
        baseline_quality=sum(plain_right) / len(plain_right),
    )
