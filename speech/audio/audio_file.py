"""The sound of a file, decoded piece by piece; without torch, for processes that do nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mmaccel.errors import AudioError, MissingExtraError

UNKNOWN_SIZE = 0x7FFFF000  # from here on a WAV header says that its writer did not know
SLACK = 0.25  # seconds by which a container's duration may be off


class AudioFile:
    """Iterates over a file's samples, float32 `[n]`, the mean of all channels, with their rate.

    Parameters
    ----------
    file
        Any file that FFmpeg reads.
    skip_damaged
        Whether to use the readable part of a damaged or cut-off file.
    options
        FFmpeg's own, such as which formats it may be in.
    """

    def __init__(self, file: Path, skip_damaged: bool = False, options: dict[str, str] | None = None) -> None:
        try:
            import av
        except ImportError as error:
            raise MissingExtraError('reading audio files needs PyAV: pip install "mmaccel[speech]"') from error
        self.av, self.file, self.skip_damaged, self.options = av, file, skip_damaged, options or {}
        self.seconds = 0.0

    def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
        try:
            container = self.av.open(str(self.file), options=self.options)
        except (self.av.FFmpegError, ValueError) as error:
            raise AudioError(
                f"{self.file} is not an audio file that FFmpeg knows ({error}): convert it first"
            ) from error
        with container:
            if not container.streams.audio:
                raise AudioError(f"{self.file} holds no sound: pass a file with an audio track")
            stream = container.streams.audio[0]
            for frame in self._frames(container, stream):
                samples = _mixed(self.av, frame)
                self.seconds += len(samples) / frame.sample_rate
                yield samples, frame.sample_rate
            self._check_length(container, stream)

    def _frames(self, container: Any, stream: Any) -> Iterator[Any]:
        packets = container.demux(stream)
        while True:
            try:
                packet = next(packets, None)
                if packet is None:
                    return
                yield from packet.decode()
            except self.av.FFmpegError as error:
                if not self.skip_damaged:
                    raise AudioError(
                        f"{self.file} is damaged after {self.seconds:.2f} s ({error}): copy it again, or read the rest"
                        " with skip_damaged=True"
                    ) from error

    def _check_length(self, container: Any, stream: Any) -> None:
        """Raise if the file announces more than it holds."""
        known = [float(stream.duration * stream.time_base)] if stream.duration else []
        known += [container.duration / self.av.time_base] if container.duration and len(container.streams) == 1 else []
        short = self.seconds < 0.98 * max(known, default=0.0) - SLACK
        if not self.skip_damaged and (short or _missing_bytes(self.file)):
            raise AudioError(
                f"{self.file} is cut off after {self.seconds:.2f} s: copy it again, or read what is there with"
                " skip_damaged=True"
            )


def _mixed(av: Any, frame: Any) -> np.ndarray:
    """Samples of a frame as float32, the mean of its channels."""
    # One plane for all channels: PyAV crashes on more than a few planes.
    converted = av.AudioResampler(format="flt", layout=frame.layout, rate=frame.sample_rate).resample(frame)
    values = np.concatenate([part.to_ndarray().reshape(-1, len(frame.layout.channels)) for part in converted])
    mixed: np.ndarray = values.mean(1, dtype=np.float32)
    return mixed


def _missing_bytes(file: Path) -> int:
    """Bytes that a WAV file lacks compared with its header, which FFmpeg ignores."""
    with file.open("rb") as stream:
        header = stream.read(12)
    if header[:4] != b"RIFF" or header[8:] != b"WAVE":
        return 0
    announced = int.from_bytes(header[4:8], "little") + 8
    return max(0, announced - file.stat().st_size) if announced < UNKNOWN_SIZE else 0
