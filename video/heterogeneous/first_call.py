"""What a measured call leaves for those after it: whether they are measured too, what they are compared with, and why
others stay plain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..families.adapter import PipelineSession

IDLE = "idle"  # by this name a session remembers the numbers of steps at which no setting left any out
UNPICKED = "unpicked"  # and by this why nothing was picked
UNMEASURED = "measures calls of the session alone, fast(...): it had no part in this one of the pipeline itself"


def is_idle(memory: dict[str, Any], steps: float) -> bool:
    """Whether a call of so many steps, or inf for an unknown number, was measured for nothing, or one of more was.

    Examples
    --------
    >>> [is_idle({IDLE: (4, math.inf)}, steps) for steps in (3, 4, 5, math.inf)]
    [True, True, False, True]
    """
    found = memory.get(IDLE, ())
    return steps in found or any(steps <= most < math.inf for most in found)


def compare_once(session: PipelineSession, seconds: float) -> None:
    """Compare the coming run of a session with a plain one of so many seconds, and no later run, which may be another.

    Later runs have the baseline of before again, or one that is measured meanwhile.
    """
    runs, before = itertools.count(), session.report.baseline_seconds

    @contextmanager
    def compared() -> Iterator[None]:
        is_later = next(runs) > 0
        if is_later and session.report.baseline_seconds == seconds:
            session.report.baseline_seconds = before
        yield
        if is_later and compared in session.around:
            session.around.remove(compared)

    session.report.baseline_seconds = seconds
    session.around.append(compared)


class PlainRuns:
    """Tells of a run that stays plain why it does: nothing was picked, or no call of the session makes it."""

    def __init__(self, session: PipelineSession, method: str) -> None:
        self.session, self.method = session, method
        self.is_called = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call of the session."""
        if UNPICKED in self.session.memory:
            self.session.report.warn(self.session.memory[UNPICKED])
        self.is_called = True
        try:
            yield
        finally:
            self.is_called = False

    def set_timesteps(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A run begins."""
        if self.is_called:
            return original(*args, **kwargs)
        self.session.report.start()
        result = original(*args, **kwargs)  # what other methods follow begins its own report
        self.session.report.warn(self.session.memory.get(UNPICKED) or f"{self.method} {UNMEASURED}")
        return result
