"""Answers that are fetched later, as OpenAI's `videos` are: a request is answered by a promise."""

from __future__ import annotations

import secrets
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from ..errors import shown
from .endpoint import Answer, Endpoint, Refused, Request, message_of
from .keys import Key

KEPT, SECONDS = 64, 3600  # answers that are kept, and for how long after they are there
PAGE, LARGEST = 20, 100  # promises of a list, by default and at most


@dataclass
class Promise:
    """A request whose answer is fetched later, with the times of the request and, once it is there, of the answer."""

    number: str
    request: Request
    future: Future[Answer]
    created: int = field(default_factory=lambda: int(time.time()))
    ended: int | None = None

    def __post_init__(self) -> None:
        self.future.add_done_callback(self._end)

    def _end(self, future: Future[Answer]) -> None:
        self.ended = int(time.time())

    @property
    def expires(self) -> int | None:
        """When the answer may be forgotten."""
        return None if self.ended is None else self.ended + SECONDS

    @property
    def status(self) -> str:
        """As OpenAI calls it."""
        if not self.future.done():
            return "in_progress" if self.future.running() else "queued"
        return "failed" if self.future.cancelled() or self.future.exception() else "completed"


class Promises:
    """The promises of an endpoint.

    Parameters
    ----------
    endpoint
        Whose answers they are; one that answers at once has none.
    key
        Checked whenever one is asked about.
    """

    def __init__(self, endpoint: Endpoint[Any], key: Key) -> None:
        self.endpoint, self.key, self.kept = endpoint, key, dict[str, Promise]()

    def routes(self) -> list[BaseRoute]:
        """Where promises are asked about, fetched and deleted."""
        if not self.endpoint.later:
            return []
        one = f"{self.endpoint.path}/{{number}}"
        return [
            Route(self.endpoint.path, self._listed, methods=["GET"]),
            Route(one, self._told, methods=["GET"]),
            Route(one, self._deleted, methods=["DELETE"]),
            Route(f"{one}/content", self._content, methods=["GET"]),
        ]

    def add(self, request: Request, future: Future[Answer]) -> dict[str, Any]:
        """Promise an answer; the oldest ones that are there, and all that are old, are forgotten."""
        self._forget()
        promise = Promise(f"{self.endpoint.later}_{secrets.token_hex(16)}", request, future)
        self.kept[promise.number] = promise
        return self._json(promise)

    def _forget(self) -> None:
        done = [promise for promise in self.kept.values() if promise.future.done()]
        for place, promise in enumerate(done):
            if len(done) - place >= KEPT or (promise.expires is not None and time.time() > promise.expires):
                del self.kept[promise.number]

    def _json(self, promise: Promise) -> dict[str, Any]:
        status = promise.status
        told = {
            **self.endpoint.described(promise.request),
            "id": promise.number,
            "object": self.endpoint.later,
            "created_at": promise.created,
            "expires_at": promise.expires,
            "model": self.endpoint.name,
            "status": status,
            "progress": 100 if status == "completed" else promise.request.progress,
        }
        if status == "failed":
            error = None if promise.future.cancelled() else promise.future.exception()
            told["error"] = {"code": "failed", "message": message_of(error)}
        return told

    def _found(self, http: HttpRequest) -> Promise:
        self.key.check(http)
        number = http.path_params["number"]
        if number not in self.kept:
            raise Refused(404, f"there is no {self.endpoint.later} {shown(number)}: it may be too old, or deleted")
        return self.kept[number]

    async def _listed(self, http: HttpRequest) -> Response:
        """The promises, the newest first unless `order=asc`, page by page."""
        self.key.check(http)
        asked = http.query_params
        order, limit, after = asked.get("order", "desc"), asked.get("limit", str(PAGE)), asked.get("after")
        if order not in ("asc", "desc"):
            raise Refused(400, f"order={shown(order)}: say 'asc' or 'desc'")
        if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= LARGEST):
            raise Refused(400, f"limit={shown(limit)}: say a number from 1 to {LARGEST}")
        if after not in (None, *self.kept):
            raise Refused(404, f"there is no {self.endpoint.later} {shown(after)}: it may be too old, or deleted")
        numbers = list(self.kept) if order == "asc" else list(self.kept)[::-1]
        rest = numbers[0 if after is None else numbers.index(after) + 1 :]
        page = [self._json(self.kept[number]) for number in rest[: int(limit)]]
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
        return JSONResponse({"object": "list", "data": page, **ends, "has_more": len(rest) > len(page)})

    async def _told(self, http: HttpRequest) -> Response:
        return JSONResponse(self._json(self._found(http)))

    async def _content(self, http: HttpRequest) -> Response:
        promise = self._found(http)
        variant = http.query_params.get("variant", self.endpoint.later)
        if variant != self.endpoint.later:
            raise Refused(400, f"variant={shown(variant)}: this server has {self.endpoint.later!r} only")
        if promise.status != "completed":
            raise Refused(409, f"the {self.endpoint.later} is {promise.status}: ask for its status first")
        return Response(promise.future.result(), media_type=self.endpoint.media)

    async def _deleted(self, http: HttpRequest) -> Response:
        """Forget an answer; one that is not there yet is given up."""
        promise = self._found(http)
        promise.request.left.set()
        promise.future.cancel()
        del self.kept[promise.number]
        return JSONResponse({"id": promise.number, "object": f"{self.endpoint.later}.deleted", "deleted": True})
