"""Headers of WAV files that lie, and those that only look so."""

import struct

import numpy as np
import pytest
import torch

from mmaccel.errors import AudioError
from mmaccel.speech.audio.audio import read_audio
from mmaccel.speech.audio.wav_header import check_wav, read_wav_header

pytest.importorskip("av")

TONE = (16_000 * np.sin(np.arange(8_000) * 0.05)).astype("<i2")
TRUE = {"kind": 1, "channels": 1, "rate": 16_000, "byte_rate": 32_000, "block": 2, "bits": 16}


def chunk(name, data, length=None):
    return name + struct.pack("<I", len(data) if length is None else length) + data + b"\0" * (len(data) % 2)


def wav(path, data=None, before=b"", data_size=None, riff_size=None, extra=b"", **changes):
    """A WAV file of 0.5 s with these numbers in its header."""
    numbers = struct.pack("<HHIIHH", *{**TRUE, **changes}.values()) + extra
    data = TONE.tobytes() if data is None else data
    body = b"WAVE" + chunk(b"fmt ", numbers) + before + chunk(b"data", data, data_size)
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body) if riff_size is None else riff_size) + body)
    return path


@pytest.mark.parametrize(
    ("changes", "says"),
    (
        ({"rate": 0, "byte_rate": 0}, "0 samples a second, where sound has 1000 to 768000"),
        ({"rate": 999, "byte_rate": 1_998}, "999 samples a second"),
        ({"rate": 768_001, "byte_rate": 1_536_002}, "768001 samples a second"),
        ({"rate": 2**32 - 1}, "4294967295 samples a second"),
        ({"channels": 0}, "0 channels, where sound has at least 1"),
        ({"bits": 0}, "samples of 0 bits"),
        ({"block": 4, "byte_rate": 64_000}, "4 bytes for 1 channels of 16 bits, which take 2"),
        ({"channels": 2, "byte_rate": 64_000}, "2 bytes for 2 channels of 16 bits, which take 4"),
        ({"rate": 8_000}, "32000 bytes a second for 8000 samples of 1 channels of 16 bits, which take 16000"),
        ({"kind": 3, "bits": 32}, "2 bytes for 1 channels of 32 bits, which take 4"),
    ),
)
def test_a_header_that_lies_is_one_line_that_says_so(tmp_path, changes, says):
    bad = wav(tmp_path / "bad.wav", **changes)
    for skip in (False, True):
        with pytest.raises(AudioError) as error:
            read_audio(bad, skip_damaged=skip)
        told = str(error.value)
        assert says in told and "ffmpeg -i bad.wav -ar 16000 good.wav" in told and "\n" not in told


@pytest.mark.parametrize("size", (0xFFFFFFFF, 0x7FFFF000, 0))
def test_streamed_files_do_not_know_their_size(tmp_path, size):
    found = read_audio(wav(tmp_path / "streamed.wav", data_size=size, riff_size=size or None))
    assert torch.equal(found, torch.from_numpy(TONE / np.float32(32_768)))


def test_a_data_chunk_longer_than_the_file(tmp_path):
    """Also where the size of the whole file is right."""
    bad = wav(tmp_path / "bad.wav", data_size=64_000)
    with pytest.raises(AudioError, match=r"after 0.50 s: its header says that 48000 more bytes follow; .*ffmpeg -i"):
        read_audio(bad)
    assert read_audio(bad, skip_damaged=True).shape == (8_000,)


@pytest.mark.parametrize(
    "changes",
    (
        {"rate": 1_000, "byte_rate": 2_000},
        {"rate": 768_000, "byte_rate": 1_536_000},
        {"channels": 2, "block": 4, "byte_rate": 64_000},
        {"bits": 12},
        {"bits": 24, "block": 3, "byte_rate": 48_000},
        {"kind": 3, "bits": 64, "block": 8, "byte_rate": 128_000},
        {"kind": 7, "bits": 8, "block": 1, "byte_rate": 16_000},
        {"kind": 0x11, "bits": 4, "block": 256, "byte_rate": 8_110},  # compressed: all its own
        {"before": chunk(b"LIST", b"odd"), "riff_size": None},
    ),
)
def test_headers_that_are_true(tmp_path, changes):
    good = wav(tmp_path / "good.wav", **changes)
    check_wav(good)
    assert read_wav_header(good).missing == 0


def test_samples_that_ffmpeg_mistakes(tmp_path):
    """24 bits in 32, by a plain header and by an extensible one."""
    plain = wav(tmp_path / "plain.wav", bits=24, block=4, byte_rate=64_000)
    extra = struct.pack("<HHIH", 22, 24, 4, 1) + bytes(14)
    wide = wav(tmp_path / "wide.wav", kind=0xFFFE, bits=32, block=4, byte_rate=64_000, extra=extra)
    extra = struct.pack("<HHIH", 22, 16, 4, 1) + bytes(14)
    half = wav(tmp_path / "half.wav", kind=0xFFFE, bits=32, block=4, byte_rate=64_000, extra=extra)
    for path, bits in ((plain, 24), (wide, 24), (half, 16)):
        for skip in (False, True):
            with pytest.raises(AudioError, match=f"{bits} bits in 32 each, .* save it as 16 or 24 bits"):
                read_audio(path, skip_damaged=skip)


def test_the_kind_of_an_extensible_header_is_in_its_end(tmp_path):
    extra = struct.pack("<HHIH", 22, 16, 4, 3) + bytes(14)
    header = read_wav_header(wav(tmp_path / "wide.wav", kind=0xFFFE, bits=32, block=4, byte_rate=64_000, extra=extra))
    assert header.format == 3 and header.lie() == ""


@pytest.mark.parametrize(
    "data", (b"", b"RIFF", b"RIFF\0\0\0\0WAVE", b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0", b"ID3" * 9)
)
def test_what_is_no_whole_header_is_left_to_ffmpeg(tmp_path, data):
    (tmp_path / "some.wav").write_bytes(data)
    assert read_wav_header(tmp_path / "some.wav") is None
    check_wav(tmp_path / "some.wav")


def test_zeros_without_end_are_no_chunks(tmp_path):
    (tmp_path / "zeros.wav").write_bytes(b"RIFF\0\0\0\0WAVE" + bytes(100_000))
    assert read_wav_header(tmp_path / "zeros.wav") is None
