"""Pictures of strangers: known by their content, and measured before anything decodes them."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from PIL import Image

from ..errors import SettingError
from ..files.pictures import READ, UNREADABLE, upright
from .found import GONE
from .limits import UploadLimits


def read_picture(file: Path | BinaryIO, limits: UploadLimits) -> Image.Image:
    """An uploaded picture in RGB, upright.

    Raises
    ------
    SettingError
        If it is none, is damaged, has more pixels than allowed, or was deleted since.
    """
    try:
        with Image.open(file, formats=READ) as picture:
            if picture.width * picture.height > limits.picture_pixels:
                size = f"{picture.width}x{picture.height} pixels"
                raise SettingError(f"a picture has {size}: {limits.picture_pixels} are enough")
            return upright(picture)
    except FileNotFoundError as error:
        raise SettingError(f"{Path(error.filename).name} {GONE}") from error
    except UNREADABLE as error:
        if isinstance(error, SettingError):
            raise
        raise SettingError(f"a picture cannot be read ({', '.join(READ)}): it is none, or is damaged") from error
