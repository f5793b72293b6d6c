"""Pictures on disk: one, several, or two runs side by side with their times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mmaccel.errors import SettingError
from mmaccel.pictures import column, enlarged, headed, sheet

if TYPE_CHECKING:
    from .generation import Painted

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


def check_format(path: Path) -> None:
    """Raise a `SettingError` for a file name that no picture format goes with."""
    if path.suffix.lower() not in FORMATS:
        raise SettingError(f"cannot write a picture as {path.name!r}: end the name with {', '.join(FORMATS)}")


def save(runs: list[tuple[str, Painted]], path: Path, captions: bool) -> None:
    """Write one column per run, with its label and time above if `captions`."""
    columns = [column([enlarged(picture) for picture in painted.pictures]) for _, painted in runs]
    if captions:
        columns = [
            headed(picture, f"{label}  {painted.token_seconds:.2f} s")
            for picture, (label, painted) in zip(columns, runs, strict=True)
        ]
    sheet(columns, len(columns)).save(path, FORMATS[path.suffix.lower()])
