"""Live streams behind a server whose model is in replicas: each stays with the replica that took it.

A stream is one call of a replica, which answers while it listens. What its client says meanwhile lies in the inboxes,
an actor of Ray's, until the replica takes it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cached_property
from typing import Any

from starlette.websockets import WebSocketDisconnect

from ..errors import MmaccelError
from ..serve.endpoint import Refused, message_of, status_of
from ..serve.sockets import ENDED, Connection

log = logging.getLogger("mmaccel.serve")
HELD = 4  # messages of a stream that wait for its replica; then its client waits
ATTEMPTS, PAUSE = 3, 0.5  # to find a replica that takes a stream, and seconds between two
Said = tuple[str, Any]  # "open" and None, "give" and a message, "end" and None, or "error", status and reason


class Inboxes:
    """What the clients of all streams of a server say, until a replica takes it."""

    def __init__(self) -> None:
        self.kept: dict[str, asyncio.Queue[str | bytes | None]] = {}

    async def open(self, stream: str) -> None:
        """Begin a stream."""
        self.kept[stream] = asyncio.Queue(HELD)

    async def put(self, stream: str, message: str | bytes) -> None:
        """Keep a message, as soon as there is room for it."""
        await self.kept[stream].put(message)

    async def take(self, stream: str) -> str | bytes | None:
        """The next message, None where the stream has ended."""
        queue = self.kept.get(stream)
        return None if queue is None else await queue.get()

    async def close(self, stream: str) -> None:
        """End a stream; whoever waits for it goes on."""
        queue = self.kept.pop(stream)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)


class FarConnection(Connection):
    """A websocket of the server in front, as a replica has it.

    Parameters
    ----------
    asked
        What stands behind its address.
    stream, inboxes
        Where its messages come from.
    """

    def __init__(self, asked: dict[str, str], stream: str, inboxes: Any) -> None:
        self.asked, self.stream, self.inboxes = asked, stream, inboxes
        self.said = asyncio.Queue[Said]()

    @property
    def query(self) -> dict[str, str]:
        return self.asked

    async def open(self) -> None:
        self.said.put_nowait(("open", None))

    async def take(self) -> str | bytes:
        message: str | bytes | None = await self.inboxes.take.remote(self.stream)
        if message is None:
            raise WebSocketDisconnect(ENDED)
        return message

    async def give(self, message: dict[str, Any]) -> None:
        self.said.put_nowait(("give", message))

    async def talked(self, talk: Callable[[Connection], Awaitable[None]]) -> AsyncIterator[Said]:
        """All that is said in a talk, while it lasts."""
        talking = asyncio.ensure_future(self._until_it_ends(talk))
        try:
            kind = ""
            while kind not in ("end", "error"):
                kind, value = await self.said.get()
                yield kind, value
        finally:
            talking.cancel()

    async def _until_it_ends(self, talk: Callable[[Connection], Awaitable[None]]) -> None:
        last: Said = ("end", None)
        try:
            await talk(self)
        except WebSocketDisconnect:
            pass
        except Exception as error:
            if not isinstance(error, MmaccelError):
                log.exception("a stream failed")
            last = "error", (status_of(error), message_of(error))
        self.said.put_nowait(last)


class Streams:
    """Sends what clients say over websockets on to replicas.

    Parameters
    ----------
    handle, lost
        As of :class:`mmaccel.cluster.forwarding.RemoteEndpoint`.
    start
        Starts the actor of :class:`Inboxes`.
    """

    def __init__(self, handle: Any, lost: tuple[type[Exception], ...], start: Callable[[], Any]) -> None:
        self.handle, self.lost, self.start = handle, lost, start

    @cached_property
    def inboxes(self) -> Any:
        """The actor, started for the first stream."""
        return self.start()

    async def relay(self, path: str, connection: Connection) -> None:
        """One stream, from the first replica that takes it; it cannot go on at another one."""
        for _ in range(ATTEMPTS):
            try:
                await self._one(path, connection)
                return
            except self.lost as error:
                log.warning("a replica ended, and a stream with it")
                if connection.is_open:
                    raise Refused(500, "the process that listened ended: open a new stream") from error
                await asyncio.sleep(PAUSE)
        raise Refused(503, "no process takes the stream: try again later")

    async def _one(self, path: str, connection: Connection) -> None:
        stream, opened = secrets.token_hex(16), asyncio.Event()
        await self.inboxes.open.remote(stream)
        said = self.handle.listen.remote(path, connection.query, stream, self.inboxes)
        ways = [
            asyncio.ensure_future(way)
            for way in (_heard(said, connection, opened), self._sent(stream, connection, opened))
        ]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            await done.pop()
        finally:
            said.cancel()
            for way in ways:
                way.cancel()
            self.inboxes.close.remote(stream)
            await asyncio.gather(*ways, return_exceptions=True)

    async def _sent(self, stream: str, connection: Connection, opened: asyncio.Event) -> None:
        """What the client says, one message after the other, until it leaves."""
        await opened.wait()
        while True:
            await self.inboxes.put.remote(stream, await connection.take())


async def _heard(said: Any, connection: Connection, opened: asyncio.Event) -> None:
    """What the replica says."""
    async for kind, value in said:
        if kind == "open":
            await connection.open()
            opened.set()
        elif kind == "give":
            await connection.give(value)
        elif kind == "error":
            raise Refused(*value)
