"""Where files are kept for this user from one run to the next."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """`$MMACCEL_CACHE`, or `mmaccel` in the platform's folder for caches (on Linux `$XDG_CACHE_HOME` or `~/.cache`)."""
    chosen = os.environ.get("MMACCEL_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("mmaccel", appauthor=False))
