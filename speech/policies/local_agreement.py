"""LocalAgreement: a word stays once hypotheses in a row agree on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from mmaccel.method import is_count

from ..stream.units import covered, same
from .policy import Commitment, SegmentHypothesis, StreamingPolicy


@dataclass(frozen=True)
class LocalAgreement(StreamingPolicy):
    """Commit the words that `n` hypotheses in a row begin with (Liu, Spanakis, Niehues, 2020; Whisper-Streaming, 2023).

    Fits every recogniser: only texts are compared, without case and punctuation. Only the parts of the hypotheses
    behind the committed words are compared, so that a change in an early word does not hold back later ones.

    Parameters
    ----------
    n
        Hypotheses that must agree, default 2 as in both papers. 1 commits everything at once, and is often wrong.

    Raises
    ------
    SettingError
        If `n` is not a count from 1 to 10.

    Examples
    --------
    >>> policy = LocalAgreement(2)  # try again | try again fail -> "try again" stays
    """

    n: int = 2

    def __post_init__(self) -> None:
        self._require(is_count(self.n, 1, 10), "n", "between 1 and 10 hypotheses, such as 2")

    def _commitment(self, committed: Sequence[str]) -> Commitment:
        return _Agreement(self.n, committed)


class _Agreement(Commitment):
    def __init__(self, n: int, committed: Sequence[str]) -> None:
        super().__init__(committed)
        self.before: deque[list[str]] = deque(maxlen=n - 1)

    def sure(self, hypothesis: SegmentHypothesis, said: list[str], rest: list[str]) -> int:
        rests = [one[covered(self.committed, one) :] for one in self.before]
        full = len(self.before) == self.before.maxlen
        self.before.append(said)
        if not full:
            return 0
        return min((_agreement(rest, other) for other in rests), default=len(rest))


def _agreement(left: list[str], right: list[str]) -> int:
    """Units that two texts share at their start."""
    return sum(1 for _ in takewhile(lambda pair: same(*pair), zip(left, right, strict=False)))
