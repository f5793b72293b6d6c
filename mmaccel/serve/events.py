"""A text while it is written, as server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from .endpoint import GONE, PATIENCE, Answer, Endpoint, Request, ends, late, status_of, told
from .metrics import Metrics

log = logging.getLogger("mmaccel.serve")
# Or a proxy would keep what it is sent, as nginx does until it has some kilobytes.
AT_ONCE = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Events(StreamingResponse):
    """Until the text ends, the client leaves, or it takes too long; however it ends, that is counted.

    Parameters
    ----------
    request, future
        What is answered, and its answer.
    began, until
        When the request was whole, and when its answer has to be, in seconds of `time.monotonic`.
    """

    def __init__(
        self,
        endpoint: Endpoint[Any],
        metrics: Metrics,
        request: Request,
        future: Future[Answer],
        began: float,
        until: float,
    ) -> None:
        self.endpoint, self.metrics, self.request, self.future = endpoint, metrics, request, future
        self.began, self.until = began, until
        self.status = GONE
        super().__init__(self._events(), media_type="text/event-stream", headers=AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except (ClientDisconnect, asyncio.CancelledError):  # the first as servers of ASGI 2.4 say it
            pass
        finally:  # also where the client is gone before the first event
            self.request.left.set()
            self.metrics.requests.labels(str(self.status)).inc()

    async def listen_for_disconnect(self, receive: Receive) -> None:
        await super().listen_for_disconnect(receive)
        self.request.left.set()

    async def _events(self) -> AsyncIterator[str]:
        pieces, future = self.request.pieces, self.future
        assert pieces is not None
        error: BaseException | None = late()
        try:
            while not (ended := future.done() and pieces.empty()) and time.monotonic() < self.until:
                try:
                    text = await run_in_threadpool(pieces.get, timeout=PATIENCE)
                except queue.Empty:
                    continue
                yield _event(self.endpoint.piece(self.request, text))
            error = future.exception() if ended else error
        except asyncio.CancelledError:
            if self.request.left.is_set():
                raise
            error = ends()  # the server waited for it long enough
        if error is not None:
            log.info("a stream ended early: %s", error)
            yield _event(told(error))
        else:
            for last in self.endpoint.ending(self.request):
                yield _event(last)
        yield "data: [DONE]\n\n"
        self.status = 200 if error is None else status_of(error)
        self.metrics.seconds.observe(time.monotonic() - self.began)


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"
