"""Who may talk to a server: programs, and pages that it served itself, at an address that is its own."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, ClassVar
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOCAL = ("localhost", "127.0.0.1", "::1")
log = logging.getLogger("mmaccel.serve")


class Door:
    """Middleware that refuses what comes from a page of another site.

    A page elsewhere may have its own name lead to this machine (DNS rebinding): then the host is a foreign one. Or it
    sends requests to the right address, uploads among them: then their origin is a foreign one.

    Parameters
    ----------
    app
        What is behind the door.
    hosts
        Names and addresses by which visitors reach it, beside those of this machine alone and the address at which a
        connection came in.

    Attributes
    ----------
    called
        What the server is called in answers.
    """

    called: ClassVar[str] = "server"

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = ()) -> None:
        self.app, self.hosts = app, {_name(host) for host in (*LOCAL, *hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or (reason := self._refusal(scope)) is None:
            await self.app(scope, receive, send)
            return
        log.warning("refused: %s", reason)
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            answer = PlainTextResponse(f"{reason}\n", 403, {"X-Content-Type-Options": "nosniff"})
            await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        """Why a request is refused; None where it is not."""
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        # a request of HTTP/1.0 may have no host, as health checks of proxies; browsers always send one
        if len(hosts) > 1 or not all(self._is_own(_name(host), scope.get("server")) for host in hosts):
            asked = _name(hosts[0])[:100]
            return f"this {self.called} does not answer to {asked!r}: restart it with --allow-host {asked}"
        if any([_place(origin)] != [host.lower() for host in hosts] for origin in origins):
            return f"this request comes from a page of another site: open the {self.called} itself"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
            return f"a page of another site requests this file: open the {self.called} itself"
        if self.is_closed(scope["path"]):
            return f"this part of the {self.called} is not used here"
        return None

    def is_closed(self, path: str) -> bool:
        """Whether nobody may ask for what is at this path."""
        return False

    def _is_own(self, name: str, server: Any) -> bool:
        return name in self.hosts or bool(server and name == server[0])


def _name(host: str) -> str:
    """The name or address in a `Host`, without port and brackets; empty where it is none."""
    bare = host.strip().rstrip(".").lower()
    if bare.count(":") > 1 and "[" not in bare:
        return bare  # an IPv6 address as it is
    try:
        return (urlsplit(f"//{bare}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _place(origin: str) -> str:
    """Name and port of an `Origin`; empty where it has none, as "null"."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
