"""The sound of a file, decoded piece by piece; without torch, for processes that do nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mmaccel.errors import AudioError, required

# in full, since the demo's decoder runs this file by itself
from mmaccel.speech.audio.wav_header import check_wav, read_wav_header

LONGEST_GAP = 3600.0  # seconds without sound, which are filled with silence
MOST_CHANNELS = 64
SLACK = 0.25  # seconds by which the times of a container may be off
WITHOUT_LENGTH = ("aac", "ac3", "amr", "amrnb", "amrwb", "eac3", "loas")  # FFmpeg's guess for them may be twice as long
LENGTHS = (b"Xing", b"Info", b"VBRI")  # what an MP3 file tells its length behind, in its first frame


class AudioFile:
    """Iterates over a file's samples, float32 `[n]`, the mean of all channels, with their rate.

    Parameters
    ----------
    file
        Any file that FFmpeg reads.
    skip_damaged
        Whether to use the readable part of a damaged or cut-off file, with silence for the rest of it. None: as False,
        where whoever sent the file cannot choose.
    options
        FFmpeg's own, such as which formats it may be in.
    """

    def __init__(self, file: Path, skip_damaged: bool | None = False, options: dict[str, str] | None = None) -> None:
        self.av = required("av", 'reading audio files needs PyAV: pip install "mmaccel[speech]"')
        self.file, self.skip_damaged, self.options = file, skip_damaged, options or {}
        self.seconds = 0.0
        self._mixer: Any = None
        self._mixes: tuple[Any, ...] = ()  # the kind of frame that it is for

    def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
        check_wav(self.file)
        try:
            # as an absolute path: FFmpeg takes what stands before a colon for a protocol; old titles are not UTF-8
            place = str(self.file.absolute())
            container = self.av.open(place, options=self.options, metadata_errors="replace")
        except (self.av.FFmpegError, ValueError) as error:
            raise AudioError(
                f"{self.file} is not an audio file that FFmpeg knows ({error}): convert it first"
            ) from error
        with container:
            if not container.streams.audio:
                raise AudioError(f"{self.file} holds no sound: pass a file with an audio track")
            stream = container.streams.audio[0]
            channels = 0 if stream.codec_context is None else stream.codec_context.channels
            if channels > MOST_CHANNELS:
                raise AudioError(f"{self.file} has {channels} channels, and FFmpeg mixes {MOST_CHANNELS} at most")
            for frame in self._frames(container, stream):
                for silence in self._silence(container, frame):
                    self.seconds += len(silence) / frame.sample_rate
                    yield silence, frame.sample_rate
                samples = self._mixed(frame)
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
                        f"{self.file} is damaged after {self.seconds:.2f} s ({error}): {self._remedy}"
                    ) from error

    def _silence(self, container: Any, frame: Any) -> Iterator[np.ndarray]:
        """What is missing before a frame, where the sound of a video begins late or has a gap, in parts of a second."""
        if frame.time is None or not container.duration:
            return
        begins = frame.time - (container.start_time or 0) / self.av.time_base
        missing = begins - self.seconds
        if missing < SLACK or begins > container.duration / self.av.time_base:  # or its time is none
            return
        if missing > LONGEST_GAP:
            raise AudioError(
                f"{self.file} has no sound from {self.seconds:.0f} to {begins:.0f} s: cut that out, or set its times"
                " right, as with ffmpeg -i"
            )
        count = round(missing * frame.sample_rate)
        for start in range(0, count, frame.sample_rate):
            yield np.zeros(min(frame.sample_rate, count - start), np.float32)

    def _check_length(self, container: Any, stream: Any) -> None:
        """Raise if the file announces more than it holds."""
        known = [float(stream.duration * stream.time_base)] if stream.duration else []
        known += [container.duration / self.av.time_base] if container.duration and len(container.streams) == 1 else []
        told = _tells_length(self.file, container.format.name)
        short = told and self.seconds < 0.98 * max(known, default=0.0) - SLACK
        header = read_wav_header(self.file)  # FFmpeg takes no notice of what a WAV file lacks
        missing = 0 if header is None else header.missing
        if not self.skip_damaged and (short or missing):
            lacks = f"its header says that {missing} more bytes follow; " if missing else ""
            raise AudioError(f"{self.file} is cut off after {self.seconds:.2f} s: {lacks}{self._remedy}")

    @property
    def _remedy(self) -> str:
        """What can be done about a damaged file."""
        skip = "" if self.skip_damaged is None else " or read what is there with skip_damaged=True,"
        return f"copy it again,{skip} or repair it: ffmpeg -i {shlex.quote(self.file.name)} -ar 16000 good.wav"

    def _mixed(self, frame: Any) -> np.ndarray:
        """Samples of a frame as float32, the mean of its channels."""
        kind = (frame.format.name, frame.layout.name, frame.sample_rate)
        if kind != self._mixes:
            # One plane for all channels: PyAV crashes on more than a few planes.
            self._mixer = self.av.AudioResampler(format="flt", layout=frame.layout, rate=frame.sample_rate)
            self._mixes = kind
        frame.pts = None  # frames come one behind the other; gaps are filled before
        converted = self._mixer.resample(frame)
        values = np.concatenate([part.to_ndarray().reshape(-1, len(frame.layout.channels)) for part in converted])
        return values.mean(1, dtype=np.float32)


def _tells_length(file: Path, form: str) -> bool:
    """Whether a file of FFmpeg's format `form` tells its length, which FFmpeg else guesses by the bits of a second."""
    if form != "mp3":
        return form not in WITHOUT_LENGTH
    with file.open("rb") as stream:
        head = stream.read(10)
        if head[:3] == b"ID3":  # a tag before the sound, whose size has 7 bits in each byte
            stream.seek(sum(byte << 7 * place for place, byte in enumerate(reversed(head[6:]))), 1)
            head = b""
        head += stream.read(2_048)
        return any(name in head for name in LENGTHS)
