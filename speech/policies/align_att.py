"""AlignAtt: a word stays once the decoder's attention for it is far enough from the end of the audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmaccel.errors import UnsupportedTargetError
from mmaccel.method import is_number

from ..families.adapter import SpeechAdapter
from .policy import Commitment, SegmentHypothesis, StreamingPolicy


@dataclass(frozen=True)
class AlignAtt(StreamingPolicy):
    """Commit the words before the first one that attends to the end of the audio (Papi et al., 2023).

    One hypothesis suffices; a word stays once `margin` seconds are behind it, and each update takes one more pass of
    the decoder. On the recordings of the benchmark (docs/benchmarks/speech.md) half of the words stay 0.08 s sooner
    than by two hypotheses that must agree with Moonshine tiny, and no sooner with Whisper tiny.en; of both three to
    four times as many are taken back. Scores are those of the heads that follow the speech, each relative to its mean
    over the tokens and smoothed over 7 frames, as in SimulStreaming (2025). For encoders that see all audio at once;
    the better a model's heads follow the speech, the safer.

    Parameters
    ----------
    margin
        Seconds before the end of the audio; a token that attends there, and all after it, may still change. Default
        0.5, SimulStreaming's 25 frames of 20 ms.
    rewind
        Seconds; a token that attends this much further back than the one before begins a loop, and nothing from it
        on stays. Default 4, SimulStreaming's 200 frames.

    Raises
    ------
    SettingError
        If a setting is out of range.
    UnsupportedTargetError
        From the recogniser, if its adapter does not tell where the decoder looks.

    Examples
    --------
    >>> AlignAtt(margin=0.3).rewind
    4.0
    """

    margin: float = 0.5
    rewind: float = 4.0

    def __post_init__(self) -> None:
        self._require(is_number(self.margin, 0, 10), "margin", "between 0 and 10 seconds, such as 0.5")
        self._require(is_number(self.rewind, 0.1, 60), "rewind", "between 0.1 and 60 seconds, such as 4.0")

    def check(self, adapter: SpeechAdapter) -> None:
        if not hasattr(adapter, "attention"):
            name = type(adapter.target).__name__
            raise UnsupportedTargetError(
                f"AlignAtt() needs the decoder's cross-attention, which the adapter of {name} does not give:"
                " pass policy=speech.LocalAgreement(2)"
            )

    def sure(self, commitment: Commitment, hypothesis: SegmentHypothesis, said: list[str], rest: list[str]) -> int:
        if not rest:
            return 0
        commitment.passes = 1
        adapter: Any = hypothesis.adapter
        scores = adapter.attention(hypothesis.encoded, hypothesis.tokens, hypothesis.prompt)[: len(hypothesis.tokens)]
        times = [frame * adapter.frame_seconds for frame in scores.argmax(-1).tolist()]
        # a word whose next token is not settled is not whole
        count = hypothesis.whole(self.settled(times, hypothesis.encoded.seconds))
        return max(count - (len(said) - len(rest)), 0)

    def settled(self, times: Sequence[float], seconds: float) -> int:
        """How many tokens stay, by the second of the audio that each looked at.

        Examples
        --------
        >>> AlignAtt(margin=0.5).settled([0.2, 0.9, 1.6, 1.2], seconds=2.0)
        2
        >>> AlignAtt(rewind=4).settled([0.2, 5.0, 0.9, 5.2], seconds=9.0)
        2
        """
        before = 0.0
        for place, time in enumerate(times):
            if seconds - time <= self.margin or before - time > self.rewind:
                return place
            before = time
        return len(times)
