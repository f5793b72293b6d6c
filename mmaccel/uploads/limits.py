"""What a file from a stranger may be, and what decoding it may take."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import SettingError


@dataclass(frozen=True)
class UploadLimits:
    """Bounds of one upload.

    Attributes
    ----------
    upload_bytes, clip_seconds, audio_seconds
        Largest file, and longest clip and recording in it.
    picture_pixels
        Most pixels of a picture, by default above those of a phone's photographs.
    frame_pixels, clip_pixels, audio_samples
        Most pixels of one frame of a clip and of all its frames, and most samples of all channels.
    read_seconds, read_bytes
        Time and memory that decoding one upload may take.
    side
        Most pixels of a side of a frame, to which larger ones are scaled down.
    """

    upload_bytes: int = 64 * 2**20
    clip_seconds: float = 120.0
    audio_seconds: float = 300.0
    picture_pixels: int = 64 * 10**6
    frame_pixels: int = 4096 * 2304
    clip_pixels: int = 10**10
    audio_samples: int = 192_000 * 600
    read_seconds: float = 20.0
    read_bytes: int = 2 * 2**30
    side: int = 1280

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise SettingError(f"{type(self).__name__}({name}={value!r}): it must be above 0")
