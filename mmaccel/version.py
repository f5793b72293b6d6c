"""The version of this package, and of the packages that it is built on."""

from __future__ import annotations

import platform
from importlib import metadata

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """Versions that decide what a run does, for plans, reports and benchmark headers."""
    found = {"mmaccel": __version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "diffusers"):
        found[package] = metadata.version(package)
    return found
