"""A server at an address, until it is stopped."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

import uvicorn

from .app import Server, ServerLimits
from .endpoint import Endpoint
from .patience import Patience

UVICORN: dict[str, Any] = {
    "http": Patience,
    "log_level": "warning",
    "server_header": False,
    "timeout_graceful_shutdown": 5,  # seconds for answers that are under way when the server is stopped
    "ws_max_size": 16 * 2**20,  # of a message; OpenAI's have up to 15 MiB
    "ws_max_queue": 1,  # messages that wait to be taken; then their client waits
    "ws_ping_timeout": 300.0,  # seconds: a pong comes behind samples that wait until those before are heard
}


class _Ending(uvicorn.Server):
    """Refuses what waits as soon as it is told to stop, while its connections are still open."""

    def __init__(self, config: uvicorn.Config, close: Callable[[], None]) -> None:
        super().__init__(config)
        self.close = close

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        threading.Thread(target=self.close, daemon=True).start()  # waits for what runs
        await super().shutdown(sockets)


def listening(host: str, port: int) -> socket.socket:
    """A socket at an address.

    Raises
    ------
    OSError
        If the port is taken, or the address is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(f"cannot listen on {host}, port {port}: choose others with --host and --port") from error


def serve(
    endpoint: Endpoint[Any],
    limits: ServerLimits,
    host: str,
    port: int,
    hosts: Iterable[str],
    key: str,
    tell: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM; `tell` is told the address.

    Raises
    ------
    OSError
        As :func:`listening` does.
    """
    taken = listening(host, port)
    server = Server(endpoint, limits, key, (host, *hosts))
    place = f"[{host}]" if ":" in host else host
    tell(f"mmaccel serves {endpoint.name} on http://{place}:{taken.getsockname()[1]}{endpoint.path}")
    try:
        _Ending(configured(server), server.close).run(sockets=[taken])
    finally:
        server.close()
        taken.close()


def configured(server: Server, **other: Any) -> uvicorn.Config:
    """How uvicorn runs a server, apart from other settings."""
    logging.getLogger("uvicorn.error").addFilter(_is_true)
    return uvicorn.Config(server.app, **{**UVICORN, **other})


def _is_true(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn's log is one: a websocket that is answered by an error counts there as forgotten."""
    return "without completing handshake" not in record.getMessage()
