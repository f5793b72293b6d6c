"""Segments of speech from the likelihood of frames: when to decode again, and where a text is final."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from mmaccel.errors import SettingError
from mmaccel.method import is_number

from ..audio.endpoint import FRAME, RATE, EndpointPolicy


@dataclass(frozen=True)
class Look:
    """Time for a new hypothesis of the samples from `start` to `end`; the segment goes on.

    `settled` says that they are all that a final would have, if the pause that is on lasts.
    """

    start: int
    end: int
    settled: bool = False


@dataclass(frozen=True)
class Resume:
    """Speech goes on behind a settled look."""


@dataclass(frozen=True)
class Cut:
    """A segment is complete: the samples from `start` to `end`.

    `speech_end` is where its speech ended, `paused` whether a pause ended it, and not its length or the stream's end.
    """

    start: int
    end: int
    speech_end: int
    paused: bool


Task = Look | Resume | Cut


class Segmenter:
    """Follows one stream frame by frame; what it decides depends on the audio alone, not on how it was pushed.

    A segment starts `padding` before the first of 3 frames of speech. It ends `tail` behind the last speech once
    `silence` has gone by. Speech that is longer than `longest` is cut in the middle of the quietest 160 ms of the
    last third of that time, and what is behind the cut begins the next segment: no sample of speech is left out, and
    none is in two segments.

    Parameters
    ----------
    policy
        When segments start and end.
    update_interval
        Seconds between two looks at a segment; None for none.
    """

    ONSET = 3
    QUIET = 5
    STARTS = 1000  # that are kept

    def __init__(self, policy: EndpointPolicy, update_interval: float | None) -> None:
        self.policy = policy
        self.interval = None if update_interval is None else round(update_interval * RATE)
        self.padding, self.tail = round(policy.padding * RATE), round(policy.tail * RATE)
        self.silence = round(policy.silence * RATE)
        self.longest = round(policy.longest * RATE)
        self.position = 0  # behind the last frame
        self.start: int | None = None
        self.speech_start = self.speech_end = 0
        self._onset = 0
        self._taken = 0  # end of the last segment
        self._seen = self._next_look = 0
        self._settled = False  # whether a look had all of the audio of the pause that is on
        self.starts: deque[float] = deque(maxlen=self.STARTS)  # seconds at which speech began
        self._levels: deque[float] = deque(maxlen=math.ceil(self.longest / 3 / FRAME))

    @property
    def needed_from(self) -> int:
        """The first sample that a segment may still want."""
        if self.start is not None:
            return self.start
        return max(self.position - (self._onset + 1) * FRAME - self.padding, self._taken)

    def feed(self, likelihood: float, level: float) -> list[Task]:
        """Add a frame: its likelihood of speech, and its level in decibels."""
        self._levels.append(level)
        self.position += FRAME
        if self.start is None:
            return self._wait(likelihood)
        spoke = self.speech_end == self.position - FRAME
        resumed: list[Task] = []
        if likelihood >= (self.policy.lower_threshold if spoke else self.policy.threshold):
            self.speech_end = self.position
            resumed, self._settled = ([Resume()] if self._settled else []), False
        return resumed + (self._end() or self._look())

    def flush(self, total: int) -> list[Task]:
        """The stream has ended after `total` samples."""
        if self.start is None:
            return []
        start, self.start = self.start, None
        end = min(self.speech_end + self.tail, total)
        return [Cut(start, end, min(self.speech_end, total), False)]

    def _wait(self, likelihood: float) -> list[Task]:
        threshold = self.policy.lower_threshold if self._onset else self.policy.threshold
        self._onset = self._onset + 1 if likelihood >= threshold else 0
        if self._onset == self.ONSET:
            self._begin()
        return []

    def _begin(self) -> None:
        self.speech_start, self.speech_end = self.position - self.ONSET * FRAME, self.position
        self.starts.append(self.speech_start / RATE)
        self.start = self._seen = max(self.speech_start - self.padding, self._taken)
        self._onset, self._settled = 0, False
        self._next_look = self.position + (self.interval or 0)

    def _end(self) -> list[Task]:
        assert self.start is not None
        if self.position - self.speech_end >= self.silence:
            cut = Cut(self.start, self.speech_end + self.tail, self.speech_end, True)
            self.start, self._taken = None, cut.end
            return [cut]
        if self.position - self.start >= self.longest:
            at = self._quietest()
            if at < self.speech_end:  # else a pause is on, and ends the segment if it lasts
                cut = Cut(self.start, at, at, False)
                self.start = self._taken = self._seen = at
                self._settled = False
                return [cut]
        return []

    def _look(self) -> list[Task]:
        """A look where new audio was heard, at its time, and when the audio of a pause suffices for a final."""
        if self.interval is None or self.start is None:
            return []
        settled, was_settled = self.speech_end + self.tail, self._settled
        end = min(self.position, settled)
        self._settled = self.position > self.speech_end and self.position >= settled
        is_due = end > self._seen and self.position >= self._next_look
        if not is_due and (was_settled or not self._settled):
            return []
        on_time = self.position - FRAME < self._next_look <= self.position
        self._seen, self._next_look = end, (self._next_look if on_time else self.position) + self.interval
        return [Look(self.start, end, self._settled)]

    def _quietest(self) -> int:
        """Position of the middle of the quietest frames of the last third."""
        powers = [10 ** (level / 10) for level in self._levels]
        first = self.position - len(powers) * FRAME
        sums = [sum(powers[place : place + self.QUIET]) for place in range(len(powers) - self.QUIET + 1)]
        place = min(range(len(sums)), key=sums.__getitem__)
        return first + place * FRAME + self.QUIET * FRAME // 2


def check_update_interval(seconds: float | None) -> None:
    """Raise a `SettingError` for seconds between looks that no stream takes."""
    if seconds is not None and not is_number(seconds, 0.1, 60):
        raise SettingError(f"update_interval={seconds!r}: pass between 0.1 and 60 seconds, or None")
