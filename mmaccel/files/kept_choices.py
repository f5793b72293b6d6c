"""What was measured to be fastest on a processor, kept in one small JSON file from one process to the next."""

from __future__ import annotations

import contextlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

from ..errors import WeightsError
from ..machine import processor
from .foreign_json import read_json
from .output import replacing
from .user_cache import cache_folder

MOST_BYTES = 1 << 20


def path() -> Path:
    """The file; whoever deletes it only makes the next process measure again."""
    return cache_folder() / "choices.json"


def place(threads: int) -> str:
    """What a choice holds for: processor, threads and torch's version.

    Examples
    --------
    >>> place(2)  # doctest: +SKIP
    'AMD EPYC, 2 threads, torch 2.13.0'
    """
    return f"{processor()}, {threads} threads, torch {metadata.version('torch')}"


def read() -> dict[str, dict[str, Any]]:
    """All choices, by place and name; none where the file is missing, unreadable or broken."""
    try:
        found = read_json(path(), MOST_BYTES, "it is measured again")
    except (WeightsError, OSError, RuntimeError):  # the last one of a user without a home folder
        return {}
    if not isinstance(found, dict):
        return {}
    return {at: choices for at, choices in found.items() if isinstance(choices, dict)}


def keep(at: str, name: str, choice: Any) -> None:
    """Write a choice, which JSON can hold, in one step; a file that cannot be written is no error."""
    kept = read()
    kept.setdefault(at, {})[name] = choice
    with contextlib.suppress(OSError, RuntimeError), contextlib.ExitStack() as leftovers:
        file = path()
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary:
            leftovers.callback(temporary.unlink, missing_ok=True)
            temporary.write_text(json.dumps(kept, indent=1))


def forget() -> None:
    """Delete the file.

    Raises
    ------
    OSError
        If it is there and cannot be deleted.
    """
    path().unlink(missing_ok=True)


def here() -> dict[str, dict[str, Any]]:
    """The choices for this processor and this torch, by place."""
    kind, version = f"{processor()}, ", f", torch {metadata.version('torch')}"
    return {at: choices for at, choices in read().items() if at.startswith(kind) and at.endswith(version)}
