"""Statistics of a stream: latency of the text, retracted words, and cost."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# Lags that are kept, the latest: an hour of speech is about 9,000 words.
KEPT = 10_000


@dataclass
class Lags:
    """Times from speech to text in seconds, on two clocks.

    Attributes
    ----------
    heard
        Measured in received audio, as if computing took no time (the compute-unaware clock).
    ready
        With the time for computing, and for what still waited to be computed (the compute-aware clock): what a
        listener notices when the audio comes in real time.
    """

    heard: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    ready: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, since: float, heard: float, ready: float) -> None:
        """Text of what was spoken at `since` came at `heard` and `ready`."""
        self.heard.append(heard - since)
        self.ready.append(ready - since)

    def to_dict(self) -> dict[str, Any]:
        """Median and 90th percentile on both clocks; None before the first."""
        clocks = {"heard": self.heard, "ready": self.ready}
        return {
            f"{clock}_p{percent}": quantile(values, percent / 100)
            for clock, values in clocks.items()
            for percent in (50, 90)
        }

    def __str__(self) -> str:
        if not self.heard:
            return "none"
        p = self.to_dict()
        return (
            f"p50 {p['heard_p50']:.2f} s, p90 {p['heard_p90']:.2f} s"
            f" (with computing {p['ready_p50']:.2f} s, {p['ready_p90']:.2f} s)"
        )


def quantile(values: Sequence[float] | deque[float], share: float) -> float | None:
    """The quantile at `share`, interpolated between the two nearest values.

    Examples
    --------
    >>> quantile([1.0, 2.0, 3.0], 0.5)
    2.0
    """
    if not values:
        return None
    if len(values) == 1:
        return float(values[0])
    return float(statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1])


@dataclass
class StreamStats:
    """Statistics of a stream.

    Attributes
    ----------
    audio_seconds, decoded_seconds, compute_seconds
        Seconds of audio received; of these, in segments with a final; seconds spent in `push` and `finish`.
    partial_decodes, finals
        Hypotheses on the way, and segments.
    decoder_calls, tokens, accepted
        Passes of the decoder for hypotheses, what policies and languages that are heard ask of it included (with CTC
        and of transducers one each); tokens, and those of them from drafts. One more pass for each final finds the
        times of its words, where tokens do not tell them.
    words, committed, retracted
        Words of finals, words promised in partials, and promised words that their final does not have.
    first_partial
        From the start of a segment's speech to its first text.
    finalisation
        From the end of a segment's speech to its final.
    eagers, eager
        Texts told early, and for those that were final: from the end of a segment's speech until then.
    word_lag
        From the end of each word to the partial that promised it, or to its final.
    """

    audio_seconds: float = 0.0
    decoded_seconds: float = 0.0
    compute_seconds: float = 0.0
    partial_decodes: int = 0
    finals: int = 0
    decoder_calls: int = 0
    tokens: int = 0
    accepted: int = 0
    words: int = 0
    committed: int = 0
    retracted: int = 0
    eagers: int = 0
    first_partial: Lags = field(default_factory=Lags)
    finalisation: Lags = field(default_factory=Lags)
    eager: Lags = field(default_factory=Lags)
    word_lag: Lags = field(default_factory=Lags)

    @property
    def real_time_factor(self) -> float:
        """Seconds of computing for each second of audio."""
        return self.compute_seconds / self.audio_seconds if self.audio_seconds else 0.0

    @property
    def retracted_share(self) -> float:
        """Share of the promised words that their finals do not have."""
        return self.retracted / self.committed if self.committed else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All figures, ready for JSON."""
        plain = {name: getattr(self, name) for name, kind in self.__annotations__.items() if kind != "Lags"}
        lags = {name: getattr(self, name).to_dict() for name, kind in self.__annotations__.items() if kind == "Lags"}
        shares = {"real_time_factor": self.real_time_factor, "retracted_share": self.retracted_share}
        return {**plain, **shares, **lags}

    def __str__(self) -> str:
        segments = f"{self.finals} segment{'' if self.finals == 1 else 's'}"
        lines = [
            f"stream of {self.audio_seconds:.1f} s, {self.decoded_seconds:.1f} s of it in {segments}",
            f"  computing     {self.compute_seconds:.2f} s, real-time factor {self.real_time_factor:.3f}",
            f"  decoder       {self.decoder_calls} calls for {self.tokens} tokens, {self.accepted} from drafts",
            f"  words         {self.words}, {self.committed} promised early, {self.retracted_share:.1%} taken back",
        ]
        lags = {"first partial": self.first_partial, "word lag": self.word_lag, "finalisation": self.finalisation}
        lines += [f"  {name:<13} {lag}" for name, lag in lags.items() if lag.heard]
        if self.eagers:
            lines.append(f"  told early    {self.eager}, {len(self.eager.heard)} of {self.eagers} final")
        return "\n".join(lines)

    __repr__ = __str__  # what a notebook shows


class RealTimeClock:
    """Tells when a result is ready if audio comes in real time, however fast it is pushed."""

    def __init__(self) -> None:
        self.ready = 0.0

    def spend(self, heard: float, seconds: float) -> float:
        """After `seconds` of computing on audio that had come at `heard`; work waits for the work before it."""
        self.ready = max(self.ready, heard) + seconds
        return self.ready
