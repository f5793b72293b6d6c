"""Videos of strangers, decoded apart."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from mmaccel.errors import VideoFileError
from mmaccel.uploads.apart import ApartReader, UploadRun, Wanted
from mmaccel.uploads.found import found
from mmaccel.uploads.limits import UploadLimits

from . import video_readers
from .read_video import ANIMATIONS, VideoFrames, take
from .sampling import llava


def read_clip(path: Path | str, frames: int, limits: UploadLimits, run: UploadRun | None = None) -> VideoFrames:
    """`frames` of an uploaded clip, or all where it has fewer, as :func:`mmaccel.vlm.read_video` takes them.

    Raises
    ------
    VideoFileError
        If it is no video, or too large, too long or too much to decode.
    """
    with found(path, limits, VideoFileError) as file:
        backend = "pil" if file.suffix.lower() in ANIMATIONS else "av"
        with closing(ApartReader(run or Wanted(), file, backend, limits, video_readers.__file__)) as reader:
            chosen = llava(len(reader.times), min(frames, len(reader.times)))
            return take(reader, chosen, limits.side, file, backend, progress=False)
