"""Samples from chunks, streams and files."""

import ctypes
import mmap
import struct
import sys
import wave
from array import array
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmaccel.errors import AudioError, MissingExtraError, SettingError
from mmaccel.speech.audio import audio, audio_file, endpoint, upsampled
from mmaccel.speech.audio.audio import Resampler, read_audio, to_samples
from mmaccel.speech.audio.audio_file import AudioFile
from mmaccel.speech.audio.sample_buffer import SampleBuffer
from mmaccel.speech.audio.wav_header import read_wav_header

TONE = (0.5 * np.sin(np.arange(9_600) * 0.05)).astype(np.float32)


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        (np.array([0.5, -1.2], np.float64), [0.5, -1.2]),
        (np.array([1.0, -1.0, 0.0], np.float16), [1.0, -1.0, 0.0]),
        (np.array([16_384, -32_768], np.int16), [0.5, -1.0]),
        (np.array([16_384, -32_768], ">i2"), [0.5, -1.0]),
        (np.array([0, 128, 192], np.uint8), [-1.0, 0.0, 0.5]),
        (np.array([2**30, -(2**31)], np.int32), [0.5, -1.0]),
        (torch.tensor([0.5, 0.25], dtype=torch.bfloat16, requires_grad=True), [0.5, 0.25]),
        (b"\x00\x40\x00\x80", [0.5, -1.0]),
        (bytearray(b"\x00\x40\x00\x80"), [0.5, -1.0]),
        (memoryview(b"\x00\x40"), [0.5]),
        (memoryview(np.array([0.5, -0.25], np.float32)), [0.5, -0.25]),
        (memoryview(np.array([16_384], np.int16)), [0.5]),
        ([0.5, 0.0], [0.5, 0.0]),
        ((0, 1), [0.0, 1.0]),
        (np.array([16.0, 0.5]), [16.0, 0.5]),
        (np.zeros((0, 2), np.float32), []),
        (np.array([[0.5], [0.25]]), [0.5, 0.25]),
    ],
)
def test_kinds_of_chunks(chunk, expected):
    samples = to_samples(chunk)
    assert samples.dtype is torch.float32 and samples.tolist() == pytest.approx(expected)


def test_several_channels_are_averaged_whichever_way_round():
    stereo = np.stack([TONE, np.zeros_like(TONE)])
    for chunk in (stereo, stereo.T, np.ascontiguousarray(stereo.T)):
        assert torch.equal(to_samples(chunk), torch.from_numpy(TONE / 2))
    assert to_samples(np.array([[1.0, 0.0], [0.0, 0.0]]), channels=2).tolist() == [0.5, 0.0]
    pairs = memoryview(np.array([16_384, 0] * 3, np.int16))
    assert to_samples(pairs, channels=2).tolist() == to_samples(bytes(pairs), channels=2).tolist() == [0.25] * 3
    assert to_samples([], channels=2).tolist() == to_samples(b"", channels=2).tolist() == []
    assert to_samples(b"\x00\x40\x00\x00" * 3, channels=2).tolist() == [0.25] * 3


def test_channels_take_turns_in_a_row_as_in_bytes():
    data = b"\x00\x40\x00\x00" * 3
    row = np.frombuffer(data, np.int16)
    for chunk in (row, row[None], torch.tensor(row), memoryview(row), (row / 32_768).tolist()):
        assert to_samples(chunk, channels=2).tolist() == to_samples(data, channels=2).tolist() == [0.25] * 3


def test_eight_channels_are_channels():
    for chunk in (np.eye(9, 8), np.eye(9, 8).T):
        assert to_samples(chunk).tolist() == [0.125] * 8 + [0.0]


def test_channels_that_do_not_fit():
    for chunk, message in (
        (np.zeros(101), r"shape \(101,\) and channels=2: pass as many samples of each"),
        (b"\x00\x40", "2 bytes are not a whole number"),
        (np.zeros((100, 3)), r"shape \(100, 3\) and channels=2"),
    ):
        with pytest.raises(AudioError, match=message):
            to_samples(chunk, channels=2)


def test_a_chunk_is_copied():
    chunk = TONE.copy()
    samples = to_samples(chunk)
    chunk[:] = 0
    assert torch.equal(samples, torch.from_numpy(TONE))


def test_a_chunk_that_waits_is_a_copy_of_an_array_too():
    chunk = array("h", [16_384, -32_768])
    held = audio.copied(chunk)
    chunk[0] = 0  # a device uses its memory again
    assert to_samples(held).tolist() == [0.5, -1.0]


def test_memory_of_other_libraries_holds_16_bit_samples():
    """As sounddevice's raw streams and PyAV's planes hand it over: it tells no type, and is used again."""
    for chunk in (mmap.mmap(-1, 4), (ctypes.c_ubyte * 4)()):
        memoryview(chunk).cast("B")[:] = b"\x00\x40\x00\x80"
        assert to_samples(chunk).tolist() == [0.5, -1.0]
        held = audio.copied(chunk)
        memoryview(chunk).cast("B")[:] = bytes(4)
        assert to_samples(held).tolist() == [0.5, -1.0]


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (np.array([0.0, np.nan, 0.1]), "1 of 3 samples are NaN or infinite, the first at 1: pass numpy.nan_to_num"),
        (np.array([np.inf]), "NaN or infinite"),
        (np.array([120.0, -7.5]), "samples up to 120, .* pass chunk / 32768"),
        (np.array([3.0, -2.0]), "samples up to 3, "),
        (np.array([1, 2]), "int64: pass float32"),
        (np.array([True]), "bool: pass float32"),
        (np.array([1j]), "complex128: pass float32"),
        ("talk.wav", "pass float32"),
        (None, "pass float32"),
        ([[0.1, 0.2], [0.3]], "a chunk of list that is not an array"),
        (np.float32(0.5), r"shape \(\): pass \[samples\]"),
        (np.zeros((2, 3, 100)), r"shape \(2, 3, 100\)"),
        (np.zeros((3, 2)), r"shape \(3, 2\): pass \[samples, channels\]"),
        (np.zeros((100, 100)), r"shape \(100, 100\): pass"),
        (b"\x00\x00\x01", "3 bytes are not a whole number"),
    ],
)
def test_what_cannot_be_sound(chunk, message):
    with pytest.raises(AudioError, match=message):
        to_samples(chunk)


def _resampled(rate, samples, size):
    resampler = Resampler(rate)
    out = [resampler.push(samples[start : start + size]) for start in range(0, len(samples), size)]
    return torch.cat([*out, resampler.finish()])


@pytest.mark.parametrize("rate", (8_000, 11_025, 16_000, 22_050, 44_100, 48_000))
def test_a_stream_does_not_depend_on_how_it_is_cut(rate):
    generator = torch.Generator().manual_seed(0)
    sound = torch.randn(6 * rate, generator=generator) * 0.1
    short = _resampled(rate, sound, rate // 100)  # 10 ms
    for size in (5 * rate, 777, len(sound)):
        assert torch.equal(_resampled(rate, sound, size), short)
    assert abs(len(short) - 6 * 16_000) <= 1


@pytest.mark.parametrize("rate", (8_000, 44_100, 48_000))
def test_a_tone_keeps_its_pitch_and_loudness(rate):
    seconds = torch.arange(2 * rate) / rate
    made = _resampled(rate, torch.sin(2 * torch.pi * 440 * seconds), 480)
    expected = torch.sin(2 * torch.pi * 440 * torch.arange(32_000) / 16_000)
    inside = slice(1_000, -1_000)
    assert torch.allclose(made[inside], expected[inside], atol=2e-3)


@pytest.mark.parametrize("rate", (0, -1, 10, float("nan"), float("inf"), "48000", True, None))
def test_bad_rates(rate):
    with pytest.raises(SettingError, match="such as sample_rate=48_000"):
        Resampler(rate)


def test_the_lowest_and_the_highest_rate():
    for rate in (1_000, 768_000):
        assert Resampler(rate).rate == rate
        with pytest.raises(SettingError):
            Resampler(rate * 1.5 if rate > 1_000 else 999)


def test_rates_of_numpy():
    for rate in (np.int64(16_000), np.float32(16_000)):
        assert torch.equal(Resampler(rate).push(torch.ones(3)), torch.ones(3))
    assert torch.equal(_resampled(np.int32(8_000), torch.ones(800), 80), _resampled(8_000, torch.ones(800), 80))


def test_without_soxr_only_other_rates_fail(monkeypatch):
    monkeypatch.setitem(sys.modules, "soxr", None)
    assert torch.equal(Resampler(16_000).push(torch.ones(3)), torch.ones(3))
    with pytest.raises(MissingExtraError, match=r'pip install "mmaccel\[speech\]"'):
        Resampler(8_000)


def _write_wav(path, values, rate=16_000):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if values.ndim == 1 else values.shape[1])
        file.setsampwidth(values.dtype.itemsize)
        file.setframerate(rate)
        file.writeframes(values.tobytes())
    return path


def test_a_file_is_what_was_written(tmp_path):
    sixteen = (TONE * 32_767).astype(np.int16)
    assert torch.equal(read_audio(_write_wav(tmp_path / "mono.wav", sixteen)), to_samples(sixteen))
    stereo = np.stack([sixteen, np.zeros_like(sixteen)], 1)
    assert torch.allclose(read_audio(_write_wav(tmp_path / "stereo.wav", stereo)), to_samples(stereo), atol=1e-7)
    eight = (TONE * 127 + 128).astype(np.uint8)
    assert torch.equal(read_audio(_write_wav(tmp_path / "eight.wav", eight)), to_samples(eight))


def test_a_file_of_another_rate_is_resampled_as_a_stream_is(tmp_path):
    values = (TONE * 32_767).astype(np.int16)
    read = read_audio(_write_wav(tmp_path / "talk.wav", values, 48_000))
    assert torch.equal(read, _resampled(48_000, to_samples(values), 480))


def compressed(path, codec, values, rate=16_000, layout="mono", settings=None, **options):
    """A file of 16-bit samples `[n]`, or of `[1, samples * channels]`, in what its name ends with."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout, options=settings)
        frame = av.AudioFrame.from_ndarray(values.reshape(1, -1), format="s16", layout=layout)
        frame.sample_rate = rate
        container.mux([*stream.encode(frame), *stream.encode(None)])
    return path


def test_a_compressed_file(tmp_path):
    sixteen = (TONE * 32_767).astype(np.int16)
    assert torch.equal(read_audio(compressed(tmp_path / "talk.flac", "flac", sixteen)), to_samples(sixteen))


def quiet_then_loud():
    """Sound whose beginning says nothing of how many bits a second it takes."""
    noise = np.random.default_rng(0).normal(0, 10_000, 80_000).clip(-32_768, 32_767)
    return np.concatenate([np.zeros(80_000), noise]).astype(np.int16)


VARIABLE = {"flags": "+qscale", "global_quality": "472"}


@pytest.mark.parametrize(
    ("name", "codec", "more"),
    (
        ("talk.aac", "aac", {}),
        ("talk.mp3", "libmp3lame", {"write_xing": "0", "settings": VARIABLE}),
        ("named.mp3", "libmp3lame", {"write_xing": "0", "write_id3v2": "0", "settings": VARIABLE}),
    ),
)
def test_a_file_that_tells_no_length_is_not_cut_off(tmp_path, name, codec, more):
    samples = read_audio(compressed(tmp_path / name, codec, quiet_then_loud(), **more))
    assert len(samples) == pytest.approx(160_000, abs=2_048)


def test_a_cut_off_mp3_that_tells_its_length(tmp_path):
    for more in ({}, {"write_id3v2": "0"}):
        path = compressed(tmp_path / "talk.mp3", "libmp3lame", quiet_then_loud(), settings=VARIABLE, **more)
        path.write_bytes(path.read_bytes()[:15_000])
        with pytest.raises(AudioError, match=r"talk.mp3 is cut off after \d.\d\d s"):
            read_audio(path)


def test_channels_of_all_frames_are_mixed_by_one_converter(tmp_path):
    av = pytest.importorskip("av")
    left, made = (TONE * 32_767).astype(np.int16), []
    stereo = np.stack([left, left // 2], 1)
    file = AudioFile(compressed(tmp_path / "talk.flac", "flac", stereo, layout="stereo"))

    def counted(**more):
        made.append(av.AudioResampler(**more))
        return made[-1]

    file.av = SimpleNamespace(**{**vars(av), "AudioResampler": counted})
    parts = [samples for samples, _ in file]
    assert len(parts) > 1 and len(made) == 1
    assert torch.equal(torch.from_numpy(np.concatenate(parts)), to_samples(stereo))


def test_of_several_tracks_the_first(tmp_path):
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "two.mkv"), "w") as container:
        tracks = [container.add_stream("pcm_s16le", rate=16_000, layout="mono") for _ in range(2)]
        for track, loudness in zip(tracks, (8_192, 0), strict=True):
            values = np.full((1, 1_600), loudness, np.int16)
            frame = av.AudioFrame.from_ndarray(values, format="s16", layout="mono")
            frame.sample_rate = 16_000
            container.mux([*track.encode(frame), *track.encode(None)])
    assert torch.equal(read_audio(tmp_path / "two.mkv"), torch.full((1_600,), 0.25))


@pytest.mark.parametrize("begins", ((0.0, 2.0), (3.0, 3.1), (0.0, 0.15)), ids=str)
def test_sound_of_a_video_has_its_times(tmp_path, begins):
    """Where it begins late or has a gap there is silence, but for what the times of a file may be off."""
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "clip.mkv"), "w") as container:
        pictures = container.add_stream("ffv1", rate=10, width=16, height=16)
        sound = container.add_stream("pcm_s16le", rate=16_000, layout="mono")
        for number in range(40):
            picture = av.VideoFrame(16, 16, "yuv420p")
            picture.pts = number
            container.mux(pictures.encode(picture))
        container.mux(pictures.encode(None))
        for begin in begins:
            frame = av.AudioFrame.from_ndarray(np.full((1, 1_600), 8_192, np.int16), format="s16", layout="mono")
            frame.sample_rate, frame.pts = 16_000, round(16_000 * begin)
            container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
    samples, first, second = read_audio(tmp_path / "clip.mkv"), round(16_000 * begins[0]), round(16_000 * begins[1])
    second = second if second - first > 1_600 + 4_000 else first + 1_600
    loud = torch.zeros(second + 1_600)
    loud[first : first + 1_600] = loud[second:] = 0.25
    assert torch.equal(samples, loud)


def test_an_hour_without_sound_is_no_gap(tmp_path, monkeypatch):
    monkeypatch.setattr(audio_file, "LONGEST_GAP", 2.0)
    with pytest.raises(AudioError, match=r"clip.mkv has no sound from 0 to 3 s: cut that out"):
        test_sound_of_a_video_has_its_times(tmp_path, (3.0, 3.1))


def test_formats_can_be_limited(tmp_path):
    pytest.importorskip("av")
    path = _write_wav(tmp_path / "talk.wav", np.zeros(1_600, np.int16))
    assert sum(len(samples) for samples, _ in AudioFile(path, options={"format_whitelist": "wav"})) == 1_600
    with pytest.raises(AudioError, match="not an audio file"):
        list(AudioFile(path, options={"format_whitelist": "flac"}))


def test_a_file_is_closed_also_where_reading_ends_early(tmp_path):
    av = pytest.importorskip("av")
    closed = []

    class Watched:
        def __init__(self, *args, **more):
            self.inner = av.open(*args, **more)

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            closed.append(self.inner.close())

    file = AudioFile(_write_wav(tmp_path / "talk.wav", np.zeros(100_000, np.int16)))
    file.av = SimpleNamespace(**{**vars(av), "open": Watched})
    pieces = iter(file)
    next(pieces)
    pieces.close()
    assert len(closed) == 1
    list(file)
    assert len(closed) == 2


def test_damage_is_told_or_skipped(tmp_path):
    av = pytest.importorskip("av")

    def damaged():
        raise av.FFmpegError(1, "broken")

    whole = SimpleNamespace(decode=lambda: ["frame"])
    container = SimpleNamespace(demux=lambda _: iter([whole, SimpleNamespace(decode=damaged), whole]))
    assert list(AudioFile(tmp_path, skip_damaged=True)._frames(container, None)) == ["frame", "frame"]
    frames = AudioFile(tmp_path)._frames(container, None)
    assert next(frames) == "frame"
    with pytest.raises(AudioError, match=r"damaged after 0.00 s .*broken.*skip_damaged=True"):
        next(frames)


@pytest.mark.parametrize(
    ("track", "whole", "streams", "short"),
    (
        (3.0, None, 1, True),
        (None, 3.0, 1, True),
        (None, 3.0, 2, False),  # the picture may be longer than the sound
        (1.25, 1.25, 1, False),  # what a container says is not exact
        (None, None, 1, False),
    ),
)
def test_a_file_that_announces_more_than_it_holds(tmp_path, track, whole, streams, short):
    av = pytest.importorskip("av")
    (tmp_path / "talk.mp3").write_bytes(b"x")
    for skip in (False, True):
        file = AudioFile(tmp_path / "talk.mp3", skip_damaged=skip)
        file.seconds = 1.0
        form = SimpleNamespace(name="mov,mp4")
        container = SimpleNamespace(duration=whole and whole * av.time_base, streams=[None] * streams, format=form)
        stream = SimpleNamespace(duration=track and track * 1_000, time_base=0.001)
        if short and not skip:
            with pytest.raises(AudioError, match=r"cut off after 1.00 s"):
                file._check_length(container, stream)
        else:
            file._check_length(container, stream)


def test_a_header_whose_writer_did_not_know_the_size(tmp_path):
    pytest.importorskip("av")
    path = _write_wav(tmp_path / "talk.wav", (TONE * 32_767).astype(np.int16))
    data, expected = bytearray(path.read_bytes()), read_audio(path)
    data[4:8] = data[40:44] = b"\xff" * 4
    path.write_bytes(data)
    assert torch.equal(read_audio(path), expected)
    (tmp_path / "video.avi").write_bytes(b"RIFF\xff\x00\x00\x00AVI ")
    assert read_wav_header(tmp_path / "video.avi") is None, "only WAV counts so"


def test_bad_files(tmp_path):
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.wav").write_text("no sound at all " * 50)
    (tmp_path / "noise.mp3").write_bytes(np.random.default_rng(0).bytes(4_000))
    _write_wav(tmp_path / "nothing.wav", np.empty(0, np.int16))
    for name, message in {
        ".": "is a folder",
        "missing.wav": "does not exist",
        "empty.wav": "is empty",
        "text.wav": "not an audio file that FFmpeg knows",
        "noise.mp3": "not an audio file that FFmpeg knows|holds no s|is damaged",
        "nothing.wav": "holds no samples|not an audio file",
    }.items():
        with pytest.raises(AudioError, match=message):
            read_audio(tmp_path / name)


def test_a_cut_off_file_is_an_error_unless_asked_for(tmp_path):
    whole = _write_wav(tmp_path / "talk.wav", (TONE * 32_767).astype(np.int16))
    part = tmp_path / "part.wav"
    part.write_bytes(whole.read_bytes()[:-8_000])
    with pytest.raises(AudioError, match=r"cut off after 0.35 s: .*skip_damaged=True"):
        read_audio(part)
    assert torch.equal(read_audio(part, skip_damaged=True), read_audio(whole)[:5_600])


def test_a_picture_holds_no_sound(tmp_path):
    from PIL import Image

    Image.new("RGB", (32, 32)).save(tmp_path / "picture.png")
    with pytest.raises(AudioError, match="holds no sound: pass a file with an audio track"):
        read_audio(tmp_path / "picture.png")


def test_without_pyav(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match=r'pip install "mmaccel\[speech\]"'):
        read_audio(_write_wav(tmp_path / "talk.wav", np.zeros(10, np.int16)))


def test_a_file_that_changes_its_rate_keeps_its_last_samples(monkeypatch, tmp_path):
    pytest.importorskip("soxr")
    parts = [(np.full(rate, 0.5, np.float32), rate) for rate in (48_000, 8_000, 16_000)]
    monkeypatch.setattr(audio, "AudioFile", lambda file, skip_damaged: parts)
    (tmp_path / "talk.ts").write_bytes(b"x")
    samples = read_audio(tmp_path / "talk.ts")
    assert len(samples) == pytest.approx(48_000, abs=2)
    for rate_began in (0, 16_000, 32_000):  # each part from its beginning to its end
        assert torch.allclose(samples[rate_began + 300 : rate_began + 15_700], torch.tensor(0.5), atol=0.01)


def float_wav(path, samples, channels=1):
    """A WAV file of floats at 48,000 a second."""
    data = np.asarray(samples, "<f4").tobytes()
    head = struct.pack("<HHIIHH", 3, channels, 48_000, 48_000 * 4 * channels, 4 * channels, 32)
    body = b"WAVEfmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", len(data)) + data
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


def test_samples_of_files_are_looked_at_as_those_of_chunks(tmp_path):
    good = np.full(4_800, 0.5)
    with pytest.raises(AudioError, match=r"some.wav: 1 of \d+ samples are NaN or infinite"):
        read_audio(float_wav(tmp_path / "some.wav", [*good, np.nan, *good]))
    with pytest.raises(AudioError, match=r"loud.wav: samples up to 16384, where floats are in -1 to 1"):
        read_audio(float_wav(tmp_path / "loud.wav", good * 32768))
    assert len(read_audio(float_wav(tmp_path / "good.wav", good))) == 1_600


def test_more_channels_than_are_mixed(tmp_path):
    with pytest.raises(AudioError, match="many.wav has 65 channels, and FFmpeg mixes 64 at most"):
        read_audio(float_wav(tmp_path / "many.wav", np.zeros(65 * 480), channels=65))


@pytest.mark.parametrize("channels", (0, -1, 2.0))
def test_channels_are_counted(channels):
    with pytest.raises(AudioError, match=f"channels={channels}"):
        to_samples(bytes(8), channels=channels)


def test_sound_is_held_on_the_cpu_whatever_the_default_device_is():
    upsampled._filters.cache_clear()
    with torch.device("meta"):
        buffer = SampleBuffer()
        buffer.append(torch.ones(20_000, device="cpu"))
        heard = [buffer.read(0, 5), Resampler(16_000).finish()]
        heard.append(upsampled.Upsampler().push(torch.ones(1_600, device="cpu")))
        detector = endpoint._SileroDetector(lambda frames, states: (frames.mean(1), states))
        likelihood = detector(torch.ones(512, device="cpu"))
    assert {one.device.type for one in heard} == {"cpu"} and heard[0].tolist() == [1.0] * 5
    assert likelihood == pytest.approx(512 / 576)
