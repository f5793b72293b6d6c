"""One run of one visitor: its stages and their times, its progress, and how it is stopped."""

from __future__ import annotations

import html
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr
from torch import OutOfMemoryError

from mmaccel.errors import MmaccelError

LONGEST_MESSAGE = 600  # characters of an error that are shown
PAUSE = 0.1  # seconds between two updates of a progress bar
log = logging.getLogger("mmaccel.demo")


class Stopped(Exception):
    """The visitor pressed Stop, or left."""


class Run:
    """What the code of a tab tells the frame while it works.

    Parameters
    ----------
    progress
        Called with a share in [0, 1], or None where it is unknown, and with the name of the stage.

    Attributes
    ----------
    stages
        Seconds of each stage so far.
    """

    def __init__(self, progress: Callable[[float | None, str], Any] = lambda share, name: None) -> None:
        self.stages: dict[str, float] = {}
        self._progress, self._stop, self._stage, self._told = progress, threading.Event(), "", 0.0

    def stop(self) -> None:
        """Let the next :meth:`check` end the run; from any thread."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        """Whether the visitor does not want it any more."""
        return self._stop.is_set()

    def check(self) -> None:
        """Raise `Stopped` if the visitor does not want it any more; call it often."""
        if self.stopped:
            raise Stopped

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block, and name it beside the progress bar."""
        self.check()
        self._stage, self._told = name, 0.0
        self._progress(0.0, name)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.stages[name] = self.stages.get(name, 0.0) + time.perf_counter() - began

    def tell(self, done: float, total: float) -> None:
        """How far the stage is; ends the run if the visitor does not want it any more."""
        self.check()
        if total and time.perf_counter() - self._told > PAUSE:
            self._told = time.perf_counter()
            self._progress(min(done / total, 1.0), self._stage)


class Runs:
    """The runs of all visitors, live or waiting, so that one who leaves or presses Stop ends only their own."""

    def __init__(self) -> None:
        self._live: dict[str, set[Run]] = defaultdict(set)
        self._guard = threading.Lock()

    @contextmanager
    def begin(self, visitor: str, progress: Callable[[float | None, str], Any]) -> Iterator[Run]:
        """A run of a visitor, live inside the block."""
        run = Run(progress)
        with self._guard:
            self._live[visitor].add(run)
        try:
            yield run
        finally:
            with self._guard:
                self._live[visitor].discard(run)
                if not self._live[visitor]:
                    del self._live[visitor]

    def stop(self, visitor: str) -> None:
        """Stop all runs of a visitor."""
        with self._guard:
            for run in self._live.get(visitor, ()):
                run.stop()

    def close(self, seconds: float = 10.0) -> None:
        """Stop all runs, and wait until they have ended: a process that ends in the middle of one aborts."""
        until = time.monotonic() + seconds
        while self.count() and time.monotonic() < until:
            with self._guard:
                for runs in self._live.values():
                    for run in runs:
                        run.stop()
            time.sleep(PAUSE)

    def count(self) -> int:
        """Live runs of all visitors."""
        with self._guard:
            return sum(len(runs) for runs in self._live.values())


@contextmanager
def readable() -> Iterator[None]:
    """Turn every error into a message for the browser: ours as they are, others into one that tells nothing."""
    try:
        yield
    except (gr.Error, Stopped):
        raise
    except MmaccelError as error:
        raise _message(" ".join(str(error).split()), "This cannot be done") from None
    except (MemoryError, OutOfMemoryError):
        log.exception("out of memory")
        raise _message("There is not enough memory for this: make it smaller.", "This cannot be done") from None
    except Exception:
        log.exception("a run failed")
        raise _message("Something went wrong; the server's log has the details.", "This failed") from None


def _message(text: str, title: str) -> gr.Error:
    """Escaped, since the browser shows it as HTML and it may repeat what a visitor typed."""
    short = text if len(text) <= LONGEST_MESSAGE else text[:LONGEST_MESSAGE] + " ..."
    return gr.Error(html.escape(short), duration=20, title=title, print_exception=False)
