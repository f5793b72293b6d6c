"""Requests that carry a file: multipart forms."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from .endpoint import Refused

FIELDS = 100  # of a form


@dataclass(frozen=True)
class Upload:
    """A file in a form: what the client calls it, and what it holds."""

    name: str
    data: bytes


async def fields_of(held: bytes, content_type: str) -> dict[str, Any]:
    """The fields of a form; those whose name ends with `[]` are lists, and files are uploads.

    Raises
    ------
    Refused
        If this is no multipart form.
    """
    if not content_type.lower().startswith("multipart/form-data"):
        raise Refused(400, "the request is no multipart/form-data, in which OpenAI's clients send files")

    async def whole() -> AsyncGenerator[bytes, None]:
        yield held

    try:
        form = await MultiPartParser(
            Headers({"content-type": content_type}), whole(), max_files=1, max_fields=FIELDS
        ).parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise Refused(400, f"the request is no multipart/form-data: {error}") from None
    fields: dict[str, Any] = {}
    try:
        for name, value in form.multi_items():
            held_value = Upload(value.filename or "", await value.read()) if isinstance(value, UploadFile) else value
            if name.endswith("[]"):
                fields.setdefault(name.removesuffix("[]"), []).append(held_value)
            else:
                fields[name] = held_value
    finally:
        await form.close()
    return fields
