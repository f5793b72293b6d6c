"""Installs the nodes into a ComfyUI: ``python -m mmaccel.demos.comfyui FOLDER``."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from mmaccel.errors import MmaccelError, SettingError

PACK = Path(__file__).parent / "pack"
FRONT_DOOR = (
    '"""Nodes that make diffusion models faster."""\n\nfrom .nodes import comfy_entrypoint as comfy_entrypoint\n'
)


def install(folder: Path) -> Path:
    """Copy the node pack into ``custom_nodes`` of a ComfyUI, in place of an older copy; returns where it is.

    Raises
    ------
    SettingError
        If the folder holds no ComfyUI.
    """
    if not (folder / "custom_nodes").is_dir():
        raise SettingError(
            f"{folder} has no folder custom_nodes: give the folder of ComfyUI itself, or its --base-directory"
        )
    place = folder / "custom_nodes" / "mmaccel"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(PACK, place, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "__init__.py").write_text(FRONT_DOOR, encoding="utf-8")
    return place


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
