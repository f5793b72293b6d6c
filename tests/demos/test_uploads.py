"""Uploads that are made to do harm: bounded before they are decoded, and decoded where they can be ended."""

import io
import json
import os
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace

import av
import numpy as np
import psutil
import pytest
from PIL import Image

from mmaccel import speech, vlm
from mmaccel.demos.app.frame import Frame
from mmaccel.demos.app.limits import Limits, number
from mmaccel.demos.app.runs import Run, Stopped
from mmaccel.demos.app.tabs import question_tab, speech_tab
from mmaccel.demos.app.uploads.reading import read_clip, read_recording
from mmaccel.errors import AudioError, MissingExtraError, PromptError, SettingError, VideoFileError
from mmaccel.uploads import apart, found

PICTURES = ("gif", "webp", "apng")
SIDE, HEIGHT, COUNT, RATE = 192, 128, 6, 16_000


def pictures(width=SIDE, height=HEIGHT, count=COUNT):
    rng = np.random.default_rng(1)
    return [Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)) for _ in range(count)]


def read_clip_of_4(path, limits):
    return read_clip(path, 4, limits)


def clip(folder, kind, shown=None, rate=10):
    """A clip of a kind, the pictures one after the other."""
    path, shown = folder / f"clip.{kind}", shown or pictures()
    if kind in PICTURES:
        format = "PNG" if kind == "apng" else None
        shown[0].save(path, format, save_all=True, append_images=shown[1:], duration=1000 // rate)
        return path
    with av.open(str(path), "w") as container:
        stream = container.add_stream({"webm": "libvpx-vp9"}.get(kind, "mpeg4"), rate=rate)
        stream.width, stream.height, stream.pix_fmt = *shown[0].size, "yuv420p"
        for picture in shown:
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode(None))
    return path


def sound(folder, kind="wav", seconds=1.0, rate=RATE, layout="mono"):
    path = folder / f"talk.{kind}"
    with av.open(str(path), "w") as container:
        stream = container.add_stream({"wav": "pcm_s16le", "flac": "flac"}[kind], rate=rate, layout=layout)
        channels = {"mono": 1, "stereo": 2, "7.1": 8}[layout]
        values = (np.random.default_rng(2).normal(size=(1, round(seconds * rate) * channels)) * 1000).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(values, format="s16", layout=layout)
        frame.sample_rate = rate
        container.mux([*stream.encode(frame), *stream.encode(None)])
    return path


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A decoder that hangs, as one does over a file that was made for it."""
    script = tmp_path / "slow.py"
    script.write_text("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)\n")
    monkeypatch.setattr(apart, "SCRIPT", script)
    return script


def running(script):
    return [p for p in psutil.Process().children(recursive=True) if str(script) in " ".join(p.cmdline())]


@pytest.mark.parametrize("kind", ("mp4", "webm", *PICTURES))
def test_frames_are_those_of_read_video(tmp_path, kind):
    path, limits = clip(tmp_path, kind), Limits(side=SIDE // 2)
    ours = read_clip(str(path), 4, limits)
    theirs = vlm.read_video(path, frames=4, max_side=SIDE // 2)
    for name in ("frames", "indices", "times"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    assert ours.metadata.items() >= {k: v for k, v in theirs.metadata.items() if k != "frames_indices"}.items()
    assert ours.frames.shape == (4, 64, 96, 3) and len(read_clip(str(path), 99, limits)) == COUNT
    assert not running(apart.SCRIPT), "a process was left"


@pytest.mark.parametrize(("kind", "rate", "layout"), (("wav", RATE, "mono"), ("flac", 48_000, "stereo")))
def test_samples_are_those_of_read_audio(tmp_path, kind, rate, layout):
    path = sound(tmp_path, kind, rate=rate, layout=layout)
    ours = read_recording(str(path), Limits())
    assert ours.equal(speech.read_audio(path)) and abs(len(ours) - RATE) < 10 and ours.abs().max() > 0
    assert not running(apart.SCRIPT), "a process was left"


@pytest.mark.parametrize("kind", ("mp4", "webm", *PICTURES))
def test_pixels_are_bounded_before_decoding(tmp_path, kind):
    path = str(clip(tmp_path, kind))
    exact = Limits(frame_pixels=SIDE * HEIGHT, clip_pixels=SIDE * HEIGHT * COUNT)
    assert len(read_clip(path, 8, exact)) == COUNT, "exactly the most"
    with pytest.raises(VideoFileError, match="clip.* has frames of more than .* pixels.*smaller one"):
        read_clip(path, 8, replace(exact, frame_pixels=SIDE * HEIGHT - 1))
    with pytest.raises(VideoFileError, match="pixels in all its frames"):
        read_clip(path, 8, replace(exact, clip_pixels=SIDE * HEIGHT * COUNT - 1))


@pytest.mark.parametrize(("read", "error"), ((read_clip_of_4, VideoFileError), (read_recording, AudioError)))
def test_a_file_that_was_deleted_since_is_not_called_damaged(tmp_path, read, error):
    with pytest.raises(error, match=r"^talk.mp4 is no longer here: upload it again$"):
        read(str(tmp_path / "talk.mp4"), Limits())


def animation(side, count):
    """A WebP of few bytes whose frames are large: one encoded frame, repeated."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), "red").save(file, "WEBP", lossless=True, quality=0, method=0)
    frame = file.getvalue()[12:]

    def three(value):
        return struct.pack("<I", value)[:3]

    def chunk(name, data):
        return name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)

    size = three(side - 1) * 2
    shown = chunk(b"ANMF", bytes(6) + size + three(20) + b"\0" + frame) * count
    body = b"WEBP" + chunk(b"VP8X", b"\2\0\0\0" + size) + chunk(b"ANIM", bytes(6)) + shown
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_a_small_file_of_large_frames(tmp_path):
    """Each frame may be as it is; all 8,000 of them are more than anyone decodes."""
    path = tmp_path / "bomb.webp"
    path.write_bytes(animation(3000, 8000))
    assert path.stat().st_size < 4 * 2**20
    began = time.monotonic()
    with pytest.raises(VideoFileError, match="pixels in all its frames"):
        read_clip(str(path), 8, Limits())
    path.write_bytes(animation(3100, 1))
    with pytest.raises(VideoFileError, match="frames of more than 9.4 million pixels"):
        read_clip(str(path), 8, Limits())
    assert time.monotonic() - began < 20


def test_headers_are_not_believed(tmp_path):
    """The header says 16 x 16, the frames are larger."""
    path = clip(tmp_path, "webm", pictures(256, 256))
    data = path.read_bytes()
    lying = data.replace(b"\xb0\x82\x01\x00", b"\xb0\x82\x00\x10").replace(b"\xba\x82\x01\x00", b"\xba\x82\x00\x10")
    assert lying != data
    path.write_bytes(lying)
    with pytest.raises(VideoFileError, match="pixels|damaged"):
        read_clip(str(path), 8, Limits(frame_pixels=200 * 200))


def test_a_picture_of_another_format_is_no_clip(tmp_path):
    """PIL knows formats that start other programs, whatever a file is called."""
    path = tmp_path / "clip.gif"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n")
    with pytest.raises(VideoFileError, match="no video file"):
        read_clip(str(path), 8, Limits())
    with pytest.raises(VideoFileError, match="is not a video"):
        vlm.read_video(path, frames=1)


@pytest.mark.parametrize("kind", ("mp4", "webm", *PICTURES))
def test_the_longest_clip(tmp_path, kind):
    path = str(clip(tmp_path, kind, pictures(count=11)))
    seconds = 1.1 if kind not in PICTURES else 1.0  # pictures: until the last one is shown
    assert len(read_clip(path, 99, Limits(clip_seconds=seconds + 1e-6))) == 11
    with pytest.raises(VideoFileError, match="lasts longer than"):
        read_clip(path, 99, Limits(clip_seconds=seconds - 0.01))


def test_frames_without_end_are_refused(tmp_path):
    """A header that says 1,000 frames a second: more of them than any clip needs."""
    path = clip(tmp_path, "mp4", pictures(count=30), rate=1000)
    assert len(read_clip(str(path), 99, Limits(clip_seconds=0.125))) == 30, "exactly 240 a second"
    with pytest.raises(VideoFileError, match="lasts longer"):
        read_clip(str(path), 99, Limits(clip_seconds=0.124))


def test_the_longest_recording(tmp_path):
    path = str(sound(tmp_path, seconds=1))
    assert len(read_recording(path, Limits(audio_seconds=1.0))) == RATE, "exactly the most"
    with pytest.raises(AudioError, match="lasts longer than 0.999 s"):
        read_recording(path, Limits(audio_seconds=0.999))


def test_of_a_recording_that_is_cut_off_a_visitor_is_told_what_a_visitor_can_do(tmp_path):
    path = sound(tmp_path)
    path.write_bytes(path.read_bytes()[:-1_000])
    remedy = rf"{path.name} is cut off .*; copy it again, or repair it: ffmpeg -i {path.name} -ar 16000 good.wav$"
    with pytest.raises(AudioError, match=remedy):
        read_recording(str(path), Limits())


def test_samples_of_all_channels_are_bounded(tmp_path):
    path = str(sound(tmp_path, "flac", 0.5, 96_000, "7.1"))
    most = 96_000 * 4
    assert len(read_recording(path, Limits(audio_samples=most))) == RATE // 2
    with pytest.raises(AudioError, match="samples in all its channels"):
        read_recording(path, Limits(audio_samples=most - 1))


def test_a_stop_ends_decoding(tmp_path, slow):
    path, run = clip(tmp_path, "gif"), Run()
    threading.Timer(0.5, run.stop).start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        read_clip(str(path), 8, Limits(), run)
    assert time.monotonic() - began < 10 and not running(slow), "it goes on"
    with pytest.raises(Stopped):
        read_recording(str(sound(tmp_path)), Limits(), run)
    assert not running(slow), "it goes on"


def test_the_tabs_let_a_stop_reach_it(monkeypatch):
    seen, run = [], Run()

    def read(path, *given):
        seen.append(given[-1])
        raise Stopped

    monkeypatch.setattr(question_tab, "read_clip", read)
    monkeypatch.setattr(speech_tab, "read_recording", read)
    values = ("clip.mp4", "what moves?", "balanced", "", "tiny-onevision", "", "", "", False)
    with pytest.raises(Stopped):
        question_tab._work(Frame(), None, False, run, question_tab.Talk(), *values)
    with pytest.raises(Stopped):
        settings = ("local-agreement", "moonshine-tiny", "", "auto", "", "")
        list(speech_tab._transcribe(Frame(), list, False, run, "talk.wav", *settings))
    assert seen == [run, run]


def test_decoding_has_a_deadline(tmp_path, slow):
    for read, path, error in (
        (lambda *given: read_clip(given[0], 8, given[1]), clip(tmp_path, "gif"), VideoFileError),
        (read_recording, sound(tmp_path), AudioError),
    ):
        with pytest.raises(error, match=f"^{path.name} takes longer than 0.5 s to read"):
            read(str(path), Limits(read_seconds=0.5))
        assert not running(slow), "it goes on"


@pytest.mark.skipif(sys.platform != "linux", reason="no bound of memory")
def test_decoding_has_a_bound_of_memory(tmp_path):
    path = str(clip(tmp_path, "gif", [Image.new("L", (2000, 2000), value) for value in (0, 255)]))
    assert len(read_clip(path, 2, Limits(side=64))) == 2
    with pytest.raises(VideoFileError, match="memory|damaged"):
        read_clip(path, 2, Limits(side=64, read_bytes=2**20))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no signals")
def test_a_decoder_whose_server_is_gone_ends_itself(tmp_path):
    code = "import decoder, time; decoder.GRACE = 0; decoder.limit(0.1, 2**40); time.sleep(30)"
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], cwd=apart.SCRIPT.parent, timeout=30, check=False)
    assert ended.returncode < 0 and time.monotonic() - began < 20


def test_a_decoder_that_dies_is_an_error_of_the_file(tmp_path, slow):
    slow.write_text("import os\nos.abort()\n")
    with pytest.raises(VideoFileError, match="cannot be read"):
        read_clip(str(clip(tmp_path, "gif")), 8, Limits())
    slow.write_text('print(\'{"times": [0, 1], "rate": 1, "cut_off": null}\\n{"shape": [9999999, 9, 3]}\')\n')
    with pytest.raises(VideoFileError, match="cannot be read"):
        read_clip(str(clip(tmp_path, "gif")), 1, Limits())


def test_the_decoder_starts_without_torch():
    code = "import decoder, sys; assert not {'torch', 'gradio', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=apart.SCRIPT.parent, timeout=60, check=True)


def test_bounds_include_their_ends(tmp_path):
    limits = Limits(prompt_characters=5, method_characters=4)
    assert limits.prompt(" 12345 ") == "12345" and limits.method("1234") == "1234"
    with pytest.raises(PromptError, match="6 characters"):
        limits.prompt("123456")
    with pytest.raises(SettingError, match="5 characters"):
        limits.method("12345")
    assert number("n", "1", 1, 9) == 1 and number("n", "9", 1, 9) == 9
    assert number("x", "0.1", 0.1, 0.5, whole=False) == 0.1 and number("x", "0.5", 0.1, 0.5, whole=False) == 0.5
    for text, whole in (("0", True), ("10", True), ("0.09", False), ("0.51", False)):
        with pytest.raises(SettingError):
            number("n", text, 1 if whole else 0.1, 9 if whole else 0.5, whole)
    file = clip(tmp_path, "gif")
    size = file.stat().st_size
    assert len(read_clip(str(file), 1, Limits(upload_bytes=size))) == 1
    with pytest.raises(VideoFileError, match="allowed"):
        read_clip(str(file), 1, Limits(upload_bytes=size - 1))


HANGS = "import time\ntime.sleep(60)\n"


def say(*answers):
    """A decoder that gives some lines of JSON, and then hangs."""
    lines = "".join(f"print({json.dumps(answer)!r}, flush=True)\n" for answer in answers)
    return lines + HANGS


def test_a_decoder_is_told_the_limits_and_has_no_threads_or_packages_of_others(tmp_path, slow):
    slow.write_text(
        "import json, os, sys\n"
        "asked = json.loads(sys.argv[1])\n"
        "names = ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS')\n"
        "told = [os.environ[name] for name in names] + [sys.flags.safe_path, bool(os.environ['PATH'])]\n"
        "told += [asked[name] for name in ('kind', 'frame_pixels', 'side', 'read_seconds')]\n"
        "told += [asked.get('backend'), asked['module'].split('/')[-1]]\n"
        "print(json.dumps({'error': str(told)}))\n"
    )
    limits = Limits(frame_pixels=7, side=8, read_seconds=9)
    start = "['1', '1', True, True, "
    for kind, backend in (("gif", "pil"), ("mp4", "av")):
        with pytest.raises(VideoFileError) as told:
            read_clip(str(clip(tmp_path, kind)), 8, limits)
        assert str(told.value) == start + f"'video', 7, 8, 9, '{backend}', 'video_readers.py']"
    with pytest.raises(AudioError) as told:
        read_recording(str(sound(tmp_path)), limits)
    assert str(told.value) == start + "'audio', 7, 8, 9, None, 'audio_file.py']"


@pytest.mark.parametrize("shape", ((0, 9, 3), (9, 0, 3), (11, 9, 3), (9, 11, 3), (9, 9, 4)))
def test_frames_of_a_decoder_that_was_taken_over_are_refused(tmp_path, slow, shape):
    head = {"times": [0, 1], "rate": 1, "cut_off": None}
    slow.write_text(say(head, {"shape": shape}))
    with pytest.raises(VideoFileError, match="^clip.gif cannot be read: upload another"):
        read_clip(str(clip(tmp_path, "gif")), 1, Limits(side=10, read_seconds=5))
    assert not running(slow), "it goes on"


@pytest.mark.parametrize("count", (-1, 11))
def test_sound_of_a_decoder_that_was_taken_over_is_refused(tmp_path, slow, count):
    slow.write_text(say({"samples": count, "rate": RATE}))
    with pytest.raises(AudioError, match="^talk.wav cannot be read: upload another"):
        read_recording(str(sound(tmp_path)), Limits(audio_samples=10, read_seconds=5))
    assert not running(slow), "it goes on"


def test_a_refusal_ends_the_decoder_and_its_reason_stays_in_the_log(tmp_path, slow, caplog):
    slow.write_text(say({"error": "damaged", "log": "ValueError('secret')"}))
    with caplog.at_level("INFO", logger="mmaccel.uploads"), pytest.raises(VideoFileError, match="^damaged$"):
        read_clip(str(clip(tmp_path, "gif")), 1, Limits())
    assert "secret" in caplog.text and not running(slow), "it goes on"
    slow.write_text("raise SystemExit(3)\n")
    with pytest.raises(AudioError, match="cannot be read"):
        read_recording(str(sound(tmp_path)), Limits())
    assert "ended with 3" in caplog.text


def test_sound_that_breaks_off_is_refused(tmp_path, slow):
    slow.write_text("print('{\"samples\": 4, \"rate\": 16000}\\n1234', end='')\n")
    with pytest.raises(AudioError, match="may be damaged"):
        read_recording(str(sound(tmp_path)), Limits())


def test_without_pyav_the_visitor_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(found, "find_spec", lambda name: None)
    for read in (lambda path: read_clip(path, 8, Limits()), lambda path: read_recording(path, Limits())):
        with pytest.raises(MissingExtraError, match="mmaccel.video"):
            read("clip.mp4")
        with pytest.raises((VideoFileError, AudioError), match="upload one first"):
            read("")
