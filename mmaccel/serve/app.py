"""The server's HTTP: who may ask, how much, and what is answered when."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..errors import MmaccelError, shown
from .door import Door
from .endpoint import (
    CHECK,
    GONE,
    PATIENCE,
    Answer,
    Endpoint,
    Left,
    Refused,
    Request,
    ends,
    late,
    status_of,
    told,
)
from .events import Events
from .forms import fields_of
from .keys import Key
from .metrics import Metrics
from .promises import Promises
from .sockets import Sockets
from .worker import Worker

MOST_VALUES = 300_000  # of a request in JSON, a few of which are files as one text each
AGAIN = {"Retry-After": "5"}
NEVER = {"x-should-retry": "false"}  # OpenAI's clients would ask twice more for what took too long, or fails
HEADERS = {500: NEVER, 503: AGAIN, 504: NEVER}
# A page loads nothing from elsewhere, and no other page may hold it in a frame.
PAGE = {
    "Content-Security-Policy": "default-src 'self'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline';"
    " connect-src 'self' ws: wss:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class ServerLimits:
    """Bounds of the requests.

    Attributes
    ----------
    body_bytes, read_seconds
        Of the body of one.
    waiting, batch
        As for :class:`Worker`.
    deadline
        Seconds from a whole request to the end of its answer, unless that is fetched later.
    sockets, idle_seconds
        As for :class:`Sockets`.
    """

    body_bytes: int = 64 * 2**20
    read_seconds: float = 60.0
    waiting: int = 16
    batch: int = 4
    deadline: float = 300.0
    sockets: int = 8
    idle_seconds: float = 60.0


class Server:
    """One model's server; `app` is what an ASGI server such as uvicorn runs.

    Parameters
    ----------
    endpoint
        What is answered.
    limits
        Bounds of the requests.
    key
        The API key that clients must send; empty (default) for none.
    hosts
        Names by which clients reach it, beside this machine's own.
    """

    def __init__(
        self, endpoint: Endpoint[Any], limits: ServerLimits | None = None, key: str = "", hosts: Iterable[str] = ()
    ) -> None:
        self.endpoint, self.limits, self.key = endpoint, limits or ServerLimits(), Key(key)
        self.metrics, self.began = Metrics(), int(time.time())
        self.parsing, self.cores = 0, asyncio.Semaphore(os.cpu_count() or 1)
        given = self.metrics, self.limits.waiting, self.limits.batch
        self.worker = endpoint.worker(*given) or Worker(endpoint, *given)
        most, idle = self.limits.sockets, self.limits.idle_seconds
        self.promises = Promises(endpoint, self.key)
        pages = endpoint.pages().items()
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
                Route(endpoint.path, self._answer, methods=["POST"]),
                *self.promises.routes(),
                *Sockets(endpoint, self.key, self.metrics, most, idle).routes(),
                *(Route(path, lambda _, page=page: HTMLResponse(page, headers=PAGE)) for path, page in pages),
            ],
            middleware=[Middleware(Door, hosts=hosts)],
            exception_handlers={MmaccelError: _told, HTTPException: self._unknown, Exception: _told},
        )

    def close(self) -> None:
        """End the thread that runs the model."""
        self.worker.close()

    async def _health(self, _: HttpRequest) -> Response:
        return JSONResponse({"status": "ok", "model": self.endpoint.name})

    async def _metrics(self, request: HttpRequest) -> Response:
        self.key.check(request)
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _models(self, request: HttpRequest) -> Response:
        self.key.check(request)
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def _model(self, request: HttpRequest) -> Response:
        self.key.check(request)
        self._check(request.path_params["name"])
        return JSONResponse(self._described())

    def _described(self) -> dict[str, Any]:
        return {"id": self.endpoint.name, "object": "model", "created": self.began, "owned_by": "mmaccel"}

    def _check(self, model: Any) -> None:
        if model != self.endpoint.name:
            raise Refused(404, f"unknown model {shown(model)}: this server has {self.endpoint.name!r}")

    async def _answer(self, http: HttpRequest) -> Response:
        status: int | None = 500
        try:
            self.key.check(http)
            body = await self._body(http)
            began = time.monotonic()
            request = await self._parsed(body)
            until = math.inf if self.endpoint.later else began + self.limits.deadline  # nobody waits on a promise
            future = self.worker.submit(request, until)
            await self.endpoint.accepted(request, future)
            if self.endpoint.later:
                status = None  # which is known when it ends
                future.add_done_callback(partial(self._count, began))
                return JSONResponse(self.promises.add(request, future))
            if request.pieces is not None:
                await _begun(http, request, future, until)
                status = None
                return Events(self.endpoint, self.metrics, request, future, began, until)
            made = await _awaited(http, request, future, until)
            answer: Response = JSONResponse(made) if isinstance(made, dict) else PlainTextResponse(made)
            self.metrics.seconds.observe(time.monotonic() - began)
            status = 200
            return answer
        except MmaccelError as error:
            status = status_of(error)
            raise
        except (Left, ClientDisconnect):
            status = GONE
            return Response(status_code=GONE)
        except asyncio.CancelledError:  # by a server that waited for it long enough
            status = 503
            raise ends() from None
        finally:
            if status is not None:
                self.metrics.requests.labels(str(status)).inc()

    async def _unknown(self, http: HttpRequest, error: Exception) -> Response:
        """What is answered to other paths and ways of asking."""
        assert isinstance(error, HTTPException)
        answered = f"POST {self.endpoint.path} (for OpenAI's clients: base_url={http.base_url}v1)"
        message = f"{error.detail}: {http.url.path}, this server answers {answered}"
        return await _told(http, Refused(error.status_code, message))

    def _count(self, began: float, future: Future[Answer]) -> None:
        """A promise that has ended."""
        error = Left() if future.cancelled() else future.exception()
        self.metrics.requests.labels(str(200 if error is None else status_of(error))).inc()
        if error is None:
            self.metrics.seconds.observe(time.monotonic() - began)

    async def _parsed(self, body: dict[str, Any]) -> Request:
        """The request, checked; to decode its files takes a core, so that there must be a place for it before."""
        self.worker.check(self.parsing)
        self.parsing += 1
        try:
            async with self.cores:  # more at once would take them from those that are refused
                request: Request = await run_in_threadpool(self.endpoint.parse, body)
            return request
        finally:
            self.parsing -= 1

    async def _body(self, request: HttpRequest) -> dict[str, Any]:
        """The fields of a request, which may neither be too large nor too slow."""
        most, held = self.limits.body_bytes, bytearray()
        too_large = Refused(413, f"the request has more than {most // 2**20} MiB: send smaller files")
        if int(request.headers.get("content-length", 0)) > most:
            raise too_large
        try:
            async with asyncio.timeout(self.limits.read_seconds):
                async for chunk in request.stream():
                    held += chunk
                    if len(held) > most:
                        raise too_large
        except TimeoutError:
            raise Refused(408, "the request came too slowly: send it again") from None
        self.worker.check(self.parsing)  # a form is long to read, too
        kind = request.headers.get("content-type", "")
        if self.endpoint.takes_forms and not kind.lower().startswith("application/json"):
            body = await fields_of(bytes(held), kind)
        else:
            body = _json(held)
        if (model := body.pop("model", None)) is not None:
            self._check(model)
        return body


def _json(held: bytearray) -> dict[str, Any]:
    if held.count(b",") > MOST_VALUES:  # reading them takes long, and many times their memory
        raise Refused(413, f"the request has more than {MOST_VALUES} values: send fewer")
    try:
        body = json.loads(held.decode())  # given bytes, json takes halves of characters
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the request is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, "the request is no JSON object: send {...}")
    if (b"\\ud" in held or b"\\uD" in held) and not _is_text(body):  # escapes that are halves of a character
        raise Refused(400, "the request holds half of a character (a lone surrogate): send whole ones")
    return body


def _is_text(body: Any) -> bool:
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


async def _awaited(http: HttpRequest, request: Request, future: Future[Answer], until: float) -> Answer:
    """The answer, unless the client leaves or it takes too long."""
    answer = asyncio.wrap_future(future)
    try:
        while not answer.done():
            await asyncio.wait([answer], timeout=PATIENCE)
            if answer.done():
                break
            if await http.is_disconnected():
                raise Left
            if time.monotonic() > until:
                raise late()
        return answer.result()
    finally:
        request.left.set()
        answer.cancel()


async def _begun(http: HttpRequest, request: Request, future: Future[Answer], until: float) -> None:
    """Wait for the first words of a stream, and raise what comes instead; not for long, as others may be before it."""
    assert request.pieces is not None
    until = min(until, time.monotonic() + CHECK)
    try:
        while request.pieces.empty() and not future.done() and time.monotonic() < until:
            if await http.is_disconnected():
                raise Left
            await asyncio.sleep(PATIENCE / 10)
        if request.pieces.empty() and future.done():
            future.result()
    except BaseException:
        request.left.set()
        raise


async def _told(_: HttpRequest, error: Exception) -> Response:
    status = status_of(error)
    return JSONResponse(told(error), status, HEADERS.get(status))
