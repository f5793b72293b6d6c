"""Base of the policies, which decide which words of a hypothesis stay while the speaker goes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from mmaccel.method import Checked

from ..families.adapter import Encoded, SpeechAdapter
from ..stream.units import behind, covered, units

# Hypotheses of a segment: four looks, often less than 0.2 s apart, for each of the ten that LocalAgreement compares at
# most.
REMEMBERED = 40


@dataclass(frozen=True)
class SegmentHypothesis:
    """A hypothesis of a segment so far, and its inputs.

    Attributes
    ----------
    adapter, encoded, prompt
        The model's adapter, the audio, and the tokens that the decoder started from.
    tokens
        Of the hypothesis, without prompt and end.
    ended
        Whether the model ended it; a hypothesis that reached the limit is in a loop.
    settled
        How many of the tokens stay whatever follows, of models that tell; else None.
    ahead
        Tokens of an earlier hypothesis behind these, which are shown, and not promised.
    """

    adapter: SpeechAdapter
    encoded: Encoded
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    ended: bool = True
    settled: int | None = None
    ahead: tuple[int, ...] = ()

    @property
    def units(self) -> list[str]:
        """Its words."""
        return units(self.adapter.text(self.tokens))

    def whole(self, count: int | None) -> int:
        """How many of its words are whole in its first `count` tokens."""
        pairs = zip(units(self.adapter.text(self.tokens[:count])), self.units, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class Commitment:
    """The committed units of one segment; units are only ever added.

    Attributes
    ----------
    policy
        Decides how many.
    committed
        Units that stay.
    tail
        Units of the last hypothesis behind them, and what is shown ahead of it.
    heard
        Seconds of audio and units of the hypotheses before, the latest last; none that is in a loop.
    passes
        Passes of the decoder that the last hypothesis took here.
    """

    def __init__(self, policy: StreamingPolicy, committed: Sequence[str] = ()) -> None:
        self.policy, self.committed = policy, list(committed)
        self.tail: list[str] = []
        self.heard: deque[tuple[float, list[str]]] = deque(maxlen=REMEMBERED)
        self.passes = 0

    def update(self, hypothesis: SegmentHypothesis) -> list[str]:
        """Add a hypothesis; returns the newly committed units."""
        said = hypothesis.units
        rest = self._rest(said)
        self.passes = count = 0
        if hypothesis.ended:  # what is in a loop must not be promised
            count = self.policy.sure(self, hypothesis, said, rest)
            self.heard.append((hypothesis.encoded.seconds, said))
        self.committed += rest[:count]
        shown = units(hypothesis.adapter.text((*hypothesis.tokens, *hypothesis.ahead))) if hypothesis.ahead else []
        self.tail = self._rest(shown) if shown else rest[count:]
        return rest[:count]

    def _rest(self, said: list[str]) -> list[str]:
        """Units behind those that are committed."""
        rest = said[covered(self.committed, said) :]
        if self.committed and rest and len(rest) == len(said):  # the first unit of a text has no space before it
            rest[0] = behind(self.committed[-1], rest[0])
        return rest


class StreamingPolicy(Checked, ABC):
    """Base of the policies; subclasses are frozen dataclasses, whose fields are the settings."""

    def begin(self, committed: Sequence[str] = ()) -> Commitment:
        """What is committed of a new segment, whose first units may be committed already."""
        return Commitment(self, committed)

    @abstractmethod
    def sure(self, commitment: Commitment, hypothesis: SegmentHypothesis, said: list[str], rest: list[str]) -> int:
        """How many units of `rest` stay: those of `said`, the hypothesis, that are not committed yet."""

    def check(self, adapter: SpeechAdapter) -> None:  # noqa: B027  optional, most policies fit every recogniser
        """Raise `UnsupportedTargetError` if a recogniser cannot serve this policy."""
