"""Rows of `mmaccel bench speech` about drafts: what the hypothesis before saves of decoding anew."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from mmaccel.comparison.entry import PLAIN, Entry
from mmaccel.comparison.runner import Runner
from mmaccel.comparison.trial import Workload

from ..audio.endpoint import RATE
from ..decoding.redecode import Hypothesis, decode
from ..families.adapter import SpeechAdapter
from .listeners import UPDATE, MeasuredRecognizer
from .parts import speech_row
from .playback import Played


@dataclass
class Cost:
    """CPU seconds, those of the decoder among them, and its passes."""

    cpu: float
    decoding: float
    calls: int


def draft_row(
    name: str, label: str, played: Played, drafted: MeasuredRecognizer, plainly: Played, plain: MeasuredRecognizer
) -> dict[str, Any]:
    """What drafts save; refused if one event differs, which has the tokens, the partials and the times of words."""
    identity = {"model": name, "method": label, "settings": {}}
    if [one.events for one in played.listeners] != [one.events for one in plainly.listeners]:
        return _row(identity, refused=f"refused: {label} tell something else than without")
    ours = Cost(played.cpu_seconds, drafted.decoding, played.decoder_calls)
    baseline = Cost(plainly.cpu_seconds, plain.decoding, plainly.decoder_calls)
    return _saved(identity, sum(playback.audio_seconds for playback in played.playbacks), ours, baseline)


class Growing(Workload):
    """A segment `[n]` decoded at every update; a seed is the number of an update, a target whether there are drafts."""

    timer = staticmethod(time.process_time)

    def __init__(self, adapter: SpeechAdapter, samples: torch.Tensor) -> None:
        self.adapter, step = adapter, round(UPDATE * RATE)
        self.ends = range(step, len(samples) + 1, step)
        self.encoded = [adapter.encode(samples[:end]) for end in self.ends]
        self.draft: tuple[int, ...] = ()

    def run(self, target: Any, seed: int, fewer: int | None = None) -> Hypothesis:
        made = decode(self.adapter, self.encoded[seed], self.adapter.prompt(), self.draft if target else ())
        if target:
            self.draft = made.tokens
        return made

    def judge(self, plain: Hypothesis, other: Hypothesis) -> dict[str, Any]:
        return {"calls": other.forwards, "is_same": other.tokens == plain.tokens}


def growing_row(name: str, adapter: SpeechAdapter, samples: torch.Tensor) -> dict[str, Any]:
    """What drafts save in one segment `[n]` without a pause, decoded at every update; refused if a token differs."""
    growing = Growing(adapter, samples)
    drafted, plain = Entry.using("drafts", True), Entry.using(PLAIN, False)
    Runner(growing, [drafted, plain], range(len(growing.ends))).run(warm_up=False)
    settings = {"seconds": len(samples) / RATE, "updates": len(growing.ends)}
    identity = {"model": name, "method": "drafts in one segment", "settings": settings}
    for seed, figures in drafted.metrics.items():
        if not figures["is_same"]:
            return _row(identity, refused=f"refused: other tokens after {growing.ends[seed] / RATE:g} s")
    return _saved(identity, settings["seconds"], _cost(drafted), _cost(plain))


def _cost(entry: Entry) -> Cost:
    """Of decoding alone: nothing else is counted."""
    seconds = sum(entry.seconds)
    return Cost(seconds, seconds, sum(figures["calls"] for figures in entry.metrics.values()))


def _saved(identity: dict[str, Any], audio_seconds: float, ours: Cost, baseline: Cost) -> dict[str, Any]:
    return _row(
        identity,
        audio_seconds=audio_seconds,
        cpu_seconds=ours.cpu,
        baseline_cpu_seconds=baseline.cpu,
        speedup=baseline.cpu / ours.cpu,
        decoding_seconds=ours.decoding,
        baseline_decoding_seconds=baseline.decoding,
        decoding_speedup=baseline.decoding / ours.decoding,
        decoder_calls=ours.calls,
        baseline_decoder_calls=baseline.calls,
        work_ratio=ours.calls / baseline.calls,
    )


def _row(identity: dict[str, Any], **values: Any) -> dict[str, Any]:
    return speech_row(table="drafts", exact=True, **identity, **values)
