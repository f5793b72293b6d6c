"""Video files frame by frame: through PyAV, decord, or PIL for animated pictures, behind one interface."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image, UnidentifiedImageError

from mmaccel.errors import VideoFileError, required
from mmaccel.files.pictures import on_white

WHOLE = 0.98  # share of the frames that the header promises: some headers are off by a few
NUMBERED = ("h264", "hevc")  # in AVI
BATCH = 8  # frames that decord is asked for at a time
NOT_A_VIDEO = "is not a video, or its beginning or end is missing: download or copy it again"


class Reader(Protocol):
    """An open file.

    Attributes
    ----------
    times : float64 `[N]`
        Seconds from the first frame to each.
    rate
        Frames per second by the header, None where it does not say.
    cut_off
        Seconds up to which the file is complete, if it has clearly fewer frames than its header says; else None.
    """

    times: np.ndarray
    rate: float | None
    cut_off: float | None

    def frames(self, indices: Sequence[int]) -> Iterator[np.ndarray]:
        """Frames uint8 `[H, W, 3]` by ascending numbers, upright, decoded one after the other."""

    def close(self) -> None: ...


class AvReader:
    """PyAV: counts packets without decoding, and decodes from the keyframe before each wanted frame.

    `options` are FFmpeg's own, such as which formats the file may be in.
    """

    def __init__(self, path: Path, options: dict[str, str] | None = None) -> None:
        self.path, self._av, self._options = path, _import("av", "av"), options or {}
        self._counted = False  # frames come in the order of their times, but with those of others
        self._open()
        self._pts, self._keys, expected = self._list()
        if not self._pts:
            raise VideoFileError(f"{path} has no frames: download or copy it again")
        base, header = self.stream.time_base, self.stream.average_rate
        self.rate = float(header) if header else None
        self.times = np.array([float((pts - self._pts[0]) * base) for pts in self._pts])
        self.cut_off: float | None = None
        if (
            expected is not None and len(self._pts) < WHOLE * expected
        ):  # what is before a keyframe needs nothing after it
            self.cut_off = float(((self._keys or self._pts)[-1] - self._pts[0]) * base)
        self._position: int | None = None

    def _open(self) -> None:
        # as an absolute path: FFmpeg takes what stands before a colon for a protocol
        place = str(self.path.absolute())
        try:  # old files have titles in other encodings than UTF-8
            self.container = self._av.open(place, options=self._options, metadata_errors="replace")
        except self._av.error.FFmpegError as error:
            raise VideoFileError(f"{self.path} {NOT_A_VIDEO}") from error
        streams = [s for s in self.container.streams.video if not s.disposition & s.disposition.attached_pic]
        if not streams:
            what = "holds audio only" if self.container.streams.audio else "holds no video"
            self.container.close()
            raise VideoFileError(f"{self.path} {what}: pass a file with a video stream")
        self.stream: Any = streams[0]
        if self.stream.codec_context is None:
            self.container.close()
            raise VideoFileError(f"{self.path} has a codec that this FFmpeg does not know: convert it to H.264")
        self.stream.thread_type = "AUTO"
        self.stream.codec_context.options = self._options
        self._decoded: Any = None

    def _list(self) -> tuple[list[int], list[int], int | None]:
        """Presentation times of all frames and of keyframes, ascending, and the header's number of frames."""
        context = self.stream.codec_context
        # AVI has no times of frames that are shown out of order, and FFmpeg numbers their packets.
        numbered = "avi" in self.container.format.name and context.name in NUMBERED and context.has_b_frames
        shown, keys, hidden, plain = [], [], 0, context.name != "vp8" and not numbered
        try:
            for packet in self.container.demux(self.stream):
                if packet.is_corrupt:  # half a packet, where the file is cut off
                    continue
                if packet.size == 0:  # the end, or a frame that repeats the one before
                    hidden += packet.dts is not None
                    continue
                hidden += packet.is_discard
                plain = plain and packet.pts is not None
                if not packet.is_discard and plain:
                    shown.append(packet.pts)
                    if packet.is_keyframe:
                        keys.append(packet.pts)
        except self._av.error.FFmpegError:  # cut off: what is before it counts
            pass
        if not plain:  # packets without times, or with pictures that are never shown
            return self._list_by_decoding(), [], self.stream.frames if numbered else None
        return sorted(shown), sorted(keys), max(0, self.stream.frames - hidden) or None

    def _list_by_decoding(self) -> list[int]:
        self._restart()
        try:
            found = [frame.pts for frame in self._decoded]
        except self._av.error.FFmpegError as error:
            raise VideoFileError(f"{self.path} is damaged: download or copy it again") from error
        if any(pts is None for pts in found):
            raise VideoFileError(f"{self.path} has frames without times: convert it, such as with ffmpeg -i IN OUT.mp4")
        self._decoded, self._counted = None, found != sorted(found)
        return sorted(found)

    def _decode(self) -> Iterator[Any]:
        times = iter(self._pts) if self._counted else None
        for packet in self.container.demux(self.stream):
            if not packet.is_corrupt:  # else the frames that the decoder still holds would be lost
                for frame in packet.decode():
                    if times is not None:
                        frame.pts = next(times, None)
                    yield frame

    def _restart(self) -> None:
        self.container.close()
        self._open()
        self._decoded, self._position = self._decode(), None

    def frames(self, indices: Sequence[int]) -> Iterator[np.ndarray]:
        for index in indices:
            try:
                frame = self._frame(self._pts[index])
            except self._av.error.FFmpegError as error:
                raise self._damaged(index) from error
            if frame is None:
                raise self._damaged(index)
            yield _upright(frame)

    def _frame(self, pts: int) -> Any:
        """The frame of this time, or None."""
        key = self._keys[max(0, bisect.bisect_right(self._keys, pts) - 1)] if self._keys else None
        if self._decoded is None:
            self._restart()
        if key is not None and key > (self._pts[0] if self._position is None else self._position):
            self.container.seek(key, stream=self.stream)
            self._decoded = self._decode()
            frame = self._next(pts)
            if frame is not None and frame.pts == pts:
                return frame
            self._restart()  # landed too late: rare, where keyframes are shown out of order
        frame = self._next(pts)
        return frame if frame is not None and frame.pts == pts else None

    def _next(self, pts: int) -> Any:
        for frame in self._decoded:
            if frame.pts is not None and frame.pts >= pts:
                self._position = frame.pts
                return frame
        return None

    def _damaged(self, index: int) -> VideoFileError:
        return damaged(self.path, index, self.times)

    def close(self) -> None:
        self.container.close()


class DecordReader:
    """decord (the wheel `decord2`): counts packets on opening, decodes batches, seeks by itself."""

    cut_off: float | None = None

    def __init__(self, path: Path) -> None:
        self.path, decord = path, _import("decord", "decord2")
        self._errors = (RuntimeError, decord.DECORDError)
        try:
            # any frame that decord would replace with its neighbour is an error
            self._reader = decord.VideoReader(str(path), ctx=decord.cpu(0), fault_tol=1e-9)
        except self._errors as error:
            reason = "holds no video stream" if "cannot find video stream" in str(error) else NOT_A_VIDEO
            raise VideoFileError(f"{path} {reason}, or decord cannot read it: pass backend='av'") from error
        table = self._reader.get_frame_timestamp(range(len(self._reader)))[:, 0].astype(np.float64)
        if table.min() < -1e-4:
            raise VideoFileError(f"{path} has hidden frames at its start, which decord miscounts: pass backend='av'")
        self.times = table - table[0]
        self.rate: float | None = float(self._reader.get_avg_fps())

    def frames(self, indices: Sequence[int]) -> Iterator[np.ndarray]:
        for first in range(0, len(indices), BATCH):
            batch = list(indices[first : first + BATCH])
            try:
                pictures = self._reader.get_batch(batch).asnumpy()
            except self._errors as error:
                raise VideoFileError(
                    f"{self.path}: decord cannot decode one of frames {batch[0]} to {batch[-1]}, which are damaged,"
                    " or of a width that it fails on (some below 150 pixels): pass backend='av'"
                ) from error
            yield from pictures

    def close(self) -> None:
        del self._reader


class PictureReader:
    """PIL: animated GIF, WebP and PNG, with the time that each frame is shown."""

    cut_off: float | None = None
    rate: float | None = None
    FORMATS = ("GIF", "WEBP", "PNG")  # whatever a file is called

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._picture = Image.open(path, formats=self.FORMATS)
            count = getattr(self._picture, "n_frames", 1)
            shown = [self._duration(index) for index in range(count)]
        except (UnidentifiedImageError, OSError, EOFError, SyntaxError, IndexError, struct.error) as error:
            raise VideoFileError(f"{path} {NOT_A_VIDEO}") from error
        except Image.DecompressionBombError as error:
            raise VideoFileError(f"{path} has frames of too many pixels: scale it down ({error})") from error
        self.times = np.cumsum([0.0, *shown[:-1]]) / 1000

    def _duration(self, index: int) -> float:
        self._picture.seek(index)
        self._picture.load()  # only then does WebP know
        return float(self._picture.info.get("duration", 0) or 100)  # browsers show frames of no duration for 0.1 s

    def frames(self, indices: Sequence[int]) -> Iterator[np.ndarray]:
        for index in indices:
            self._picture.seek(index)
            yield np.asarray(on_white(self._picture))

    def close(self) -> None:
        self._picture.close()


READERS: dict[str, Callable[[Path], Reader]] = {"av": AvReader, "decord": DecordReader, "pil": PictureReader}


def scaled(frame: np.ndarray, max_side: int | None) -> np.ndarray:
    """A frame with its longest side scaled down to `max_side` pixels, where it is longer."""
    height, width = frame.shape[:2]
    longest = max(height, width)
    if max_side is None or longest <= max_side:
        return frame
    return resized(frame, [max(1, round(side * max_side / longest)) for side in (width, height)])


def resized(frame: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """A frame scaled to width and height, by PIL's bicubic."""
    return np.asarray(Image.fromarray(frame).resize((size[0], size[1]), Image.Resampling.BICUBIC))


def damaged(path: Path, index: int, times: np.ndarray) -> VideoFileError:
    """The error for a frame that cannot be decoded."""
    return VideoFileError(
        f"{path} is cut off or damaged at frame {index} ({times[index]:.2f} s): download or copy it again,"
        f" or read what is before it with end={max(0.0, times[index] - 0.01):.2f}"
    )


def _pixels(frame: Any) -> np.ndarray:
    """A frame of PyAV as uint8 `[H, W, 3]`; FFmpeg would show what is behind transparent parts."""
    if frame.format.has_palette or any(component.is_alpha for component in frame.format.components):
        return np.asarray(on_white(Image.fromarray(frame.to_ndarray(format="rgba"))))
    return frame.to_ndarray(format="rgb24")


def _upright(frame: Any) -> np.ndarray:
    """A frame of PyAV as uint8 `[H, W, 3]`, turned and mirrored as its display matrix says, by right angles."""
    picture = _pixels(frame)
    try:
        told = next((data for data in frame.side_data if data.type.name == "DISPLAYMATRIX"), None)
    except ValueError:  # PyAV does not know all kinds of data, such as EXIF, and then tells the angle without mirrors
        return np.ascontiguousarray(np.rot90(picture, round(frame.rotation / 90)))
    if told is None:
        return picture
    a, b, _, c, d, *_ = np.frombuffer(bytes(told), np.int32).tolist()  # x, y are shown at a x + c y, b x + d y
    if abs(a) + abs(d) < abs(b) + abs(c):
        picture, a, d = picture.transpose(1, 0, 2), c, b
    return np.ascontiguousarray(picture[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1])


def _import(module: str, package: str) -> Any:
    return required(module, f'backend={module!r} needs {package}: pip install "mmaccel[video]"')
