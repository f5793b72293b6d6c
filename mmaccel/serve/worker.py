"""One thread that runs the model: a bounded queue before it, and batches of requests that fit together."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ..errors import MmaccelError, lacks_memory
from .endpoint import Answer, Endpoint, Left, Refused, Request, ends
from .metrics import Metrics

log = logging.getLogger("mmaccel.serve")
TOO_LARGE = "there is not enough memory for this: ask for less, such as fewer or smaller pictures, or fewer frames"


@dataclass
class Job:
    """A request that waits, or runs.

    Attributes
    ----------
    until
        When it is too late to begin, by `time.monotonic`.
    """

    request: Request
    until: float
    future: Future[Answer] = field(default_factory=Future)

    def begin(self) -> bool:
        """Whether it is still to be answered, now."""
        if self.request.left.is_set() or not self.future.set_running_or_notify_cancel():
            self.future.cancel()
            return False
        if time.monotonic() > self.until:
            self.future.set_exception(Refused(504, "it waited too long for its turn: try again later"))
            return False
        return True


class Worker:
    """Answers requests one batch after the other.

    Parameters
    ----------
    endpoint
        Whose requests they are.
    metrics
        Is told what happens.
    waiting
        Requests in the queue beside those that run; the next one is refused.
    batch
        Most rows of a batch of several requests; 1 answers requests one by one, each in one batch.
    """

    def __init__(self, endpoint: Endpoint[Any], metrics: Metrics, waiting: int = 16, batch: int = 4) -> None:
        self.endpoint, self.metrics, self.waiting, self.batch = endpoint, metrics, waiting, batch
        self._jobs: list[Job] = []
        self._running: list[Job] = []
        self._changed = threading.Condition()
        self._closed = False
        metrics.waiting.set_function(lambda: sum(not job.request.left.is_set() for job in self._jobs))
        self._thread = threading.Thread(target=self._work, name="mmaccel serve", daemon=True)
        self._thread.start()

    def check(self, coming: int) -> None:
        """Raise a `Refused` if the queue is full, or would be with those that are coming."""
        with self._changed:
            self._check(coming)

    def submit(self, request: Request, until: float) -> Future[Answer]:
        """Put a request into the queue.

        Raises
        ------
        Refused
            If the queue is full, or the server ends.
        """
        job = Job(request, until)
        with self._changed:
            self._check(0)
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def _check(self, coming: int) -> None:
        if self._closed:
            raise ends()
        count = len(self._waiting_jobs())
        if count >= self.waiting or count + coming > self.waiting:
            raise Refused(503, f"{count + coming} requests are waiting already: try again in a few seconds")

    def _waiting_jobs(self) -> list[Job]:
        """Those in the queue that somebody waits for; the others are dropped."""
        self._jobs = [job for job in self._jobs if not job.request.left.is_set()]
        return self._jobs

    def close(self) -> None:
        """Answer what runs, unless it was to be fetched later, refuse what waits, and end the thread."""
        with self._changed:
            self._closed = True
            self._leave_running()
            for job in self._jobs:
                if job.future.set_running_or_notify_cancel():  # its client may have left
                    job.future.set_exception(ends())
            self._jobs.clear()
            self._changed.notify()
        self._thread.join()

    def _leave_running(self) -> None:
        """Give up what could not be fetched any more, once the server ends."""
        if self._closed and self.endpoint.later:
            for job in self._running:
                job.request.left.set()

    def _work(self) -> None:
        while jobs := self._next():
            running = [job for job in jobs if job.begin()]
            with self._changed:
                self._running = running
                self._leave_running()
            if running:
                self._run(running)

    def _next(self) -> list[Job]:
        """The first request that waits, and others that fit into its batch; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting_jobs() or self._closed)
            if self._closed:
                return []
            taken = [self._jobs.pop(0)]
            group, rows = taken[0].request.group, taken[0].request.size
            for job in list(self._jobs) if group is not None else []:
                if job.request.group == group and rows + job.request.size <= self.batch:
                    self._jobs.remove(job)
                    taken.append(job)
                    rows += job.request.size
            return taken

    def _run(self, jobs: list[Job]) -> None:
        error = self._answer(jobs)
        if error is not None and len(jobs) > 1 and not isinstance(error, Left):
            for job in jobs:  # one of them is at fault, the others are not
                self._run([job])
        elif error is not None:
            for job in jobs:
                job.future.set_exception(error)

    def _answer(self, jobs: list[Job]) -> Exception | None:
        """Answer requests; what went wrong instead, without the tensors that a failed run held."""
        try:
            with self.metrics.batch(sum(job.request.size for job in jobs), self.endpoint.target):
                answers = self.endpoint.answer([job.request for job in jobs])
            for job, answer in zip(jobs, answers, strict=True):
                job.future.set_result(answer)
        except Exception as error:
            if len(jobs) == 1:
                _log(error)
            traceback.clear_frames(error.__traceback__)
            error.__cause__ = error.__context__ = None  # whose frames would stay as well
            return _told(error)
        return None


def _told(error: Exception) -> Exception:
    """What clients are told of it: one that asked for too much can ask for less."""
    if isinstance(error, StopIteration):  # no future of asyncio takes one, so that its client would wait for nothing
        return RuntimeError("the answer ended by StopIteration")
    is_said = isinstance(error, MmaccelError)
    return Refused(413, TOO_LARGE) if lacks_memory(error) and not is_said else error


def _log(error: Exception) -> None:
    """What the operator reads of a failed request; one that is the client's own is no failure of the server."""
    if isinstance(error, MmaccelError):
        log.info("a request was refused: %s", error)
    elif not isinstance(error, Left):
        log.exception("a request failed")
