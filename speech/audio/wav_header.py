"""What the header of a WAV file says, and whether it can be true; FFmpeg believes all of it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mmaccel.errors import AudioError

RATES = (1_000, 768_000)  # samples a second that anything records at
UNKNOWN_SIZE = 0x7FFFF000  # from here on a size says that its writer did not know, as does 0
MOST_CHUNKS = 1_000
PCM, FLOAT, A_LAW, MU_LAW, EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
PLAIN = (PCM, FLOAT, A_LAW, MU_LAW)  # formats whose samples all take the same number of bytes


@dataclass(frozen=True)
class WavHeader:
    """The header of a WAV file.

    Attributes
    ----------
    format
        1 for integers, 3 for floats, 6 and 7 for A-law and mu-law; others are compressed.
    channels, rate
        Channels, and samples a second of each.
    byte_rate, block
        Bytes a second, and of one sample of all channels.
    bits
        Of one sample.
    missing
        Bytes that the file lacks compared with the sizes that its header tells.
    valid
        Bits of a sample that count, where the header tells them; else 0.
    """

    format: int
    channels: int
    rate: int
    byte_rate: int
    block: int
    bits: int
    missing: int
    valid: int = 0

    @property
    def is_padded(self) -> bool:
        """Whether integers lie in more bytes than they need, such as 24 bits in 32, which FFmpeg takes for others."""
        narrow = self.bits == 24 or (self.bits == 32 and 0 < self.valid <= 24)
        return self.format == PCM and narrow and self.block == self.channels * 4

    def lie(self) -> str:
        """What is wrong with the numbers, in words; empty if they can be true."""
        if not RATES[0] <= self.rate <= RATES[1]:
            return f"{self.rate} samples a second, where sound has {RATES[0]} to {RATES[1]}"
        if not self.channels:
            return "0 channels, where sound has at least 1"
        if self.format not in PLAIN:
            return ""
        numbers = f"{self.channels} channels of {self.bits} bits"
        if not 8 <= self.bits <= 64:
            return f"samples of {self.bits} bits, where there are 8 to 64"
        block = self.channels * -(-self.bits // 8)
        if self.block != block and not self.is_padded:
            return f"{self.block} bytes for {numbers}, which take {block}"
        if self.byte_rate != self.rate * self.block:
            needed = self.rate * self.block
            return f"{self.byte_rate} bytes a second for {self.rate} samples of {numbers}, which take {needed}"
        return ""


def check_wav(file: Path) -> None:
    """Raise an `AudioError` if this is a WAV file whose header cannot be true, or whose samples FFmpeg mistakes.

    Whether it is cut off is not looked at.

    Files of other kinds are left to FFmpeg, and so are WAV files without a whole header.
    """
    header = read_wav_header(file)
    if header is not None and header.is_padded:
        raise AudioError(
            f"{file} has samples of {header.valid or header.bits} bits in 32 each, which FFmpeg mistakes for others:"
            " save it as 16 or 24 bits"
        )
    if header is not None and (lie := header.lie()):
        raise AudioError(
            f"{file} has a wrong header: it says {lie}. Repair it with the true rate, such as"
            f" ffmpeg -i {file.name} -ar 16000 good.wav, or record it again"
        )


def read_wav_header(file: Path) -> WavHeader | None:
    """The header of a WAV file; None for other files, and where there is no whole header."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        begin = stream.read(12)
        if begin[:4] != b"RIFF" or begin[8:] != b"WAVE":
            return None
        missing, numbers = _lacking(8, int.from_bytes(begin[4:8], "little"), size), b""
        for name, at, length in _chunks(stream):
            if name == b"fmt ":
                numbers = stream.read(min(length, 40))
            elif name == b"data":
                missing = max(missing, _lacking(at, length, size))
                break
    if len(numbers) < 16:
        return None
    kind, channels, rate, byte_rate, block, bits = struct.unpack("<HHIIHH", numbers[:16])
    valid = 0
    if kind == EXTENSIBLE and len(numbers) >= 26:
        kind = int.from_bytes(numbers[24:26], "little")
        valid = int.from_bytes(numbers[18:20], "little")
    return WavHeader(kind, channels, rate, byte_rate, block, bits, missing, valid)


def _chunks(stream: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Name, first byte and length of each part of the file, at whose first byte the stream is."""
    at = 12
    for _ in range(MOST_CHUNKS):
        stream.seek(at)
        head = stream.read(8)
        if len(head) < 8:
            return
        length = int.from_bytes(head[4:], "little")
        yield head[:4], at + 8, length
        at += 8 + length + length % 2


def _lacking(at: int, length: int, size: int) -> int:
    """Bytes that a part of a file lacks, which begins at byte `at` and says to be so long."""
    return max(0, at + length - size) if length < UNKNOWN_SIZE else 0
