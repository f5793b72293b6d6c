"""Work that several threads ask for, done together: each waits, and one of them does it for all."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from mmaccel.machine import with_autocast

Work = Callable[[list[Any]], Sequence[Any]]


class _Asked:
    """What one thread waits for."""

    def __init__(self, work: Work, item: Any) -> None:
        self.work, self.item = work, item
        self.result: Any = None
        self.trace: TracebackType | None = None
        self.error: BaseException | None = None
        self.is_done = False

    def outcome(self) -> Any:
        """The result; an error is raised as it was, though other threads raise it too."""
        if self.error is not None:
            raise self.error.with_traceback(self.trace)
        return self.result


class Gathering:
    """Threads that ask for the same kind of work at about the same time, and get it done in one batch.

    Work begins as soon as every thread that is within :meth:`joined` has asked for some: nobody waits for time to go
    by, and a thread that is alone is served at once. Where they ask for different work, the kind that came first at the
    beginning comes first: who still has to encode then joins the passes of those who decode. This is iteration-level
    scheduling (Orca, 2022): a thread asks for one pass at a time, so that texts of any length begin and end between
    passes.

    Parameters
    ----------
    lock
        Held while work is done, such as one that guards a model.

    Attributes
    ----------
    sizes
        How many batches there were of each work and size, as a count for ``(name, size)``.

    Examples
    --------
    >>> gathering = Gathering(threading.Lock())
    >>> with gathering.joined():
    ...     gathering.ask(lambda items: [2 * item for item in items], 21)
    42
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self.lock = lock
        self.sizes: Counter[tuple[str, int]] = Counter()
        self._kinds: list[Work] = []  # as they were asked for first
        # One thread for all of it: each thread that computes keeps buffers of its own.
        self._worker = ThreadPoolExecutor(1, "mmaccel batch")
        self._changed = threading.Condition()
        self._asked: list[_Asked] = []
        self._working = 0  # threads that are joined, and wait for nothing
        self._is_busy = False
        self._depth = threading.local()

    @contextmanager
    def joined(self) -> Iterator[None]:
        """While open, this thread is going to ask for work, and that of others waits for it."""
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        if not depth:
            self._count(1)
        try:
            yield
        finally:
            self._depth.value = depth
            if not depth:
                self._count(-1)

    def _count(self, more: int) -> None:
        with self._changed:
            self._working += more
            self._changed.notify_all()

    def ask(self, work: Work, item: Any) -> Any:
        """The result of `work` for `item`; what others ask of equal `work` is in the same list.

        An error is raised in every thread whose item was in the list.
        """
        asked = _Asked(work, item)
        with self.joined(), self._changed:
            self._asked.append(asked)
            self._working -= 1
            self._changed.notify_all()
            try:
                self._wait_for(asked)
            finally:
                if asked in self._asked:  # interrupted
                    self._asked.remove(asked)
                    self._working += 1
        return asked.outcome()

    def _wait_for(self, asked: _Asked) -> None:
        while not asked.is_done:
            if self._asked and not self._is_busy and not self._working:
                self._do_some()
            else:
                self._changed.wait()

    def _do_some(self) -> None:
        """Do the first kind of work that there is; others may ask for more meanwhile."""
        waiting = [asked.work for asked in self._asked]
        self._kinds += [work for work in dict.fromkeys(waiting) if work not in self._kinds]
        work = min(waiting, key=self._kinds.index)
        batch = [asked for asked in self._asked if asked.work == work]
        self._asked = [asked for asked in self._asked if asked.work != work]
        self._is_busy = True
        self.sizes[work.__name__, len(batch)] += 1
        self._changed.release()
        done = self._worker.submit(with_autocast(self._do), work, batch)
        try:
            wait([done])
        finally:
            wait([done])  # also where the first was interrupted
            self._changed.acquire()
            self._is_busy = False
            self._working += len(batch)
            for asked in batch:
                asked.is_done = True
            self._changed.notify_all()

    def _do(self, work: Work, batch: list[_Asked]) -> None:
        try:
            with self.lock:
                results = work([asked.item for asked in batch])
            for asked, result in zip(batch, results, strict=True):
                asked.result = result
        except BaseException as error:
            for asked in batch:
                asked.error, asked.trace = error, error.__traceback__
