"""A file that was uploaded, before anything decodes it, and what it is called in errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from ..errors import MissingExtraError, MmaccelError
from .limits import UploadLimits

GONE = "is no longer here: upload it again"


@contextmanager
def found(path: Path | str, limits: UploadLimits, error: type[MmaccelError]) -> Iterator[Path]:
    """The file, if it is still there and no larger than allowed.

    Errors in the block name it as the visitor knows it, and not where the server keeps it.
    """
    if find_spec("av") is None:
        raise MissingExtraError('reading uploads needs PyAV: pip install "mmaccel[video]"')
    file = Path(path)
    if not file.is_file():
        raise error(f"{file.name} {GONE}")
    size = file.stat().st_size
    if not size:
        raise error(f"{file.name} is empty: record or copy it again, then upload it")
    if size > limits.upload_bytes:
        raise error(f"{file.name} has {size / 2**20:.0f} MiB, and {limits.upload_bytes / 2**20:.0f} MiB are allowed")
    try:
        yield file
    except MmaccelError as problem:
        raise type(problem)(str(problem).replace(str(file), file.name)) from problem
