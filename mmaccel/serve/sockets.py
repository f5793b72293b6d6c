"""Websockets: who may open one, how many, and for how long nothing may come."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from ..errors import MmaccelError
from .endpoint import Endpoint, Refused, message_of, status_of, told
from .keys import Key, offers
from .metrics import Metrics

log = logging.getLogger("mmaccel.serve")
PROTOCOLS = ("realtime", "token")  # names that are agreed to where a client offers them
ENDED, UNWANTED, FAILED = 1000, 1008, 1011  # how a websocket is closed


class Connection:
    """One websocket.

    Parameters
    ----------
    socket
        As starlette has it, not yet accepted.
    idle_seconds
        After so long without a message it is closed.
    """

    def __init__(self, socket: WebSocket, idle_seconds: float) -> None:
        self.socket, self.idle_seconds = socket, idle_seconds

    @property
    def query(self) -> dict[str, str]:
        """What stands behind the address."""
        return dict(self.socket.query_params)

    @property
    def is_open(self) -> bool:
        """Whether it was accepted."""
        return self.socket.client_state is not WebSocketState.CONNECTING

    async def open(self) -> None:
        """Accept it."""
        offered = offers(self.socket)
        await self.socket.accept(next((name for name in PROTOCOLS if name in offered), None))

    async def take(self) -> str | bytes:
        """The next message; raises `WebSocketDisconnect` where the client left, and `Refused` where nothing comes."""
        try:
            async with asyncio.timeout(self.idle_seconds):
                message = await self.socket.receive()
        except TimeoutError:
            raise Refused(408, f"nothing came for {self.idle_seconds:g} s") from None
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", ENDED))
        text: str | None = message.get("text")
        return message.get("bytes") or b"" if text is None else text

    async def give(self, message: dict[str, Any]) -> None:
        """Send a message; raises `WebSocketDisconnect` where the client left."""
        try:
            await self.socket.send_text(json.dumps(message))
        except RuntimeError as error:  # the server has closed it, as it does where nobody answers its pings
            raise WebSocketDisconnect(ENDED) from error


class Sockets:
    """The websockets of an endpoint.

    Parameters
    ----------
    endpoint
        What talks over them.
    key
        Checked before one is accepted.
    metrics
        Is told how many are open.
    most
        That may be open at once; the next one is refused.
    idle_seconds
        As for :class:`Connection`.
    """

    def __init__(self, endpoint: Endpoint[Any], key: Key, metrics: Metrics, most: int, idle_seconds: float) -> None:
        self.endpoint, self.key, self.metrics = endpoint, key, metrics
        self.most, self.idle_seconds, self.count = most, idle_seconds, 0

    def routes(self) -> list[BaseRoute]:
        """Where they are opened."""
        talks = self.endpoint.sockets().items()
        return [WebSocketRoute(path, functools.partial(self._talk, talk)) for path, talk in talks]

    async def _talk(self, talk: Callable[[Connection], Awaitable[None]], socket: WebSocket) -> None:
        try:
            self.key.check(socket)
            if self.count >= self.most:
                raise Refused(503, f"{self.count} streams are open already: try again later")
        except Refused as error:
            await _deny(socket, error)
            return
        self._counted(1)
        try:
            await self._safely(talk, Connection(socket, self.idle_seconds))
        finally:
            self._counted(-1)

    async def _safely(self, talk: Callable[[Connection], Awaitable[None]], connection: Connection) -> None:
        try:
            await talk(connection)
            await connection.socket.close(ENDED)
        except (WebSocketDisconnect, asyncio.CancelledError):  # the second where the server ends, and has closed it
            pass
        except MmaccelError as error:
            if connection.is_open:
                is_ours = isinstance(error, Refused) and error.status >= 500
                await connection.socket.close(FAILED if is_ours else UNWANTED, str(error)[:100])
            else:
                await _deny(connection.socket, error)
        except Exception as error:
            log.exception("a stream failed")
            await connection.socket.close(FAILED, message_of(error))

    def _counted(self, more: int) -> None:
        self.count += more
        self.metrics.sockets.set(self.count)


async def _deny(socket: WebSocket, error: MmaccelError) -> None:
    """Answer with an error in place of opening it."""
    await socket.send_denial_response(JSONResponse(told(error), status_of(error)))
