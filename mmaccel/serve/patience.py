"""Connections on which no whole head of a request comes are closed; uvicorn itself would hold them for ever."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HTTP: Any = AutoHTTPProtocol


class Patience(HTTP):
    """uvicorn's protocol of one connection, which is looked at now and then.

    Class attributes
    ----------------
    seconds
        For the head of a request; a connection is closed after at most twice as long.
    """

    seconds: ClassVar[float] = 30.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._look(None)

    def _look(self, before: Any) -> None:
        """Close it if it waited for a request before, and waits for the same one now."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:  # a websocket has taken it over
            return
        waits = self.cycle is None or self.cycle.response_complete
        if waits and before == (self.cycle, True):
            self.transport.close()
        else:
            self.loop.call_later(self.seconds, self._look, (self.cycle, waits))
