"""When the tokens of an answer are there, and how long the vision tower took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import LogitsProcessor

from mmaccel.cache.argument import cache_of
from mmaccel.comparison.trial import Workload
from mmaccel.machine import synchronize
from mmaccel.session import Session

from ..answering import prepare

NEW = 16  # tokens that are timed; answers are shorter


class TokenClock(LogitsProcessor):
    """Notes when each token is there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        synchronize()
        self.times.append(time.perf_counter())
        return scores


@dataclass
class Timed:
    """Seconds of one answer: the vision tower's, from there to the first token, and of each token after that.

    `cache_bytes` are those of the keys and values at its end, and `visual_share` the visual tokens that the language
    model got, of all, a mean over its layers.
    """

    tower: float
    first: float
    token: float
    cache_bytes: int
    visual_share: float = 1.0

    @property
    def total(self) -> float:
        return self.tower + self.first


class Timing(Workload):
    """One answer about each of several clips; `fewer` is the step from one frame to the next."""

    unit: ClassVar[str] = "frames"
    remembers: ClassVar[bool] = False

    def __init__(self, model: Any, processor: Any, questions: list[Any]) -> None:
        self.target, self.processor, self.questions = model, processor, questions

    def run(self, target: Any, seed: int, fewer: int | None = None) -> Timed:
        question = self.questions[seed]
        frames = question.frames[::fewer]
        inputs, clock = prepare(self.processor, frames, [question.question]), TokenClock()
        length = {"max_new_tokens": NEW, "min_new_tokens": NEW, "return_dict_in_generate": True}
        with _tower_seconds(self.target) as towers:
            began = time.perf_counter()
            result = target.generate(**inputs, **length, do_sample=False, logits_processor=[clock])
        (first, *_, last), tower = clock.times, sum(towers)
        cache_bytes = sum(x.nbytes for layer in cache_of(result).layers for x in (layer.keys, layer.values))
        share = len(frames) / len(question.frames)
        if isinstance(target, Session):
            share = target.report.visual_tokens / target.report.plain_visual_tokens
        return Timed(tower, first - began - tower, (last - first) / (NEW - 1), cache_bytes, share)

    def judge(self, plain: Timed, other: Timed) -> dict[str, Any]:
        return {"timed": other}


@contextmanager
def _tower_seconds(model: Any) -> Iterator[list[float]]:
    """Seconds of each pass of the vision tower inside this block."""
    began, seconds = 0.0, list[float]()

    def start(*_: Any) -> None:
        nonlocal began
        began = time.perf_counter()

    def stop(*_: Any) -> None:
        seconds.append(time.perf_counter() - began)

    tower = model.model.vision_tower
    with tower.register_forward_pre_hook(start), tower.register_forward_hook(stop):
        yield seconds
