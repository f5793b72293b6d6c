"""How much visitors may send: in one request, and in all files that lie on the disk for them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..limits import Limits

UPLOAD = "/upload"
OVERHEAD = 2**20  # bytes of a request beside its file
LEAST = 2**16  # bytes that every file counts for at least: many small ones fill a disk too
FULL = "the demo cannot store more files now: try again later"
TOO_LARGE = "this is larger than the maximum allowed size of {:.0f} MiB: send less"


class Quota:
    """Middleware that ends requests which are too large, and uploads for which there is no room.

    Parameters
    ----------
    app
        What takes the requests.
    folder
        Where it puts files.
    limits
        `upload_bytes` of one request, `disk_bytes` of all files, `file_seconds` of what an aborted upload left.
    """

    def __init__(self, app: ASGIApp, folder: str | Path, limits: Limits) -> None:
        self.app, self.folder, self.limits = app, Path(folder), limits
        self.coming = 0  # bytes of uploads that are on their way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return await self.app(scope, receive, send)
        most = self.limits.upload_bytes + OVERHEAD
        stored = scope["path"].rstrip("/").endswith(UPLOAD)
        left = min(most, self._room()) if stored else most
        announced = Headers(scope=scope).get("content-length", "0")
        if not announced.isdecimal() or int(announced) > left:
            full = announced.isdecimal() and int(announced) <= most
            answer = PlainTextResponse(FULL if full else TOO_LARGE.format(most / 2**20), 507 if full else 413)
            return await answer(scope, receive, send)
        reserved = (int(announced) or left) if stored else 0
        self.coming += reserved
        try:
            await self.app(scope, _counted(receive, left, stored), send)
        finally:
            self.coming -= reserved

    def _room(self) -> int:
        """Bytes for which there is room; removes what aborted uploads left long ago."""
        used = 0
        for file, status in _files(self.folder):
            aborted = file.parent == self.folder and file.name.startswith("tmp")
            if aborted and time.time() - status.st_mtime > self.limits.file_seconds:
                file.unlink(missing_ok=True)
            else:
                used += max(status.st_size, LEAST)
        return max(0, self.limits.disk_bytes - used - self.coming)


def _counted(receive: Receive, most: int, stored: bool) -> Receive:
    """A body that breaks off where it is longer than it may be, whatever was announced, or where its sender is gone."""
    taken, over = 0, False

    async def counted() -> Message:
        nonlocal taken, over
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            text = TOO_LARGE.format(most / 2**20)
            # As Gradio's own parser of uploads raises it, which then removes what it has of them.
            raise MultiPartException(text) if stored else HTTPException(413, text)
        if stored and not over and message["type"] == "http.disconnect":
            raise MultiPartException("the upload was broken off")
        over = over or not message.get("more_body", False)
        return message

    return counted


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """All files in a folder and below; those that go meanwhile are left out."""
    for place, _, names in os.walk(folder):
        for name in names:
            file = Path(place) / name
            with suppress(FileNotFoundError):
                yield file, file.lstat()
