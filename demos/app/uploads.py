"""What visitors upload: checked by content, size and length before anything decodes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from mmaccel import vlm
from mmaccel.errors import AudioError, MissingExtraError, MmaccelError, VideoFileError
from mmaccel.speech import read_audio

from .limits import Limits

# FFmpeg's names of what is read, whatever a file is called. Playlists are not among them: those name other files to
# open, which would be files of the server.
FORMATS = (
    "3gp,aac,ac3,aiff,amr,amrnb,amrwb,apng,asf,au,avi,caf,flac,flv,gif,m4a,matroska,mj2,mov,mp3,mp4,mpeg,mpegts,mpegvideo,"
    "ogg,opus,w64,wav,webm,webp_pipe"
)


def read_clip(path: str | None, frames: int, limits: Limits) -> vlm.VideoFrames:
    """`frames` of an uploaded clip, or all where it has fewer.

    Raises
    ------
    VideoFileError
        If there is none, it is too large or too long, or no video.
    """
    file = _found(path, limits, VideoFileError, "there is no clip yet: upload one first, or pick an example")
    with _visitors_name(file):
        _check(file, limits.clip_seconds, VideoFileError, "video")
        first = vlm.read_video(file, frames=1, max_side=limits.side, progress=False)
        count = min(frames, first.total_frames)
        return vlm.read_video(file, frames=count, max_side=limits.side, progress=False)


def read_recording(path: str | None, limits: Limits) -> torch.Tensor:
    """The sound of an uploaded file, float32 `[samples]` at 16,000 a second.

    Raises
    ------
    AudioError
        If there is none, it is too large or too long, or holds no sound.
    """
    file = _found(path, limits, AudioError, "there is no recording yet: upload one first, or pick an example")
    with _visitors_name(file):
        _check(file, limits.audio_seconds, AudioError, "audio")
        return read_audio(file)


def _found(path: str | None, limits: Limits, error: type[MmaccelError], nothing: str) -> Path:
    """The file, if it is no larger than allowed."""
    if not path:
        raise error(nothing)
    file = Path(path)
    size = file.stat().st_size if file.is_file() else 0
    if not size:
        raise error(f"{file.name} is empty: record or copy it again, then upload it")
    if size > limits.upload_bytes:
        raise error(f"{file.name} has {size / 2**20:.0f} MiB, and {limits.upload_bytes / 2**20:.0f} MiB are allowed")
    return file


def _check(file: Path, most: float, error: type[MmaccelError], kind: str) -> None:
    """Raise unless this is a media file of at most so many seconds.

    They are counted from the packets that it holds: its header may say anything, and decoding takes memory.
    """
    try:
        import av
    except ImportError as missing:
        raise MissingExtraError('reading uploads needs PyAV: pip install "mmaccel[demo]"') from missing
    try:
        with av.open(str(file), options={"format_whitelist": FORMATS, "protocol_whitelist": "file"}) as container:
            streams = getattr(container.streams, kind)
            if not streams:
                raise error(f"{file.name} holds no {kind}: upload one that does")
            played = 0.0
            for packet in container.demux(streams[0]):
                played += float((packet.duration or 0) * (packet.time_base or 0))
                if played > most:
                    raise error(
                        f"{file.name} lasts longer than {most:g} s, which is the most here: upload a part of it"
                    )
    except (av.FFmpegError, ValueError) as problem:
        if isinstance(problem, MmaccelError):
            raise
        raise error(f"{file.name} is no {kind} file, or is damaged: upload another, such as .mp4 or .wav") from problem


@contextmanager
def _visitors_name(file: Path) -> Iterator[None]:
    """Let errors name the file as the visitor knows it, and not where the server keeps it."""
    try:
        yield
    except MmaccelError as error:
        raise type(error)(str(error).replace(str(file), file.name)) from error
