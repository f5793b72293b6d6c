"""Voice activity: the likelihood of speech in each 32 ms of audio, by a small network or by energy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch

from mmaccel.errors import MissingExtraError, unknown_name
from mmaccel.method import Checked, is_number

from .audio import RATE as RATE  # for those that count frames

# Samples that are judged at a time: 32 ms at 16 kHz, the only block that Silero's network takes.
FRAME = 512


class VoiceActivityDetector(Protocol):
    """Judges the frames of one stream, in order, and keeps its own state."""

    def __call__(self, frame: torch.Tensor) -> float:
        """Between 0 and 1: how likely `[512]` samples at 16 kHz hold speech."""


@dataclass(frozen=True)
class EndpointPolicy(Checked, ABC):
    """When a segment of speech starts and ends.

    Parameters
    ----------
    silence
        Seconds without speech that end a segment; default 0.44, 14 frames: as many errors as with 0.5 on the recordings
        that it was chosen by.
    longest
        Seconds after which a segment is cut at its quietest place; default 15.
    threshold
        Likelihood from which a frame is speech; speech ends 0.15 below it, but never below 0.01, so that it does not
        flicker. Default 0.5; all of it as in Silero.
    padding
        Seconds of audio before the speech that belong to the segment; default 0.3.
    tail
        Seconds of audio behind the speech that belong to the segment; no longer than `silence`. The text of a sentence
        is told early when they are over. Default 0.19, 6 frames: as many errors as with 0.3 there.

    Raises
    ------
    SettingError
        If a setting is out of range.
    """

    silence: float = 0.44
    longest: float = 15.0
    threshold: float = 0.5
    padding: float = 0.3
    tail: float = 0.19

    HYSTERESIS: ClassVar[float] = 0.15
    LEAST: ClassVar[float] = 0.01

    def __post_init__(self) -> None:
        self._require(is_number(self.silence, 0.1, 10), "silence", "between 0.1 and 10 seconds, such as 0.5")
        self._require(is_number(self.longest, 2, 60), "longest", "between 2 and 60 seconds, such as 15.0")
        self._require(is_number(self.threshold, 0.05, 0.95), "threshold", "between 0.05 and 0.95, such as 0.5")
        self._require(is_number(self.padding, 0, 1), "padding", "between 0 and 1 second, such as 0.3")
        allowed = f"between 0 and silence={self.silence} seconds, such as {min(0.2, self.silence)}"
        self._require(is_number(self.tail, 0, self.silence), "tail", allowed)

    def cutting(self, silence: float, longest: float | None = None) -> Self:
        """The same detector with segments that end elsewhere; the tail is no longer than the silence."""
        most = self.longest if longest is None else longest
        return replace(self, silence=silence, longest=most, tail=min(self.tail, silence))

    @property
    def lower_threshold(self) -> float:
        """Likelihood from which a frame behind speech is still speech."""
        return max(self.threshold - self.HYSTERESIS, self.LEAST)

    @abstractmethod
    def listen(self) -> VoiceActivityDetector:
        """A judge of the frames of a new stream."""


@dataclass(frozen=True)
class SileroEndpoint(EndpointPolicy):
    """Speech by the network of Silero VAD (2024), 2 MB, about 1 ms of CPU for 32 ms of audio.

    Its parameters are those of :class:`EndpointPolicy`. The network is loaded once; what it remembers of a stream is
    held by the stream, so that any number of streams share it.

    Raises
    ------
    MissingExtraError
        From :meth:`listen`, if the package silero-vad is missing.

    Examples
    --------
    >>> SileroEndpoint(silence=0.6).longest
    15.0
    """

    def listen(self) -> VoiceActivityDetector:
        return _SileroDetector(_silero_network())


class _SileroDetector:
    # The network looks at the last 64 samples of the frame before, and has two states of 128.
    CONTEXT, STATE = 64, (2, 1, 128)

    def __init__(self, network: Any) -> None:
        self.network = network
        self.state = torch.zeros(self.STATE, dtype=torch.float32, device="cpu")  # where the network is
        self.context = torch.zeros(self.CONTEXT, dtype=torch.float32, device="cpu")

    def __call__(self, frame: torch.Tensor) -> float:
        return self.judge([(self, frame)])[0]

    @classmethod
    @torch.no_grad()
    def judge(cls, asked: Sequence[tuple[_SileroDetector, torch.Tensor]]) -> list[float]:
        """The next frame of each of several streams, in one pass of the network."""
        heard = torch.stack([torch.cat([detector.context, frame]) for detector, frame in asked])
        states = torch.cat([detector.state for detector, _ in asked], 1)
        found, states = asked[0][0].network(heard, states)
        for (detector, frame), state in zip(asked, states.split(1, 1), strict=True):
            detector.state, detector.context = state, frame[-cls.CONTEXT :].clone()
        return [float(one) for one in found]


def judge_all(asked: Sequence[tuple[VoiceActivityDetector, Sequence[torch.Tensor]]]) -> list[list[float]]:
    """How likely the next frames of each of several streams hold speech; Silero's network judges theirs in step."""
    if not all(isinstance(detector, _SileroDetector) for detector, _ in asked):
        return [[detector(frame) for frame in frames] for detector, frames in asked]
    found: list[list[float]] = [[] for _ in asked]
    for place in range(max((len(frames) for _, frames in asked), default=0)):
        due = [number for number, (_, frames) in enumerate(asked) if place < len(frames)]
        step: Any = [(asked[number][0], asked[number][1][place]) for number in due]
        for number, likelihood in zip(due, _SileroDetector.judge(step), strict=True):
            found[number].append(likelihood)
    return found


def _silero_file() -> Path | None:
    """The torchscript file; the package is not imported, which would set torch's number of threads to 1."""
    spec = find_spec("silero_vad")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "data" / "silero_vad.jit"
    return path if path.is_file() else None


@cache
def _silero_network() -> Any:
    path = _silero_file()
    if path is None:
        raise MissingExtraError(
            'SileroEndpoint needs the package silero-vad: pip install "mmaccel[speech]", or use endpoint="energy"'
        )
    # The wrapper around it keeps the state of one stream in itself; the inner network is given it with each call.
    return torch.jit.load(str(path), map_location="cpu").eval()._model


@dataclass(frozen=True)
class EnergyEndpoint(EndpointPolicy):
    """Speech as what is louder than the background, with no network; for quiet rooms and where Silero is absent.

    The background is the quietest 96 ms of the last `memory` seconds (minimum statistics, 2001): steady noise is
    taken for background from the start, noise that grows louder after at most `memory` seconds. Sound much
    quieter than the loudest of that time counts as breath. Music and other people's speech count as speech, and
    a far quieter speaker who follows at once is noticed late.

    Parameters
    ----------
    margin
        Decibels above the background that are speech for sure; 12 by default. Half of it counts as 0.5.
    reach
        Decibels below the loudest that still count as 0.5; 18 by default.
    floor
        Decibels below full scale under which nothing is speech; -55 by default.
    memory
        Seconds over which the background and the loudest are looked for; 4 by default, longer than people speak
        without a breath.

    Notes
    -----
    Its other parameters are those of :class:`EndpointPolicy`.

    Examples
    --------
    >>> listener = EnergyEndpoint().listen()
    >>> tone = torch.sin(torch.arange(512) / 5)
    >>> [listener(loud * tone) > 0.5 for loud in (0.001, 0.001, 0.1, 0.1)]
    [False, False, True, True]
    """

    margin: float = 12.0
    reach: float = 18.0
    floor: float = -55.0
    memory: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(is_number(self.margin, 1, 60), "margin", "between 1 and 60 decibels, such as 12.0")
        self._require(is_number(self.reach, 1, 60), "reach", "between 1 and 60 decibels, such as 18.0")
        self._require(is_number(self.floor, -120, 0), "floor", "between -120 and 0 decibels, such as -55.0")
        self._require(is_number(self.memory, 0.5, 60), "memory", "between 0.5 and 60 seconds, such as 4.0")

    def listen(self) -> VoiceActivityDetector:
        return _EnergyDetector(self)


class _EnergyDetector:
    def __init__(self, policy: EnergyEndpoint) -> None:
        self.policy = policy
        self.levels: deque[float] = deque(maxlen=3)
        frames = math.ceil(policy.memory * RATE / FRAME)
        self.background, self.loudest = _Least(frames), _Least(frames)

    def __call__(self, frame: torch.Tensor) -> float:
        level = decibels(frame)
        self.levels.append(level)
        background = self.background(sum(self.levels) / len(self.levels))
        loudest = -self.loudest(-level)
        if level < self.policy.floor:
            return 0.0
        even = max(background + self.policy.margin / 2, loudest - self.policy.reach)
        return min(max(0.5 + (level - even) / self.policy.margin, 0.0), 1.0)


class _Least:
    """The least of the last `count` values."""

    def __init__(self, count: int) -> None:
        self.count, self.seen = count, 0
        self.rising: deque[tuple[int, float]] = deque()  # those that no later one undercuts

    def __call__(self, value: float) -> float:
        while self.rising and self.rising[-1][1] >= value:
            self.rising.pop()
        self.rising.append((self.seen, value))
        self.seen += 1
        if self.rising[0][0] < self.seen - self.count:
            self.rising.popleft()
        return self.rising[0][1]


def decibels(samples: torch.Tensor) -> float:
    """Level of audio `[n]` relative to full scale, at least -100; a constant offset, as of microphones, is no sound."""
    power = float(samples.var(correction=0))
    return 10 * math.log10(max(power, 1e-10))


def find_endpoint(endpoint: str | EndpointPolicy) -> EndpointPolicy:
    """An endpoint policy by name: ``"auto"``, ``"silero"`` or ``"energy"``; a policy is returned unchanged.

    ``"auto"`` is Silero if its package is installed, else energy.
    """
    if isinstance(endpoint, EndpointPolicy):
        return endpoint
    known: dict[str, type[EndpointPolicy]] = {"silero": SileroEndpoint, "energy": EnergyEndpoint}
    known["auto"] = SileroEndpoint if _silero_file() else EnergyEndpoint
    if endpoint not in known:
        raise unknown_name("endpoint", str(endpoint), sorted(known))
    return known[endpoint]()
