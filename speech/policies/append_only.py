"""AppendOnly: a word stays once the next one has begun, for encoders that never change their past output."""

from __future__ import annotations

from dataclasses import dataclass

from mmaccel.errors import UnsupportedTargetError
from mmaccel.method import is_count

from ..families.adapter import SpeechAdapter
from .policy import Commitment, SegmentHypothesis, StreamingPolicy


@dataclass(frozen=True)
class AppendOnly(StreamingPolicy):
    """Commit all words of each hypothesis except the last ones, which more audio may complete.

    For streaming encoders, such as those of Moonshine v2: their output for past audio stays, so that little except
    the current word can change. Commits earlier than :class:`~mmaccel.speech.LocalAgreement`, but for models whose
    tokens wait for what follows (Nemotron by its lookahead, Kyutai STT and Voxtral Realtime by their delay): what these
    say with silence in its place is not promised.

    Parameters
    ----------
    hold
        Words at the end that are held back; default 1. 0 suits models that emit whole words.

    Raises
    ------
    SettingError
        If `hold` is not a count from 0 to 10.
    UnsupportedTargetError
        From the recogniser, if its encoder does not only append.

    Examples
    --------
    >>> AppendOnly().hold
    1
    """

    hold: int = 1

    def __post_init__(self) -> None:
        self._require(is_count(self.hold, 0, 10), "hold", "between 0 and 10 words, such as 1")

    def check(self, adapter: SpeechAdapter) -> None:
        if not adapter.appends:
            name = type(adapter.target).__name__
            raise UnsupportedTargetError(
                f"AppendOnly() needs an encoder that only appends; that of {name} looks at all audio again:"
                " pass policy=speech.LocalAgreement(2)"
            )

    def sure(self, commitment: Commitment, hypothesis: SegmentHypothesis, said: list[str], rest: list[str]) -> int:
        said_before = len(said) - len(rest)
        return max(hypothesis.whole(hypothesis.settled) - self.hold - said_before, 0)
