"""A server at an address, until it is stopped."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

import uvicorn

from .app import Server, ServerLimits
from .endpoint import Endpoint
from .patience import Patience

LARGEST_MESSAGE = 2**20  # bytes, over a websocket
GRACE = 5  # seconds for answers that are under way when the server is stopped


class _Ending(uvicorn.Server):
    """Refuses what waits as soon as it is told to stop, while its connections are still open."""

    def __init__(self, config: uvicorn.Config, close: Callable[[], None]) -> None:
        super().__init__(config)
        self.close = close

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        threading.Thread(target=self.close, daemon=True).start()  # waits for what runs
        await super().shutdown(sockets)


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
        If the port is taken, or the address is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(f"cannot listen on {host}, port {port}: choose others with --host and --port") from error
    server = Server(endpoint, limits, key, (host, *hosts))
    place = f"[{host}]" if ":" in host else host
    tell(f"mmaccel serves {endpoint.name} on http://{place}:{listening.getsockname()[1]}{endpoint.path}")
    looks: dict[str, Any] = {"log_level": "warning", "server_header": False, "ws_max_size": LARGEST_MESSAGE}
    config = uvicorn.Config(server.app, http=Patience, timeout_graceful_shutdown=GRACE, **looks)
    try:
        _Ending(config, server.close).run(sockets=[listening])
    finally:
        server.close()
        listening.close()
