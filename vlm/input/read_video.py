"""Frames of a video file, chosen as a model expects them, with their presentation times."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from mmaccel.cache import require_memory
from mmaccel.errors import MissingExtraError, SettingError, VideoFileError, unknown_name
from mmaccel.progress import looks

from .sampling import MAX_FRAMES, MIN_FRAMES, check_sampling, sample_frames
from .video_readers import READERS, Reader, resized, scaled

ANIMATIONS = (".gif", ".webp", ".apng")
SLACK = 1e-3  # seconds: decord keeps times in single precision
BAR_AFTER = 2.0  # seconds of reading until a progress bar appears


@dataclass(frozen=True, eq=False)
class VideoFrames:
    """Frames of one video; iterating gives them as arrays, and indexing one or several.

    Attributes
    ----------
    frames : uint8 `[F, H, W, 3]`
        RGB, upright.
    indices : int64 `[F]`
        Indices of the frames in the file.
    times : float64 `[F]`
        Presentation time of each, in seconds from the first frame of the file.
    fps
        Frames per second of the file: its header's, or the mean where the header is wrong.
    total_frames
        Frames in the file.
    duration
        Length of the file in seconds, with ``1 / fps`` for the last frame.
    path
        The file.
    backend
        The library that read it.
    """

    frames: np.ndarray
    indices: np.ndarray
    times: np.ndarray
    fps: float
    total_frames: int
    duration: float
    path: Path
    backend: str

    def __len__(self) -> int:
        return len(self.frames)

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.frames)

    def __getitem__(self, place: int | slice) -> np.ndarray:
        return self.frames[place]

    def images(self) -> list[Image.Image]:
        """The frames as PIL pictures."""
        return [Image.fromarray(frame) for frame in self.frames]

    def only(self, places: list[int]) -> VideoFrames:
        """Some of the frames, with their times."""
        return replace(self, frames=self.frames[places], indices=self.indices[places], times=self.times[places])

    @property
    def metadata(self) -> dict[str, Any]:
        """`video_metadata` for transformers' processors, for models that use the times.

        These divide by `fps`, which tells the time only where the rate is constant, and take the frames as spread
        over all of `total_num_frames`: both numbers are those from which the true times result.
        """
        return {
            "total_num_frames": self._spanned(),
            "fps": self.fps,
            "width": self.frames.shape[2],
            "height": self.frames.shape[1],
            "duration": self.duration,
            "video_backend": self.backend,
            "frames_indices": np.rint(self.times * self.fps).astype(np.int64),
        }

    def _spanned(self) -> int:
        """Frames of the file that these stand for, each for those up to the next."""
        gaps = len(self) - 1
        spanned = len(self) * self.fps * (self.times[-1] - self.times[0]) / gaps if gaps else self.total_frames
        return max(len(self), round(float(spanned)))


def read_video(
    path: str | PathLike[str],
    frames: int | None = None,
    *,
    fps: float | None = None,
    sampling: str = "llava",
    start: float | None = None,
    end: float | None = None,
    min_frames: int = MIN_FRAMES,
    max_frames: int = MAX_FRAMES,
    max_side: int | None = None,
    backend: str | None = None,
    progress: bool | None = None,
) -> VideoFrames:
    """Read some frames of a video file; only these are kept in memory.

    Parameters
    ----------
    path
        Any file that FFmpeg reads; animated GIF, WebP and PNG need nothing but PIL.
    frames
        Number of frames to take.
    fps
        Frames to take per second instead.
    sampling
        The rule of a model family: ``"llava"`` (default), ``"qwen"``, ``"qwen3"``, ``"internvl"`` or ``"uniform"``; see
        :func:`mmaccel.vlm.input.sampling.sample_frames`. Rules count frames, as all references do; if the frame rate
        varies, `times` has the time of each.
    start, end
        Part of the video to take them from, in seconds from its first frame, `end` excluded; None (default) for all.
    min_frames, max_frames
        Bounds of the number that results from `fps`, default 4 and 768 as in the Qwen processors.
    max_side
        Longest side in pixels, larger frames are scaled down (PIL's bicubic); None (default) keeps their size.
    backend
        ``"av"`` (PyAV), ``"decord"`` (the wheel `decord2`) or ``"pil"``; None (default) for PIL where the name ends
        in .gif, .webp or .apng, else PyAV, or decord where PyAV is not installed. Both give the same
        pixels for about the same processor time; PyAV comes first because decord fails on frames of some
        widths below 150 pixels and on MPEG-TS, miscounts trimmed files, does not notice a missing end, and shows what
        is behind transparent parts, which are white here else.
    progress
        True for a progress bar, False for none, None (default) for one that appears after 2 seconds.

    Returns
    -------
    VideoFrames

    Raises
    ------
    VideoFileError
        If the file is missing, a folder, cut off, damaged, without frames, or holds audio only.
    SettingError
        If a setting is out of range, or the file has fewer frames than requested.
    MemoryLimitError
        If the requested frames do not fit into free memory.
    MissingExtraError
        If neither PyAV nor decord is installed.

    Examples
    --------
    >>> video = read_video("cat.mp4", frames=32)  # doctest: +SKIP
    >>> told = {"video_metadata": [video.metadata], "do_sample_frames": False}  # doctest: +SKIP
    >>> inputs = processor(text=prompt, videos=[video.frames], **told, return_tensors="pt")  # doctest: +SKIP
    """
    check_sampling(sampling, frames, fps, min_frames, max_frames)
    _check(start, end, max_side)
    file = _file(path)
    name = _backend(file, backend)
    with closing(READERS[name](file)) as reader:
        rate, part = _rate(reader), _part(reader, start, end, file)
        bounds: dict[str, Any] = {"min_frames": min_frames, "max_frames": max_frames, "name": str(file)}
        chosen = part[0] + sample_frames(sampling, len(part), frames=frames, fps=fps, rate=rate, **bounds)
        return take(reader, chosen, max_side, file, name, progress)


def read_at_most(path: str | PathLike[str], frames: int) -> VideoFrames:
    """So many frames of a video file, or all if it has fewer."""
    file = _file(path)
    name = _backend(file, None)
    with closing(READERS[name](file)) as reader:
        count = len(_part(reader, None, None, file))
        return take(reader, sample_frames("llava", count, frames=min(frames, count)), None, file, name, None)


def frames_in_file(
    path: str | PathLike[str],
    frames: int | None = None,
    *,
    fps: float | None = None,
    sampling: str = "llava",
    start: float | None = None,
    end: float | None = None,
    backend: str | None = None,
) -> Generator[np.ndarray, None, None]:
    """At most so many frames of a video file one by one, or `fps` of each second; see :func:`read_video`."""
    check_sampling(sampling, frames, fps, MIN_FRAMES, MAX_FRAMES)
    _check(start, end, None)
    file = _file(path)
    with closing(READERS[_backend(file, backend)](file)) as reader:
        part = _part(reader, start, end, file)
        asked: dict[str, Any] = {"frames": None if frames is None else min(frames, len(part)), "fps": fps}
        asked["max_frames"] = max(MIN_FRAMES, len(part))
        yield from reader.frames((part[0] + sample_frames(sampling, len(part), rate=_rate(reader), **asked)).tolist())


def take(
    reader: Reader, chosen: np.ndarray, max_side: int | None, file: Path, backend: str, progress: bool | None
) -> VideoFrames:
    """The chosen frames of an open file."""
    pictures = _read(reader, chosen, max_side, progress, file)
    rate, times = _rate(reader), reader.times
    return VideoFrames(pictures, chosen, times[chosen], rate, len(times), float(times[-1] + 1 / rate), file, backend)


def _check(start: float | None, end: float | None, max_side: int | None) -> None:
    first, last = 0.0 if start is None else start, math.inf if end is None else end
    if not (isinstance(first, Real) and isinstance(last, Real) and 0 <= first < last):
        raise SettingError(f"start={start!r}, end={end!r}: seconds of at least 0, start before end")
    if max_side is not None and not (isinstance(max_side, Real) and max_side >= 1):
        raise SettingError(f"max_side={max_side!r}: pass pixels, such as max_side=448")


def _file(path: str | PathLike[str]) -> Path:
    file = Path(path)
    if file.is_dir():
        raise VideoFileError(f"{file} is a folder: pass one of the files in it")
    if not file.is_file():
        raise VideoFileError(f"{file} does not exist (looked in {Path.cwd()}): pass the path of a video file")
    if file.stat().st_size == 0:
        raise VideoFileError(f"{file} is empty: download or copy it again")
    if not os.access(file, os.R_OK):
        raise VideoFileError(f"{file} may not be read: change its permissions, or copy it as somebody who may")
    return file


def _backend(file: Path, backend: str | None) -> str:
    """The backend for a file."""
    if backend is not None:
        if backend not in READERS:
            raise unknown_name("backend", backend, READERS)
        return backend
    if file.suffix.lower() in ANIMATIONS:
        return "pil"
    for name in ("av", "decord"):
        if importlib.util.find_spec(name) is not None:
            return name
    raise MissingExtraError('reading video needs PyAV or decord: pip install "mmaccel[video]"')


def _rate(reader: Reader) -> float:
    """Frames per second from the header, unless the times contradict it."""
    span = float(reader.times[-1])
    mean = (len(reader.times) - 1) / span if span > 0 else None
    if mean is None:
        return reader.rate or 1.0
    if reader.rate is not None and abs(reader.rate - mean) <= 0.01 * mean:
        return reader.rate
    return mean


def _part(reader: Reader, start: float | None, end: float | None, file: Path) -> range:
    """Indices of the frames from `start` to `end`."""
    times = reader.times
    if reader.cut_off is not None and (end is None or end > times[-1] + SLACK):
        raise VideoFileError(
            f"{file} is cut off after about {times[-1]:.2f} s: download or copy it again,"
            f" or read what is there with end={reader.cut_off:.2f}"
        )
    first = 0 if start is None else int(np.searchsorted(times, start - SLACK))
    last = len(times) if end is None else int(np.searchsorted(times, end - SLACK))
    if first >= last:
        raise SettingError(f"no frame of {file} is in start={start}, end={end}: it has {times[-1]:.2f} s")
    return range(first, last)


def _read(reader: Reader, chosen: np.ndarray, max_side: int | None, progress: bool | None, file: Path) -> np.ndarray:
    """The frames in one array, scaled one by one as they come."""
    wanted = chosen.tolist()
    result: np.ndarray | None = None
    shown = {"unit": "frames", "delay": BAR_AFTER, **looks(), **({"delay": 0.0} if progress else {})}
    bar = tqdm(reader.frames(wanted), file.name, len(wanted), disable=progress is False, **shown)
    for place, frame in enumerate(bar):
        small = scaled(frame, max_side)
        if result is None:
            what, advice = f"{len(wanted)} frames of {file}", "ask for fewer, or pass max_side=448"
            require_memory(len(wanted) * small.nbytes, "cpu", what, advice)
            result = np.empty((len(wanted), *small.shape), np.uint8)
        result[place] = small if small.shape == result.shape[1:] else resized(small, result.shape[2:0:-1])
    assert result is not None
    return result
