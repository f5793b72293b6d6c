"""Pictures of what a stream shows while somebody speaks, and of what drafts save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

import mmaccel
from mmaccel import speech
from mmaccel.cache.argument import cache_of
from mmaccel.demos.pages.figures import drawn, figure
from mmaccel.demos.pages.recorded_calls import recorded
from mmaccel.speech.audio.recordings import load_recordings
from mmaccel.speech.decoding import merge_audio_tokens

HEARD, LINES = 9.0, 14  # seconds of the recording, and lines of what was shown
DRAFTED, ACROSS = 15.0, 0.93  # seconds of the recording, and where a line of text ends
MERGED = 4.5  # seconds of the recording
DARK, BRIGHT = "#1f2d3d", "#d1642a"


def heard() -> tuple[Image.Image, str]:
    """What a stream shows while a sentence is spoken."""
    samples = load_recordings(["two_cities.wav"])[0].samples[: round(16_000 * HEARD)]
    asr = speech.StreamingRecognizer(*speech.load("moonshine-tiny"), policy=speech.LocalAgreement(2))
    shown: list[tuple[float, str, str]] = []
    with asr.stream(sample_rate=16_000) as stream:
        for number, chunk in enumerate(samples.split(1600), 1):
            for event in stream.push(chunk):
                if isinstance(event, speech.Partial | speech.Final):
                    final = isinstance(event, speech.Final)
                    shown.append((number / 10, event.text if final else event.stable, "" if final else event.unstable))
        stream.finish()
    return _shown_lines(shown[:LINES]), (
        "StreamingRecognizer with LocalAgreement(2) on Moonshine tiny: what is shown after so many seconds of speech."
        " Dark words stay, orange ones may still change."
    )


def _shown_lines(shown: list[tuple[float, str, str]]) -> Image.Image:
    made, axes = _lines(len(shown))
    for row, (seconds, stable, unstable) in enumerate(shown):
        axes.text(0.06, row, f"{seconds:.1f} s", fontsize=9, color="#777777", ha="right")
        end = _write(axes, 0.08, row, stable, DARK) if stable else 0.08
        _write(axes, end + 0.006, row, unstable, BRIGHT)
    return drawn(made)


def drafted() -> tuple[Image.Image, str]:
    """Which tokens of a transcript were drafts that the model confirmed."""
    model, processor = speech.load("moonshine-tiny")
    samples = load_recordings(["two_cities.wav"])[0].samples[: round(16_000 * DRAFTED)]
    inputs = processor(samples.numpy(), sampling_rate=16_000, return_tensors="pt")
    own: set[int] = set()  # places of the tokens that a pass began from

    def note(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        own.add(cache_of(named).get_seq_length())

    hook = model.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    with hook, mmaccel.accelerate(model, speech.SuffixDraft()) as fast:
        tokens = fast.generate(**inputs, do_sample=False)[0].tolist()
        passes = fast.report.forwards
    words = processor.tokenizer.convert_ids_to_tokens(tokens)
    made, axes = _lines(6)
    left, row = 0.05, 0
    for place, word in list(enumerate(words))[1:-1]:
        if left > ACROSS and word.startswith("\u2581"):
            left, row = 0.05, row + 1
        text = word.replace("\u2581", "")
        start = left + (0.008 if word.startswith("\u2581") else 0)
        left = _write(axes, start, row, text, DARK if place in own else BRIGHT)
    axes.set_ylim(row + 0.6, -0.6)
    made.set_size_inches(9, 0.32 * (row + 1))
    return drawn(made), (
        f"SuffixDraft() on Moonshine tiny, {DRAFTED:g} s of speech: {len(words) - 1} tokens in {passes:g} passes of the"
        " decoder. Orange tokens are drafts, copied from what was said before, that a pass confirmed on the way."
    )


def merged() -> tuple[Image.Image, str]:
    """Which audio tokens are merged into one, and which are left out, below the sound that they stand for."""
    method = speech.MergeAudioTokens()
    model, processor = speech.load("moonshine-tiny")
    samples = load_recordings(["beckett.wav"])[0].samples[: round(16_000 * MERGED)]
    inputs = processor(samples.numpy(), sampling_rate=16_000, return_tensors="pt")
    with recorded(merge_audio_tokens, "merge_tokens") as calls, mmaccel.accelerate(model, method) as fast:
        fast.generate(**inputs, do_sample=False)
    (_, features, *_), left = calls[0]
    tokens = features.shape[1]
    made, axes = figure(1, 9, 2.4)
    axes.plot(np.linspace(0, MERGED, len(samples)), samples / samples.abs().max(), color=DARK, linewidth=0.4)
    pairs = [(first, size) for first, size in zip(left.first[0].tolist(), left.size[0].tolist(), strict=True) if size]
    for first, size in pairs:
        color = BRIGHT if size > 1 else DARK
        bar = (first * MERGED / tokens, size * MERGED / tokens)
        axes.broken_barh([bar], (-1.5, 0.35), facecolor=color, edgecolor="white", linewidth=1.5)
    axes.set(xlim=(0, MERGED), ylim=(-1.6, 1.05), yticks=[], xlabel="seconds")
    return drawn(made), (
        f"{method} on Moonshine tiny: {len(pairs)} of {tokens} audio tokens are left for the decoder. A dark bar is a"
        " token, an orange one several that are one now, and what has no bar is left out."
    )


JOBS: dict[str, Callable[[], tuple[Image.Image, str]]] = {
    "speech.MergeAudioTokens": merged,
    "speech.StreamingRecognizer": heard,
    "speech.SuffixDraft": drafted,
}


def _lines(count: int) -> tuple[Any, Any]:
    """An empty figure for lines of text, from 0 to 1 across."""
    made, axes = figure(1, 9, 0.27 * count)
    made.set_layout_engine("none")  # it would move what is measured below
    axes.set(xlim=(0, 1), ylim=(count - 0.5, -0.5), position=(0, 0, 1, 1))
    axes.axis("off")
    return made, axes


def _write(axes: Any, left: float, row: float, text: str, color: str) -> float:
    """Write, and tell where the text ends."""
    written = axes.text(left, row, text, fontsize=8.6, color=color)
    extent = written.get_window_extent(axes.figure.canvas.get_renderer())
    return float(axes.transData.inverted().transform(extent.max)[0])
