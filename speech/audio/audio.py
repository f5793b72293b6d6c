"""Samples as recognisers take them, float32 of one channel, from files, from chunks of any kind and at any rate."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmaccel.errors import AudioError, SettingError, required
from mmaccel.method import is_count, plain_number

from .audio_file import AudioFile
from .wav_header import RATES

RATE = 16_000
MOST_CHANNELS = 8  # an array whose two sides are both no larger could be either way round
LOUDEST = 16.0  # floats beyond this are numbers of another scale, not loud samples
# Where each kind of integer has its zero, and what it is divided by.
INTEGERS = {"uint8": (128.0, 128.0), "int16": (0.0, 32_768.0), "int32": (0.0, 2_147_483_648.0)}
BYTES = "Bbc"  # formats of memory that holds no numbers of its own, behind its byte order
FLOATS = ("float16", "float32", "float64", "bfloat16")


def to_samples(chunk: Any, channels: int | None = None) -> torch.Tensor:
    """Turn a chunk of sound into float32 samples of one channel, `[samples]`, a copy.

    Parameters
    ----------
    chunk
        A numpy array, tensor or list of floats in -1 to 1 (a little more, or clipped, is taken as it is), or of
        uint8, int16 or int32; or bytes, or a buffer of them, of 16-bit samples, low byte first. Several channels,
        `[samples, channels]` or `[channels, samples]`, are averaged; in bytes and in a row their samples take turns.
    channels
        Number of channels; None (default) to read it from the shape, where a side of 1 is one channel, or 1 for bytes.

    Raises
    ------
    AudioError
        If a number is not finite or of another scale, or the kind or shape cannot be sound. Nothing is guessed.

    Examples
    --------
    >>> to_samples(np.array([[16384, 0], [-32768, 0]], np.int16), channels=2)
    tensor([ 0.2500, -0.5000])
    """
    if channels is not None and not is_count(plain_number(channels)):
        raise AudioError(f"channels={channels!r}: pass how many there are, such as channels=2")
    values = _array(chunk, channels)
    name = values.dtype.name
    if name in INTEGERS:
        zero, scale = INTEGERS[name]
        values = (values.astype(np.float32) - np.float32(zero)) / np.float32(scale)
    elif name in FLOATS:
        values = values.astype(np.float32)
        _check_floats(values)
    else:
        raise AudioError(f"a chunk of {name}: pass float32 in -1 to 1, or int16, such as chunk.astype('int16')")
    return torch.from_numpy(_mixed(values, channels))


def copied(chunk: Any) -> Any:
    """A chunk of sound in memory of its own."""
    chunk = _viewed(chunk)
    if isinstance(chunk, torch.Tensor):
        return chunk.detach().clone()
    if isinstance(chunk, memoryview) and chunk.format[-1] in BYTES:
        return bytes(chunk)
    if isinstance(chunk, np.ndarray | memoryview | array):
        return np.array(chunk)
    return list(chunk) if isinstance(chunk, list) else chunk


def _viewed(chunk: Any) -> Any:
    """A view of what is memory and no array, such as the buffers of sounddevice and the planes of PyAV."""
    if hasattr(chunk, "dtype") or isinstance(chunk, array):
        return chunk
    try:
        return memoryview(chunk)
    except TypeError:
        return chunk


def _array(chunk: Any, channels: int | None) -> np.ndarray:
    chunk = _viewed(chunk)
    if isinstance(chunk, memoryview):
        if chunk.format[-1] not in BYTES:
            return np.array(chunk)
        data = bytes(chunk)
        if len(data) % (2 * (channels or 1)):
            raise AudioError(f"{len(data)} bytes are not a whole number of 16-bit samples: pass both bytes of each")
        return np.frombuffer(data, "<i2")
    if isinstance(chunk, torch.Tensor):
        chunk = chunk.detach().cpu()
        return (chunk.float() if chunk.dtype is torch.bfloat16 else chunk).numpy()
    try:
        return np.asarray(chunk, np.float64) if isinstance(chunk, list | tuple) else np.asarray(chunk)
    except (ValueError, TypeError) as error:
        raise AudioError(f"a chunk of {type(chunk).__name__} that is not an array of numbers: {error}") from error


def _check_floats(values: np.ndarray) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        first = int(np.argmin(finite.reshape(-1)))
        raise AudioError(
            f"{values.size - int(finite.sum())} of {values.size} samples are NaN or infinite, the first at {first}:"
            " pass numpy.nan_to_num(chunk) to take them as silence"
        )
    peak = float(np.abs(values).max(initial=0.0))
    if peak > LOUDEST or (peak > 1 and np.array_equal(values, np.rint(values))):
        raise AudioError(
            f"samples up to {peak:g}, where floats are in -1 to 1: pass chunk / 32768 if they were 16-bit numbers"
        )


def _mixed(values: np.ndarray, channels: int | None) -> np.ndarray:
    """The mean of all channels, `[samples]`."""
    packed = channels is not None and values.ndim == 2 and values.shape[0] == 1 and channels not in values.shape
    if values.ndim == 1 or packed:  # [1, samples * channels], as FFmpeg's frames
        return _mixed_in_turns(values.reshape(-1), channels or 1)
    if values.ndim != 2:
        raise AudioError(f"a chunk of shape {values.shape}: pass [samples] or [samples, channels]")
    side = _channel_side(values.shape[0], values.shape[1], channels)
    return values.mean(side) if values.size else np.empty(0, np.float32)


def _mixed_in_turns(values: np.ndarray, channels: int) -> np.ndarray:
    """The same of one row, in which the samples of the channels take turns."""
    if values.size % channels:
        raise AudioError(
            f"a chunk of shape {values.shape} and channels={channels}: pass as many samples of each channel"
        )
    return values if channels == 1 else values.reshape(-1, channels).mean(1)


def _channel_side(first: int, second: int, channels: int | None) -> int:
    """Which side of `[first, second]` counts channels."""
    if channels is not None and channels in (first, second):
        return 1 if second == channels else 0
    if channels is None and 0 in (first, second):
        return 0  # nothing either way
    if channels is None and 1 in (first, second):
        return 1 if second == 1 else 0
    if channels is None and second <= MOST_CHANNELS < first:
        return 1
    if channels is None and first <= MOST_CHANNELS < second:
        return 0
    wanted = "" if channels is None else f" and channels={channels}"
    raise AudioError(f"a chunk of shape ({first}, {second}){wanted}: pass [samples, channels], and channels=")


def _checked_rate(rate: Any) -> float:
    # numpy's integers are no int, and other libraries tell a rate in them
    if isinstance(rate, bool) or not isinstance(rate, Real) or not RATES[0] <= float(rate) <= RATES[1]:
        raise SettingError(f"sample_rate={rate!r}: pass samples per second, such as sample_rate=48_000")
    return float(rate)


class Resampler:
    """Resamples a stream to 16,000 samples per second; the output does not depend on how it was cut into chunks.

    The work is libsoxr's at its high quality, and the end of the stream comes out with :meth:`finish`; until then
    the last few hundredths of a second are held back. At 16,000 samples a second chunks pass as they are.

    Parameters
    ----------
    rate
        Samples per second of the stream.

    Raises
    ------
    SettingError
        If the rate is not a usual one.
    MissingExtraError
        If `soxr` is needed and not installed.

    Examples
    --------
    >>> with_tail = Resampler(48_000)
    >>> torch.cat([with_tail.push(torch.zeros(4_800)), with_tail.finish()]).shape
    torch.Size([1600])
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate = _checked_rate(rate)
        self._inner: Any = None
        if rate != RATE:
            soxr = required("soxr", 'other rates than 16,000 need soxr: pip install "mmaccel[speech]"')
            self._inner = soxr.ResampleStream(rate, RATE, 1, "float32", "HQ")

    def push(self, samples: torch.Tensor) -> torch.Tensor:
        """Push samples `[n]` at `rate`; returns the float32 samples `[m]` at 16,000 per second that are complete."""
        if self._inner is None:
            return samples
        return torch.from_numpy(self._inner.resample_chunk(samples.numpy()))

    def finish(self) -> torch.Tensor:
        """The samples held back until now, `[m]`; nothing follows."""
        held = np.empty(0, np.float32)
        return torch.from_numpy(held if self._inner is None else self._inner.resample_chunk(held, last=True))


def read_audio(path: str | PathLike[str], *, skip_damaged: bool = False) -> torch.Tensor:
    """Read the sound of a file, or of a video, as float32 `[samples]` at 16,000 a second.

    Parameters
    ----------
    path
        Any file that FFmpeg reads. Several channels are averaged; of several tracks the first is taken.
    skip_damaged
        Whether to use the readable part of a damaged or cut-off file, default False. Where the sound of a video begins
        late or has a gap, and where a part is damaged, there is silence, so that times are those of the file.

    Raises
    ------
    AudioError
        If the file is missing, a folder, empty, without sound, damaged or cut off, holds samples that are not finite or
        of another scale, or a WAV file has a wrong header.
    MissingExtraError
        If PyAV is not installed.

    Examples
    --------
    >>> samples = read_audio("talk.mp3")  # doctest: +SKIP
    """
    return joined(AudioFile(_file(path), skip_damaged), path)


def joined(decoded: Iterable[tuple[np.ndarray, int]], path: str | PathLike[str]) -> torch.Tensor:
    """Pieces of a file, each with its rate, as float32 `[samples]` at 16,000 a second."""
    pieces: list[torch.Tensor] = []
    resampler: Resampler | None = None
    for samples, rate in decoded:
        if resampler is None or rate != resampler.rate:  # some streams change it on the way
            pieces += [] if resampler is None else [resampler.finish()]
            resampler = Resampler(rate)
        try:
            _check_floats(samples)
        except AudioError as error:
            raise AudioError(f"{path}: {error}") from None
        pieces.append(resampler.push(torch.from_numpy(samples)))
    if resampler is None:
        raise AudioError(f"{path} holds no samples: record or copy it again")
    return torch.cat([*pieces, resampler.finish()])


def _file(path: str | PathLike[str]) -> Path:
    if not isinstance(path, str | PathLike):
        raise AudioError(
            f"{type(path).__name__} is no path: speech.transcribe_samples(samples, recognizer) takes samples"
        )
    file = Path(path)
    if file.is_dir():
        raise AudioError(f"{file} is a folder: pass one of the files in it")
    if not file.is_file():
        raise AudioError(f"{file} does not exist (looked in {Path.cwd()}): pass the path of an audio file")
    if file.stat().st_size == 0:
        raise AudioError(f"{file} is empty: record or copy it again")
    return file
