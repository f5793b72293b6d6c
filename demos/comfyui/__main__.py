"""Installs the nodes into a ComfyUI: ``python -m mmaccel.demos.comfyui FOLDER``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from mmaccel.errors import MmaccelError, SettingError

PACK = Path(__file__).parent / "pack"
NAME = 'name = "mmaccel-nodes"'  # in the pyproject.toml of the pack
FRONT_DOOR = (
    '"""Nodes that make diffusion models faster."""\n\nfrom .nodes import comfy_entrypoint as comfy_entrypoint\n'
)


def install(folder: Path) -> Path:
    """Copy the node pack into ``custom_nodes`` of a ComfyUI, in place of an older copy; returns where it is.

    Raises
    ------
    SettingError
        If the folder holds no ComfyUI, or something else lies where the nodes go, such as a clone of mmaccel.
    """
    if not (folder / "custom_nodes").is_dir():
        raise SettingError(
            f"{folder} has no folder custom_nodes: give the folder of ComfyUI itself, or its --base-directory"
        )
    place = folder / "custom_nodes" / "mmaccel"
    if os.path.lexists(place) and not _is_earlier_copy(place):
        raise SettingError(
            f"{place} is not an earlier copy of these nodes: move it away, such as out of custom_nodes, and run this"
            " again"
        )
    with TemporaryDirectory(prefix=".mmaccel-", dir=place.parent) as beside:  # of the same disk, so that both can swap
        fresh = shutil.copytree(PACK, Path(beside) / "new", ignore=shutil.ignore_patterns("__pycache__"))
        (fresh / "__init__.py").write_text(FRONT_DOOR, encoding="utf-8")
        old = Path(beside) / "old"
        if place.exists():
            place.rename(old)
        try:
            fresh.rename(place)
        except OSError:
            if old.exists():
                old.rename(place)
            raise
    return place


def _is_earlier_copy(place: Path) -> bool:
    """Whether these nodes lie there, and nothing that a user may want to keep, as a clone or a link to one."""
    described = place / "pyproject.toml"
    if place.is_symlink() or (place / ".git").exists() or not described.is_file():
        return False
    return NAME in described.read_text(encoding="utf-8", errors="replace")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mmaccel.demos.comfyui",
        description="Install mmaccel's nodes into a ComfyUI. Run it with the Python that runs that, then restart it.",
    )
    parser.add_argument("folder", type=Path, help="folder of ComfyUI, which holds custom_nodes")
    try:
        print(f"installed into {install(parser.parse_args().folder)}: restart ComfyUI, the nodes are below mmaccel")
    except (MmaccelError, OSError) as error:
        print(f"mmaccel: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
