"""A video file into a stream: decoding, preparing and reading go on at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from mmaccel.errors import VideoFileError

from ..input.changes import STILL, Changes
from ..input.read_video import frames_in_file
from .ahead import ahead
from .video_stream import VideoStream

CHUNK = 6  # frames that the tower takes together
QUEUED = 2  # chunks that wait between two stages


@dataclass(frozen=True)
class Watched:
    """What was seen of a file.

    Attributes
    ----------
    frames
        Frames that the stream took in.
    decoded
        Frames that were decoded; of the others nothing was new.
    seconds
        From the start to the last frame, all stages together.
    """

    frames: int
    decoded: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.frames} of {self.decoded} frames showed something new"


def watch(
    stream: VideoStream,
    path: str | PathLike[str],
    still: float = STILL,
    frames: int = 32,
    fps: float | None = None,
    **chosen: Any,
) -> Watched:
    """Let a stream see a video file, while decoding goes on and without frames in which nothing changes; lossy.

    Decoding, preparing, vision tower and language model are four stages with bounded queues between them. When the last
    frame is there, the language model has read all others: the question alone is left.

    Parameters
    ----------
    stream
        A :class:`~mmaccel.vlm.VideoStream`; what it has seen before stays.
    path
        Any file of :func:`~mmaccel.vlm.read_video`.
    still
        Levels of 255 by which some part of the picture must differ from the last frame that was taken, default 24;
        0 takes all frames. See :class:`~mmaccel.vlm.input.changes.Changes`.
    frames
        Most frames to look at, default 32; without `fps` only.
    fps
        Frames to look at for each second instead; None (default) to go by `frames`.
    chosen
        `sampling`, `start`, `end` and `backend` of :func:`~mmaccel.vlm.read_video`.

    Raises
    ------
    VideoFileError
        If the file cannot be read; the stream keeps the frames before the fault.
    SettingError
        If a setting is out of range.

    Examples
    --------
    >>> with vlm.VideoStream(model, processor) as stream:  # doctest: +SKIP
    ...     vlm.watch(stream, "clip.mp4", fps=2)
    ...     print(stream.ask("what moves up?"))
    """
    which = {"frames": frames if fps is None else None, "fps": fps, **chosen}
    changes, began, decoded = Changes(still), time.perf_counter(), 0

    def fresh() -> Iterator[list[np.ndarray]]:
        nonlocal decoded
        chunk: list[np.ndarray] = []
        with closing(frames_in_file(path, **which)) as decoding:
            try:
                for frame in decoding:
                    decoded += 1
                    if changes.new(frame):
                        chunk.append(frame)
                    if len(chunk) == CHUNK:
                        yield chunk
                        chunk = []
            except VideoFileError:
                if chunk:
                    yield chunk
                raise
        if chunk:
            yield chunk

    before = stream.stats.frames
    try:
        with ExitStack() as stages:

            def stage(items: Iterator[Any]) -> Iterator[Any]:
                return stages.enter_context(closing(ahead(items, QUEUED)))

            prepared = stage(map(stream.pixels, stage(fresh())))
            for made in stage(map(stream.features, prepared)):
                stream.push_features(made)
    finally:
        seconds = time.perf_counter() - began
        stream.stats.seconds += seconds
    return Watched(stream.stats.frames - before, decoded, seconds)
