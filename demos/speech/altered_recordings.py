"""Recordings of speech in noise and without pauses."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from mmaccel.speech.audio.endpoint import FRAME, RATE, EndpointPolicy
from mmaccel.speech.audio.recordings import Recording


def in_noise(recording: Recording, decibels: float, seed: int) -> Recording:
    """A recording under pink noise, `decibels` quieter than its speech on the mean; always the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    count = len(recording.samples)
    spectrum = torch.fft.rfft(torch.randn(count, generator=generator))
    noise = torch.fft.irfft(spectrum / torch.arange(1, len(spectrum) + 1).sqrt(), count)
    loud = recording.samples[recording.samples.abs() > 0.01]
    power = float((loud if len(loud) else recording.samples).square().mean())
    noise *= math.sqrt(power / 10 ** (decibels / 10) / float(noise.square().mean()))
    return replace(recording, samples=(recording.samples + noise).clamp(-1, 1), words=())


def without_pauses(recording: Recording, endpoint: EndpointPolicy, kept: float = 0.3) -> Recording:
    """A recording whose pauses are shortened to `kept` seconds, so that none ends a segment."""
    frames = torch.cat([recording.samples, torch.zeros(-len(recording.samples) % FRAME)]).split(FRAME)
    listener, half = endpoint.listen(), max(1, round(kept * RATE / FRAME / 2))
    speech = [listener(frame) >= endpoint.lower_threshold for frame in frames]
    near = [any(speech[max(0, place - half) : place + half + 1]) for place in range(len(frames))]
    samples = torch.cat([frame for frame, stays in zip(frames, near, strict=True) if stays])
    return replace(recording, samples=samples, words=())
