"""Rows of `mmaccel bench speech` about drafts: what the hypothesis before saves of decoding anew."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from ..audio.endpoint import RATE
from ..decoding.redecode import decode
from ..families.adapter import SpeechAdapter
from .listeners import UPDATE, Heard, MeasuredRecognizer
from .parts import speech_row


@dataclass
class Cost:
    """CPU seconds, those of the decoder among them, and its passes."""

    cpu: float = 0.0
    decoding: float = 0.0
    calls: int = 0


def draft_row(
    name: str, label: str, heard: Heard, drafted: MeasuredRecognizer, plainly: Heard, plain: MeasuredRecognizer
) -> dict[str, Any]:
    """What drafts save; refused if one event differs, which has the tokens, the partials and the times of words."""
    identity = {"model": name, "method": label, "settings": {}}
    if [one.events for one in heard.listeners] != [one.events for one in plainly.listeners]:
        return _row(identity, refused=f"refused: {label} tell something else than without")
    ours = Cost(heard.cpu_seconds, drafted.decoding, heard.decoder_calls)
    baseline = Cost(plainly.cpu_seconds, plain.decoding, plainly.decoder_calls)
    return _saved(identity, sum(take.audio_seconds for take in heard.takes), ours, baseline)


def growing_row(name: str, adapter: SpeechAdapter, samples: torch.Tensor) -> dict[str, Any]:
    """What drafts save in one segment `[n]` without a pause, decoded at every update; refused if a token differs."""
    step = round(UPDATE * RATE)
    settings = {"seconds": len(samples) / RATE, "updates": len(samples) // step}
    identity = {"model": name, "method": "drafts in one segment", "settings": settings}
    prompt, draft, ours, baseline = adapter.prompt(), tuple[int, ...](), Cost(), Cost()
    for end in range(step, len(samples) + 1, step):
        encoded = adapter.encode(samples[:end])
        made = []
        for cost, guess in ((ours, draft), (baseline, ())):
            began = time.process_time()
            made.append(decode(adapter, encoded, prompt, guess))
            cost.decoding += time.process_time() - began
            cost.calls += made[-1].forwards
        if made[0].tokens != made[1].tokens:
            return _row(identity, refused=f"refused: other tokens after {end / RATE:g} s")
        draft = made[0].tokens
    ours.cpu, baseline.cpu = ours.decoding, baseline.decoding  # nothing else is counted
    return _saved(identity, settings["seconds"], ours, baseline)


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
