"""Files that appear only when they are finished."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any


class replacing:  # noqa: N801  reads as a phrase: `with replacing(path) as temporary:`
    """Write to a temporary file beside the target, and put it in place only if the block succeeds."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Path:
        self.temporary = _temporary(self.path)
        return self.temporary

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            mask = os.umask(0)
            os.umask(mask)
            self.temporary.chmod(0o666 & ~mask)  # mkstemp makes files that only their owner can read
            self.temporary.replace(self.path)
        else:
            self.temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise an `OSError` that says why if a file cannot be written there, before any work is done."""
    _temporary(path).unlink()


def _temporary(path: Path) -> Path:
    """A new file beside a path."""
    if path.is_dir():
        raise OSError(f"{path} is a folder: give a file name")
    if not path.parent.is_dir():
        raise OSError(f"there is no folder {path.parent}: make it first, or write elsewhere with -o")
    try:
        handle, name = tempfile.mkstemp(suffix=path.suffix, prefix=".mmaccel-", dir=path.parent)
    except OSError as error:
        raise OSError(f"cannot write to {path.parent} ({error.strerror}): choose another place with -o") from error
    os.close(handle)
    return Path(name)
