"""Files that appear only when they are finished, at paths that were checked before the work began."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOM = 2**20  # bytes that must fit, about what a picture or a clip of the shipped models takes


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write to a temporary file beside the target, and put it in place only if the block succeeds.

    Of a link the file behind it is written, and a file that was there keeps its permissions. The temporary file has
    the ending that was named, by which formats are chosen.
    """
    temporary = _temporary(path, "give another path")
    path = _behind(path)
    try:
        yield temporary
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    temporary.chmod(_mode(path))  # mkstemp makes files that only their owner can read
    try:
        temporary.replace(path)
    except OSError as error:  # on Windows where another program has the file open
        advice = f"close it where it is open; the result is in {temporary}"
        raise OSError(f"{path} cannot be replaced ({error.strerror}): {advice}") from error


def check_writable(path: Path | None, option: str = "-o") -> None:
    """Raise an `OSError` that says why if a file cannot be written there, before any work is done.

    Nothing stays behind, so that a run that is killed leaves no empty files.

    Parameters
    ----------
    path
        None where no file is asked for.
    option
        What the user changes to write elsewhere.
    """
    if path is None:
        return
    elsewhere = f"write elsewhere with {option}"
    temporary = _temporary(path, elsewhere)
    try:
        temporary.write_bytes(bytes(ROOM))
    except OSError as error:
        raise OSError(f"no room for {path} ({error.strerror}): free some, or {elsewhere}") from error
    finally:
        temporary.unlink(missing_ok=True)


def beside(path: Path, word: str) -> Path:
    """The file of the same kind with a word in its name.

    Examples
    --------
    >>> print(beside(Path("clip.mp4"), "compare"))
    clip.compare.mp4
    """
    return path.with_name(f"{path.stem}.{word}{path.suffix}")


def _behind(path: Path) -> Path:
    """The file that is written for a path: where a link leads, if not to a pipe, which has no path."""
    leads = path.is_symlink() and (path.is_file() or not path.exists())
    return Path(os.path.realpath(path)) if leads else path


def _mode(path: Path) -> int:
    """The permissions of a file, or those of a new one."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _temporary(named: Path, elsewhere: str) -> Path:
    """A new file beside the one that is written, with the ending that was named; errors say how to write elsewhere."""
    path = _behind(named)
    if path.is_dir():
        raise OSError(f"{path} is a folder: give a file name")
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file, and would be replaced: {elsewhere}")
    if not path.parent.is_dir():
        raise OSError(f"there is no folder {path.parent}: create it first, or {elsewhere}")
    try:
        handle, name = tempfile.mkstemp(suffix=named.suffix, prefix=".mmaccel-", dir=path.parent)
    except OSError as error:
        raise OSError(f"cannot write to {path.parent} ({error.strerror}): {elsewhere}") from error
    os.close(handle)
    return Path(name)
