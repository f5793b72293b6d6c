"""Finals that are decoded again with the speech before them: what is short alone is easier to hear in context."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..audio.endpoint import RATE
from ..audio.sample_buffer import SampleBuffer
from ..decoding.loops import repeats
from ..decoding.redecode import Hypothesis
from .units import units

if TYPE_CHECKING:
    from .recognizer import StreamingRecognizer

# Seconds from a segment's tail to the padding of the next that are still one speech: a breath, no new sentence.
BREATH = 0.4
# A second pass with fewer of the words than this share has left some out, as a decoder does that takes them for said;
# one with as many times more says them again.
LEAST = 0.7
# Seconds of a segment from which on its own language counts: of a word or two Whisper often hears another.
TELLING = 2.0


@dataclass(frozen=True)
class Said:
    """A segment that is final: its samples from `start` to `end`, its tokens, and its language if that is sure."""

    start: int
    end: int
    tokens: tuple[int, ...]
    language: str = ""


class Rejoined:
    """The segments before the one that is on, as far as its final is decoded with them.

    Parameters
    ----------
    recognizer
        Decodes; its `rejoin` says how many seconds at most are decoded together.
    """

    def __init__(self, recognizer: StreamingRecognizer) -> None:
        self.recognizer, self.most = recognizer, round(recognizer.rejoin * RATE)
        self._said: list[Said] = []

    def needed_from(self, start: int) -> int:
        """The first sample that a final may want, where no segment can begin before `start` any more."""
        if self._said and start - self._said[-1].end > BREATH * RATE:
            self._said = []
        return self._said[0].start if self._said else start

    def add(self, start: int, end: int, heard: Hypothesis) -> None:
        """A segment is final; none goes on from a text in a loop, which is longer than what was said."""
        if not self.most or not heard.tokens:
            return
        if heard.ended and not repeats(self.recognizer.adapter.text(heard.tokens)):
            language = _sure_language(start, end, heard)
            self._said = [*self._before(start, end, language), Said(start, end, heard.tokens, language)]
        else:
            self._said = []

    def _before(self, start: int, end: int, language: str) -> list[Said]:
        """Segments without a longer pause up to `start`, none of another language, as many as fit up to `end`."""
        found: list[Said] = []
        for one in reversed(self._said):
            if start - one.end > BREATH * RATE or end - one.start > self.most or _differ(one.language, language):
                break
            found.insert(0, one)
            start = one.start
        return found

    def hear(self, buffer: SampleBuffer, start: int, end: int, alone: Hypothesis) -> Hypothesis:
        """What is heard from `start` to `end` behind those before; `alone` where it does not fit or is no better."""
        language = _sure_language(start, end, alone)
        before = self._before(start, end, language)
        if not before or not alone.tokens:
            return alone
        adapter = self.recognizer.adapter
        prompt = [*adapter.prompt(), *(token for one in before for token in one.tokens)]
        if not adapter.has_room(prompt, (end - before[0].start) / RATE):
            return alone
        _, found = self.recognizer.hear(buffer.read(before[0].start, end), prompt, alone.tokens)
        text, words = adapter.text(found.tokens), len(units(adapter.text(alone.tokens)))
        is_whole = LEAST * words <= len(units(text)) <= words / LEAST
        is_better = found.ended and is_whole and not _differ(found.language, language) and not repeats(text)
        chosen = found if is_better else alone
        return replace(chosen, forwards=alone.forwards + found.forwards)


def _sure_language(start: int, end: int, heard: Hypothesis) -> str:
    """The language of a segment; empty where it is too short to tell."""
    return heard.language if end - start >= TELLING * RATE else ""


def _differ(one: str, other: str) -> bool:
    """Whether two languages are known, and not the same: speech that goes on in another is no part of what was said."""
    return bool(one and other) and one != other
