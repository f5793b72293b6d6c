"""What visitors upload: checked by content, size and length before anything decodes it, and decoded apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch

from mmaccel import vlm
from mmaccel.errors import AudioError, MissingExtraError, MmaccelError, VideoFileError
from mmaccel.speech.audio.audio import joined
from mmaccel.vlm.input.read_video import PICTURES, take
from mmaccel.vlm.input.sampling import llava

from ..limits import Limits
from ..runs import Run
from .apart import ApartReader, decoded_apart


def read_clip(path: str | None, frames: int, limits: Limits, run: Run | None = None) -> vlm.VideoFrames:
    """`frames` of an uploaded clip, or all where it has fewer, as :func:`mmaccel.vlm.read_video` takes them.

    Raises
    ------
    VideoFileError
        If there is none, it is no video, or too large, too long or too much to decode.
    Stopped
        If the visitor ends `run` meanwhile.
    """
    file = _found(path, limits, VideoFileError, "there is no clip yet: upload one first, or pick an example")
    backend = "pil" if file.suffix.lower() in PICTURES else "av"
    with _visitors_name(file), closing(ApartReader(run or Run(), file, backend, limits)) as reader:
        chosen = llava(len(reader.times), min(frames, len(reader.times)))
        return take(reader, chosen, limits.side, file, backend, progress=False)


def read_recording(path: str | None, limits: Limits, run: Run | None = None) -> torch.Tensor:
    """The sound of an uploaded file, float32 `[samples]` at 16,000 a second.

    Raises
    ------
    AudioError
        If there is none, it holds no sound, or is too large, too long or too much to decode.
    Stopped
        If the visitor ends `run` meanwhile.
    """
    file = _found(path, limits, AudioError, "there is no recording yet: upload one first, or pick an example")
    with _visitors_name(file):
        return joined(decoded_apart(run or Run(), file, limits, AudioError), file)


def _found(path: str | None, limits: Limits, error: type[MmaccelError], nothing: str) -> Path:
    """The file, if it is no larger than allowed."""
    if not path:
        raise error(nothing)
    if find_spec("av") is None:
        raise MissingExtraError('reading uploads needs PyAV: pip install "mmaccel[demo]"')
    file = Path(path)
    size = file.stat().st_size if file.is_file() else 0
    if not size:
        raise error(f"{file.name} is empty: record or copy it again, then upload it")
    if size > limits.upload_bytes:
        raise error(f"{file.name} has {size / 2**20:.0f} MiB, and {limits.upload_bytes / 2**20:.0f} MiB are allowed")
    return file


@contextmanager
def _visitors_name(file: Path) -> Iterator[None]:
    """Let errors name the file as the visitor knows it, and not where the server keeps it."""
    try:
        yield
    except MmaccelError as error:
        raise type(error)(str(error).replace(str(file), file.name)) from error
