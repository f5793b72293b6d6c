"""The API key that clients must send."""

from __future__ import annotations

import hmac

from starlette.requests import HTTPConnection

from .endpoint import Refused

# A page cannot send headers with a websocket, so its key is among the names of protocols that it offers.
IN_PROTOCOL = "openai-insecure-api-key."
SCHEMES = ("bearer", "token")  # whose names may be written in any case


class Key:
    """Checks the key of requests; an empty one lets all in."""

    def __init__(self, key: str) -> None:
        self.key = key.encode()

    def check(self, request: HTTPConnection) -> None:
        """Raise a `Refused` for a wrong key."""
        header = request.headers.get("authorization", "")
        scheme, _, rest = header.partition(" ")
        given = [rest.strip() if scheme.lower() in SCHEMES else header]
        offered = offers(request)
        given += [name.removeprefix(IN_PROTOCOL) for name in offered if name.startswith(IN_PROTOCOL)]
        given += offered[1:2] if offered[:1] == ["token"] else []
        # starlette reads the bytes of headers as latin-1
        if self.key and not any(hmac.compare_digest(one.encode("latin-1"), self.key) for one in given):
            raise Refused(401, "this server asks for its API key: send it as `Authorization: Bearer KEY`")


def offers(request: HTTPConnection) -> list[str]:
    """Names of the protocols that a websocket offers."""
    text = request.headers.get("sec-websocket-protocol", "")
    return [name.strip() for name in text.split(",") if name.strip()]
