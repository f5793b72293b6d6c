"""The version of this package, and of the packages that it is built on."""

from __future__ import annotations

import functools
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

__version__ = "0.2.0.dev0"
CODE = ":(top,exclude)docs"


def versions() -> dict[str, str]:
    """Versions that decide what a run does, for plans, reports and benchmark headers."""
    packages = ("torch", "transformers", "diffusers")
    return {
        "mmaccel": __version__,
        "python": platform.python_version(),
        **{package: _installed(package) for package in packages},
    }


@functools.cache  # every session asks, and the description of a package takes milliseconds to read
def _installed(package: str) -> str:
    return metadata.version(package)


def commit() -> dict[str, Any]:
    """The commit that this file is of, and whether what is measured is as committed; both None where git cannot say.

    `docs` and files that git does not know do not count: benchmarks write their results there, and what is committed
    imports nothing else.

    Examples
    --------
    >>> sorted(commit())
    ['clean', 'commit']
    """
    here = Path(__file__).resolve()
    try:
        _git("ls-files", "--error-unmatch", here.name, folder=here.parent)  # not that of an environment's surroundings
        found = _git("rev-parse", "HEAD", folder=here.parent)
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", CODE, folder=here.parent)
        return {"commit": found, "clean": not changed}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "clean": None}


def _git(*words: str, folder: Path) -> str:
    made = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=30)
    return made.stdout.strip()
