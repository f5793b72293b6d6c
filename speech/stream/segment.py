"""The state of a stream's current segment."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

from ..decoding.redecode import Hypothesis
from ..families.adapter import Encoded, Word
from ..policies.policy import Commitment
from .events import Partial
from .stats import StreamStats
from .units import covered, matches, units


class Segment:
    """One segment of a stream, from its first hypothesis to its final.

    Attributes
    ----------
    prompt
        Tokens that its decoder starts from.
    commitment
        The committed words.
    audio
        What was made of its beginning, if that stays.
    draft
        Tokens of the last hypothesis.
    final
        The samples and the result of the last hypothesis that can be final.
    words
        A final hypothesis with its words.
    span, heard
        Samples of the last hypothesis and whether it took the audio to end there, and its result.
    times
        When each committed unit was committed, on both clocks.
    began
        Seconds of the stream at which its speech began, None if its first text was counted.
    shown
        Whether a partial of it was made.
    eager
        When its text was told early, on both clocks; None if it was not, or speech went on.
    """

    def __init__(self, prompt: tuple[int, ...], commitment: Commitment, audio: Any = None) -> None:
        self.prompt, self.commitment, self.audio = prompt, commitment, audio
        self.draft: tuple[int, ...] = ()
        self.span = (0, 0, False)
        self.heard: tuple[Encoded, Hypothesis] | None = None
        self.final: tuple[tuple[int, int], Hypothesis] | None = None
        self.words: tuple[Hypothesis, list[Word]] | None = None
        self.times: list[tuple[float, float]] = []
        self.began: float | None = None
        self.shown = False
        self.eager: tuple[float, float] | None = None
        self._stable = self._unstable = ""
        self._paused: tuple[Encoded, Hypothesis] | None = None  # the last look that took the audio to end
        self._since = 0  # samples of this segment behind the beginning of the one that it was a look at

    def partial(self, time: float) -> Partial | None:
        """An event if the text has changed."""
        stable, unstable = "".join(self.commitment.committed), "".join(self.commitment.tail)
        if (stable, unstable) == (self._stable, self._unstable):
            return None
        delta = stable[len(self._stable) :]
        self._stable, self._unstable, self.shown = stable, unstable, True
        return Partial(stable, unstable, delta, time)

    def ahead(self) -> tuple[int, ...]:
        """Tokens that were drawn with silence behind a pause, and that the last hypothesis has not come to."""
        if self.span[2]:
            self._paused, self._since = self.heard, 0
        if self.span[2] or self._paused is None or self.heard is None:
            return ()
        before, now = self._paused[1].tokens, self.heard[1].tokens
        starts, reached = (one[0].hidden_states[0, :, 1].tolist() for one in (self._paused, self.heard))
        first = len(before) - len(remainder(before, now))
        behind = zip(before[first:], starts[first:], strict=True)
        return tuple(token for token, start in behind if start - self._since > max(reached, default=-1.0))

    def note(self, stats: StreamStats, heard: float, ready: float) -> None:
        """Keep when words were committed, when there was the first text, and what the policy asked of the decoder."""
        stats.decoder_calls += self.commitment.passes
        self.times += [(heard, ready)] * (len(self.commitment.committed) - len(self.times))
        if self.began is not None and self.shown:
            stats.first_partial.add(self.began, heard, ready)
            self.began = None

    def count(self, stats: StreamStats, words: Sequence[Word], promised: int, heard: float, ready: float) -> None:
        """Of the words of its final, `promised` were shown as stable before, and the others come now."""
        said = [(unit, word.end) for word in words for unit in units(word.text)]
        found = {of: at for at, of in matches(self.commitment.committed[:promised], [unit for unit, _ in said])}
        stats.words += len(words)
        stats.committed += promised
        stats.retracted += promised - len(found)
        for place, (_, end) in enumerate(said):
            stats.word_lag.add(end, *(self.times[found[place]] if place in found else (heard, ready)))

    def last(self, carried: int) -> list[str]:
        """The committed units that the next segment begins with."""
        found = self.commitment.committed[len(self.commitment.committed) - carried :]
        return [unit.lstrip() if place == 0 else unit for place, unit in enumerate(found)]

    def follow(self, before: Segment, carried: int, draft: tuple[int, ...], final: str, samples: int = 0) -> None:
        """Go on from a segment that was cut in the middle of speech, with what its final does not say already.

        Of that one, `samples` are before this one.
        """
        self.times = before.times[len(before.times) - carried :]
        committed, tail = before.commitment.committed, before.commitment.tail
        tail = tail[max(0, covered(units(final), [*committed, *tail]) - len(committed)) :]
        # the first unit of a text has no space before it
        self.commitment.tail = tail if carried or not tail else [tail[0].lstrip(), *tail[1:]]
        self.draft = draft
        self._paused, self._since = before._paused, before._since + samples

    def carried(self, final: str) -> int:
        """How many committed units are behind the final of a segment that was cut in the middle of speech."""
        committed = self.commitment.committed
        return len(committed) - covered(units(final), committed)


def remainder(tokens: Sequence[int], final: Sequence[int]) -> tuple[int, ...]:
    """Tokens of a hypothesis behind those that a final of its first part has.

    Examples
    --------
    >>> remainder((5, 6, 7, 8, 9), (5, 6, 4, 7))
    (8, 9)
    """
    blocks = SequenceMatcher(None, tokens, final, autojunk=False).get_matching_blocks()
    return tuple(tokens[max((block.a + block.size for block in blocks if block.size), default=0) :])
