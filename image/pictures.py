"""Pictures on disk: of one run, or of two side by side with their times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from mmaccel.files.pictures import enlarged, sheet, side_by_side

if TYPE_CHECKING:
    from .generation import Painted


def save(painted: Painted, path: Path) -> None:
    """Write the pictures of a run, several of them in about a square."""
    _grid(painted).save(path)


def save_side_by_side(runs: Sequence[tuple[str, Painted]], path: Path) -> None:
    """Write the pictures of several runs beside each other, each with its label and time above."""
    labels = [f"{label}: {painted.token_seconds:.2f} s" for label, painted in runs]
    side_by_side([_grid(painted) for _, painted in runs], labels).save(path)


def _grid(painted: Painted) -> Image.Image:
    found = [enlarged(picture) for picture in painted.pictures]
    return sheet(found, math.ceil(math.sqrt(len(found))))
