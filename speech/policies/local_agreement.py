"""LocalAgreement: a word stays once hypotheses in a row agree on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from mmaccel.method import is_count

from ..stream.units import blocks, covered, same
from .policy import Commitment, SegmentHypothesis, StreamingPolicy

# Seconds of audio between hypotheses that count as two: the last look at an interval and the one at a pause that begins
# can be a frame apart, and say the same of a word that is cut off.
APART = 0.2
MOST = 2  # words of a disagreement that is passed over


@dataclass(frozen=True)
class LocalAgreement(StreamingPolicy):
    """Commit the words that `n` hypotheses in a row begin with (Liu, Spanakis, Niehues, 2020; Whisper-Streaming, 2023).

    Fits every recogniser: only texts are compared, without case and punctuation. Only the parts of the hypotheses
    behind the committed words are compared, so that a change in an early word does not hold back later ones. Unlike in
    the papers, neither does a word that they write differently again and again: where enough words behind it agree, it
    stays as the last hypothesis has it.

    Parameters
    ----------
    n
        Hypotheses that must agree, default 2 as in both papers, each with 0.2 s more audio than the one before. 1
        commits everything at once, and is often wrong.
    bridge
        Words that must agree behind one or two that do not; default 3. 0 stops at the first that does not agree, as in
        both papers.

    Raises
    ------
    SettingError
        If `n` is not a count from 1 to 10, or `bridge` from 0 to 10.

    Examples
    --------
    >>> policy = LocalAgreement(2)  # try again | try again fail -> "try again" stays
    """

    n: int = 2
    bridge: int = 3

    def __post_init__(self) -> None:
        self._require(is_count(self.n, 1, 10), "n", "between 1 and 10 hypotheses, such as 2")
        self._require(is_count(self.bridge, 0, 10), "bridge", "between 0 and 10 words, such as 3")

    def sure(self, commitment: Commitment, hypothesis: SegmentHypothesis, said: list[str], rest: list[str]) -> int:
        others = self._others(commitment, hypothesis.encoded.seconds)
        if len(others) < self.n - 1:
            return 0
        left = (one[covered(commitment.committed, one) :] for one in others)
        return min((agreed(other, rest, self.bridge) for other in left), default=len(rest))

    def _others(self, commitment: Commitment, seconds: float) -> list[list[str]]:
        """The hypotheses that this one is compared with, the latest first."""
        found: list[list[str]] = []
        for before, said in reversed(commitment.heard):
            if len(found) < self.n - 1 and seconds - before >= APART:
                found.append(said)
                seconds = before
        return found


def agreed(before: Sequence[str], now: Sequence[str], bridge: int = 0) -> int:
    """Units at the start of `now` that agree with `before`, and those in between that `bridge` agreed ones follow.

    Examples
    --------
    >>> agreed(["like", " the", " 22th"], ["like", " the", " 20th", " period"])
    2
    >>> agreed("so the one like no other is".split(), "so the 1 like no other was".split(), bridge=3)
    6
    """
    start = sum(1 for _ in takewhile(lambda pair: same(*pair), zip(before, now, strict=False)))
    first = second = 0  # behind the start
    for left, right, size in blocks(before[start:], now[start:]) if bridge else ():
        if size < bridge or max(left - first, right - second) > MOST:
            break
        first, second = left + size, right + size
    return start + second
