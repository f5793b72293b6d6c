"""What stands in a server for models in other processes."""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..serve.endpoint import CHECK, Answer, Endpoint, Left, Refused, Request
from ..serve.metrics import Metrics
from .streams import Streams

if TYPE_CHECKING:
    from ..serve.sockets import Connection

log = logging.getLogger("mmaccel.serve")
ATTEMPTS = 3  # of a request whose replica ends while it works on it; it may be the request that ends it
PAUSE = 0.5  # seconds until Ray Serve knows that a replica ended
PATIENCE = 0.05  # seconds between looks at whether a client is still there


@dataclass(kw_only=True)
class Forwarded(Request):
    """A request as it came; a replica checks it.

    Attributes
    ----------
    ending
        The last events of its stream.
    checked
        Whether a replica has found it good.
    """

    body: dict[str, Any]
    ending: list[dict[str, Any]] = field(default_factory=list)
    checked: bool = False


class RemoteEndpoint(Endpoint[Forwarded]):
    """Takes requests for an endpoint whose model is in other processes.

    Parameters
    ----------
    name
        Of the model.
    answering
        The class of the endpoint.
    handle
        Of the deployment, as Ray Serve has it.
    lost
        What it raises where a replica ends.
    running
        Requests that its replicas take together.
    inboxes
        Starts what :class:`Streams` needs.
    """

    def __init__(
        self,
        name: str,
        answering: type[Endpoint[Any]],
        handle: Any,
        lost: tuple[type[Exception], ...],
        running: int,
        inboxes: Callable[[], Any],
    ) -> None:
        super().__init__(name, None, None)
        self.streams, self.bare = Streams(handle, lost, inboxes), answering.__new__(answering)
        Endpoint.__init__(self.bare, name, None, None)  # it has no model: it is asked for addresses and pages
        self.path, self.takes_forms = answering.path, answering.takes_forms
        self.later, self.media = answering.later, answering.media
        self.handle, self.lost, self.most = handle, lost, running

    def worker(self, metrics: Metrics, waiting: int, batch: int) -> Any:
        """Sends requests on; as many may wait as in a server of its own model."""
        return Forwarder(self.handle, self.lost, metrics, self.most + waiting)

    def parse(self, body: Mapping[str, Any]) -> Forwarded:
        streams = str(body.get("stream", "")).lower() == "true"
        return Forwarded(body=dict(body), pieces=queue.SimpleQueue() if streams else None)

    def answer(self, requests: list[Forwarded]) -> Sequence[Answer]:
        raise NotImplementedError  # pragma: no cover  the replicas answer

    async def accepted(self, request: Forwarded, future: Future[Answer]) -> None:
        """Wait for a replica's check where there is only a promise; not for long, as all may be busy."""
        if not self.later:
            return
        until = time.monotonic() + CHECK
        while not (request.checked or future.done()) and time.monotonic() < until:
            await asyncio.sleep(PATIENCE / 10)
        if future.done() and not request.checked:
            future.result()

    def described(self, request: Forwarded) -> dict[str, Any]:
        """What was asked for, apart from files."""
        return {name: str(value) for name, value in request.body.items() if isinstance(value, str | int | float)}

    def sockets(self) -> Mapping[str, Callable[[Connection], Awaitable[None]]]:
        return {path: partial(self.streams.relay, path) for path in self.bare.sockets()}

    def pages(self) -> Mapping[str, str]:
        return self.bare.pages()

    def piece(self, request: Forwarded, text: Any) -> dict[str, Any]:
        """Events come as they are."""
        return text

    def ending(self, request: Forwarded) -> list[dict[str, Any]]:
        return request.ending


class Forwarder:
    """Sends each request to a replica, and to another one where that ends.

    Parameters
    ----------
    handle, lost
        As of :class:`RemoteEndpoint`.
    metrics
        Is told what the replicas do.
    most
        Requests that may be under way; the next one is refused.
    """

    def __init__(self, handle: Any, lost: tuple[type[Exception], ...], metrics: Metrics, most: int) -> None:
        self.handle, self.lost, self.metrics, self.most = handle, lost, metrics, most
        self.tasks: set[asyncio.Task[None]] = set()
        self.running = 0  # of the tasks, those that a replica works on

    def check(self, coming: int) -> None:
        """Raise a `Refused` if too many are under way, or will be with those that are coming."""
        if len(self.tasks) + coming >= self.most:
            raise Refused(503, f"{len(self.tasks)} requests are under way already: try again in a few seconds")

    def submit(self, request: Forwarded, until: float) -> Future[Answer]:
        """Send a request on; raises `Refused` if too many are under way."""
        self.check(0)
        future: Future[Answer] = Future()
        future.set_running_or_notify_cancel()
        task = asyncio.get_running_loop().create_task(self._watched(request, until, future))
        self.tasks.add(task)
        self._tell()
        task.add_done_callback(self._ended)
        return future

    def close(self) -> None:
        """Nothing: the loop that it runs in has ended."""

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._tell()

    def _tell(self, more: int = 0) -> None:
        """Tell how many requests run, some more or fewer than before, and how many wait."""
        self.running += more
        self.metrics.running.set(self.running)
        self.metrics.waiting.set(len(self.tasks) - self.running)

    async def _watched(self, request: Forwarded, until: float, future: Future[Answer]) -> None:
        """Ask, until the client leaves."""
        asking = asyncio.ensure_future(self._asked(request, until))
        while not asking.done():
            await asyncio.wait([asking], timeout=PATIENCE)
            if request.left.is_set():
                asking.cancel()
        error = Left() if asking.cancelled() else asking.exception()
        future.set_result(asking.result()) if error is None else future.set_exception(error)

    async def _asked(self, request: Forwarded, until: float) -> Answer:
        """The answer of the first replica that lives long enough."""
        ended = 0
        while time.monotonic() < until:
            said = set[str]()
            try:
                return await self._once(request, until, said)
            except self.lost as error:
                ended += "begun" in said  # where it still waited, it is not to blame
                if ended == ATTEMPTS or "piece" in said:  # what was sent of a stream cannot be taken back
                    log.exception("a replica ended")
                    raise Refused(500, "the process that answered ended: ask again") from error
                log.warning("a replica ended: another one answers")
                await asyncio.sleep(PAUSE)
        raise Refused(504, "it waited too long for its turn: try again later")

    async def _once(self, request: Forwarded, until: float, kinds: set[str]) -> Answer:
        said = self.handle.ask.remote(request.body, max(0.1, until - time.monotonic()))
        try:
            async for kind, value in said:
                kinds.add(kind)
                if kind == "figures":
                    self._count(value)
                elif kind == "checked":
                    request.checked = True
                elif kind == "begun":
                    self._tell(1)
                elif kind == "progress":
                    request.progress = value
                elif kind == "piece":
                    assert request.pieces is not None
                    request.pieces.put(value)
                elif kind == "error":
                    raise Refused(*value)
                elif kind == "end":
                    request.ending = value
                    return {}
                elif kind == "answer":
                    return value
        except asyncio.CancelledError:
            said.cancel()
            raise
        finally:
            self._tell(-int("begun" in kinds))
        raise Refused(500, "the answer ended early: ask again")

    def _count(self, figures: dict[str, float]) -> None:
        counters = (self.metrics.model_seconds, self.metrics.passes, self.metrics.plain_passes)
        for counter, more in zip(counters, figures.values(), strict=True):
            counter.inc(more)
