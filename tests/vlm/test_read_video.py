"""Frames of video files: which, at what time, from any reader, and what is said of files that cannot be read."""

import importlib.util
import itertools
import os
import re
import struct
import sys
import tracemalloc
import weakref
from contextlib import nullcontext, suppress
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.video_utils import VideoMetadata

from mmaccel import vlm
from mmaccel.cache import estimate
from mmaccel.errors import MemoryLimitError, MissingExtraError, SettingError, UnknownNameError, VideoFileError
from mmaccel.vlm.input import sampling, video_readers

av = pytest.importorskip("av")
module = importlib.import_module("mmaccel.vlm.input.read_video")  # the package shows the function of that name
BACKENDS = ["av", *(["decord"] if importlib.util.find_spec("decord") else [])]
WIDTH, HEIGHT = 64, 48
MILLISECOND = Fraction(1, 1000)
VARYING = [0, 40, 80, 200, 210, 500, 520, 1000, 1010, 1300, *range(1333, 1993, 33)]


def write(
    path,
    count=30,
    codec="libx264",
    pts=None,
    audio=False,
    video=True,
    size=(WIDTH, HEIGHT),
    gop=12,
    quick=False,
    **options,
):
    """A clip whose left half brightens from frame to frame; `pts` in milliseconds."""
    with av.open(str(path), "w", options=options) as container:
        if video:
            stream = container.add_stream(codec, rate=25 if pts is None else 1000)
            stream.width, stream.height = size
            stream.pix_fmt, stream.gop_size = "yuv420p", gop
            stream.options = {"preset": "ultrafast"} if quick else {}
        if audio:
            sound = container.add_stream("aac", rate=16000)
            sound.layout = "mono"
        for index in range(count if video else 0):
            picture = np.full((size[1], size[0], 3), 30, np.uint8)
            picture[:, : size[0] // 2] = index * 8 % 256
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if pts is not None:
                frame.pts, frame.time_base = pts[index], MILLISECOND
            container.mux(stream.encode(frame))
        if video:
            container.mux(stream.encode())
        for index in range(20 if audio else 0):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = 16000, index * 1024, Fraction(1, 16000)
            container.mux(sound.encode(frame))
        if audio:
            container.mux(sound.encode())
    return path


def everything(path):
    """All frames and their times, decoded from the first to the last."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        found = [(frame.pts * stream.time_base, frame.to_ndarray(format="rgb24")) for frame in container.decode(stream)]
    return np.stack([frame for _, frame in found]), np.array([float(time - found[0][0]) for time, _ in found])


CLIPS = {
    "h264.mp4": {},
    "mpeg4.mp4": {"codec": "mpeg4"},
    "sound.mp4": {"audio": True},
    "varying.mp4": {"pts": VARYING},
    "varying.mkv": {"pts": VARYING},
    "late.mkv": {"pts": [time + 2000 for time in VARYING]},
    "one_key.mp4": {"gop": 250},
    "all_keys.mp4": {"gop": 1},
    "mpeg4.avi": {"codec": "mpeg4"},
    "vp8.webm": {"codec": "libvpx"},
    "vp9.webm": {"codec": "libvpx-vp9"},
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write(tmp_path_factory.mktemp("clips") / "clip.mp4")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CLIPS)
def test_frames_and_times_are_those_of_a_full_decode(tmp_path, name, backend):
    path = write(tmp_path / name, **CLIPS[name])
    pictures, times = everything(path)
    for frames in (1, 7, 30):
        video = vlm.read_video(path, frames, backend=backend)
        assert video.indices.tolist() == np.linspace(0, 29, frames).astype(int).tolist()
        assert np.array_equal(video.frames, pictures[video.indices])
        assert np.allclose(video.times, times[video.indices], rtol=0, atol=1e-6)
        assert video.total_frames == 30 and len(video) == frames and video.backend == backend
    rate = 29 / times[-1] if "pts" in CLIPS[name] else 25
    assert video.fps == pytest.approx(rate) and video.duration == pytest.approx(times[-1] + 1 / rate)


@pytest.mark.parametrize("backend", BACKENDS)
def test_parts_of_a_clip(clip, backend):
    for start, end, expected in ((0.4, None, range(10, 30)), (None, 0.4, range(10)), (0.2, 0.41, range(5, 11))):
        video = vlm.read_video(clip, len(expected), start=start, end=end, backend=backend)
        assert video.indices.tolist() == list(expected) and video.total_frames == 30
    # in single precision the time of frame 13 is a little below 0.52
    assert vlm.read_video(clip, 17, start=0.52, backend=backend).indices[0] == 13
    assert vlm.read_video(clip, 13, end=0.52, backend=backend).indices[-1] == 12
    assert vlm.read_video(clip, fps=5, start=0.4, sampling="uniform").indices.tolist() == [10, 15, 20, 25]


def test_a_result_is_a_sequence_of_pictures(clip):
    video = vlm.read_video(str(clip), 3)
    assert video.frames.dtype == np.uint8 and video.frames.shape == (3, HEIGHT, WIDTH, 3)
    assert all(np.array_equal(a, b) for a, b in zip(video, video.frames, strict=True))
    assert [image.size for image in video.images()] == [(WIDTH, HEIGHT)] * 3
    assert video.metadata["frames_indices"].tolist() == [0, 14, 29] and video.metadata["width"] == WIDTH
    some = video.only([0, 2])
    assert some.indices.tolist() == [0, 29] and some.times.tolist() == video.times[[0, 2]].tolist()
    assert np.array_equal(some.frames[1], video.frames[2]) and some.total_frames == 30


def turned(source, path, matrix):
    """A copy of an .mp4 that is to be shown turned."""
    raw = bytearray(source.read_bytes())
    place = raw.find(b"tkhd") + 44
    raw[place : place + 36] = struct.pack(
        ">9i", *(x << 16 for x in matrix[:2]), 0, *(x << 16 for x in matrix[2:]), *[0] * 3, 1 << 30
    )
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("matrix", "turns"), (((0, 1, -1, 0), 3), ((-1, 0, 0, -1), 2), ((0, -1, 1, 0), 1)), ids=str)
def test_turned_clips_are_upright(tmp_path, matrix, turns, backend):
    source = write(tmp_path / "clip.mp4", 5, size=(160, 100))
    path = turned(source, tmp_path / "turned.mp4", matrix)
    upright = np.rot90(everything(source)[0], turns, (1, 2))
    assert np.array_equal(vlm.read_video(path, 5, backend=backend).frames, upright)


@pytest.mark.parametrize(("orientation", "turns"), ((1, 0), (3, 2), (6, -1), (8, 1)))
def test_a_photograph_with_exif_is_upright(tmp_path, orientation, turns):
    """Kinds of data beside a frame that PyAV does not know are no damage."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = np.zeros((32, 48, 3), np.uint8)
    picture[:16, :16] = 255
    Image.fromarray(picture).save(tmp_path / "photo.jpg", exif=exif, quality=95)
    (frame,) = vlm.read_video(tmp_path / "photo.jpg", 1).frames
    expected = np.rot90(picture, turns)
    assert frame.shape == expected.shape and np.abs(frame.astype(int) - expected).mean() < 5


MIRRORS = {
    (-1, 0, 0, 1): lambda frame: frame[:, ::-1],
    (1, 0, 0, -1): lambda frame: frame[::-1],
    (0, 1, 1, 0): lambda frame: frame.transpose(1, 0, 2),
    (0, -1, -1, 0): lambda frame: frame[::-1, ::-1].transpose(1, 0, 2),
}


@pytest.mark.parametrize("matrix", MIRRORS, ids=str)
def test_mirrored_clips_are_shown_as_players_show_them(tmp_path, matrix):
    source = write(tmp_path / "clip.mp4", 2, size=(160, 100))
    with av.open(str(tmp_path / "corner.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 160, 100, "yuv420p"
        picture = everything(source)[0][1].copy()
        picture[:50, :60] = 250  # one corner, so that all eight ways differ
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode())
    stored = everything(tmp_path / "corner.mp4")[0][0]
    path = turned(tmp_path / "corner.mp4", tmp_path / "mirrored.mp4", matrix)
    assert np.array_equal(vlm.read_video(path, 1, backend="av").frames[0], MIRRORS[matrix](stored))


@pytest.mark.parametrize("frames", (4, 8, 16, 30))
def test_frames_that_avi_numbers_out_of_order(tmp_path, frames):
    """H.264 refers to later frames, and AVI has no times to say so: frames count in the order in which they come."""
    path, noise = tmp_path / "clip.avi", np.random.default_rng(0).integers(0, 9, (30, 120, 160, 3), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"bf": "3", "crf": "9"})
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        for index, grain in enumerate(noise):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grain + np.uint8(index * 8))))
        container.mux(stream.encode())
    video = vlm.read_video(path, frames, backend="av")
    shown = (video.frames.mean((1, 2, 3)) - 4) / 8
    assert video.total_frames == 30 and np.allclose(shown, video.indices, atol=0.5)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(VideoFileError, match=r"is cut off after about 0\.\d+ s: .* with end=") as error:
        vlm.read_video(path, frames, backend="av")
    end = float(str(error.value).rsplit("end=", 1)[1])
    assert 0 < len(vlm.read_video(path, 1, end=end, backend="av")) < 30


@pytest.mark.parametrize("ending", ("avi", "mp4", "mkv"))
def test_titles_in_other_encodings(tmp_path, ending):
    path = tmp_path / f"clip.{ending}"
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "CafXXX"
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for index in range(5):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((HEIGHT, WIDTH, 3), index, np.uint8))))
        container.mux(stream.encode())
    path.write_bytes(path.read_bytes().replace(b"CafXXX", "Café à".encode("latin-1")))
    assert len(vlm.read_video(path, 5, backend="av")) == 5


@pytest.mark.skipif(sys.platform == "win32", reason="no colons in names")
def test_a_name_with_a_colon(tmp_path, clip, monkeypatch):
    (tmp_path / "2024-01-01T12:30.mp4").write_bytes(clip.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert len(vlm.read_video("2024-01-01T12:30.mp4", 3, backend="av")) == 3


def test_a_codec_that_is_not_known(tmp_path, clip):
    path = tmp_path / "unknown.mp4"
    path.write_bytes(clip.read_bytes().replace(b"avc1", b"zzz1"))
    with pytest.raises(VideoFileError, match="a codec that this FFmpeg does not know: convert it"):
        vlm.read_video(path, 3, backend="av")


def test_pictures_that_are_cut_off_are_no_video(tmp_path):
    path = tmp_path / "clip.gif"
    pictures = [Image.effect_noise((40, 30), 9 + index) for index in range(4)]
    pictures[0].save(path, save_all=True, append_images=pictures[1:])
    whole = path.read_bytes()
    for end in range(20, len(whole), 37):
        path.write_bytes(whole[:end])
        with suppress(VideoFileError):
            vlm.read_video(path, 1)
    assert len(whole) > 2000


def test_pictures_of_too_many_pixels(tmp_path, monkeypatch):
    Image.new("RGB", (64, 64)).save(tmp_path / "large.gif")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(VideoFileError, match="frames of too many pixels: scale it down"):
        vlm.read_video(tmp_path / "large.gif", 1)


def test_trimmed_clips_begin_where_players_begin(tmp_path):
    """An edit list hides five frames; decord counts them, and says so."""
    path = write(tmp_path / "trimmed.mp4", pts=[40 * i - 200 for i in range(30)], avoid_negative_ts="disabled")
    pictures, times = everything(path)
    video = vlm.read_video(path, 25)
    assert len(pictures) == 25 and np.array_equal(video.frames, pictures) and np.allclose(video.times, times)
    if "decord" in BACKENDS:
        with pytest.raises(VideoFileError, match="backend='av'"):
            vlm.read_video(path, 25, backend="decord")


@pytest.mark.parametrize("backend", BACKENDS)
def test_longest_side(clip, backend):
    small = vlm.read_video(clip, 2, max_side=32, backend=backend)
    assert small.frames.shape == (2, 24, 32, 3)
    whole = vlm.read_video(clip, 2, max_side=64, backend=backend)
    expected = [np.asarray(image.resize((32, 24), Image.Resampling.BICUBIC)) for image in whole.images()]
    assert np.array_equal(small.frames, expected)


@pytest.mark.parametrize("kind", (".gif", ".webp"))
def test_animated_pictures(tmp_path, kind):
    path = tmp_path / f"moving{kind}"
    images = [Image.new("RGB", (32, 20), (60 * i, 0, 0)) for i in range(4)]
    images[0].save(path, save_all=True, append_images=images[1:], duration=[100, 200, 50, 100], lossless=True)
    video = vlm.read_video(path, 4)
    assert video.backend == "pil" and video.times.tolist() == pytest.approx([0, 0.1, 0.3, 0.35])
    assert [int(frame[0, 0, 0]) for frame in video] == [0, 60, 120, 180]


@pytest.mark.parametrize(
    ("name", "mode"),
    (("clip.gif", "RGBA"), ("ink.webp", "RGBA"), ("ink.png", "RGBA"), ("ink.png", "LA"), ("ink.png", "P")),
)
def test_what_is_transparent_is_white(tmp_path, name, mode):
    """Ink on a transparent ground would be black on black."""
    pictures = []
    for left in (4, 12):
        picture = Image.new("RGBA", (32, 20))
        picture.paste((0, 0, 0, 255), (left, 4, left + 8, 12))
        pictures.append(picture.quantize() if mode == "P" else picture.convert(mode))
    more = {"save_all": True, "append_images": pictures[1:]} if name == "clip.gif" else {}
    pictures[0].save(tmp_path / name, disposal=2, lossless=True, **more)
    video = vlm.read_video(tmp_path / name, 2 if more else 1)
    for frame, left in zip(video, (4, 12), strict=False):
        assert (frame[4:12, left : left + 8] == 0).all() and int((frame == 255).all(-1).sum()) == 32 * 20 - 64


def test_frames_are_iterated_and_indexed_as_arrays(clip):
    video = vlm.read_video(clip, 5)
    assert len(video) == len(list(video)) == 5
    assert np.array_equal(video[1], video.frames[1]) and np.array_equal(video[::2], video.frames[::2])
    assert np.array_equal(np.stack(list(video)), video.frames)


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_wanted_frames_are_held(tmp_path, backend, monkeypatch):
    """Of a long clip no more than the frame at hand is alive beside the result."""
    path = write(tmp_path / "long.mp4", 1500, gop=250, quick=True)
    reader = video_readers.READERS[backend]
    frames, made, alive = reader.frames, [], []

    def counted(self, indices):
        for frame in frames(self, indices):
            made.append(weakref.ref(frame))
            alive.append(sum(ref() is not None for ref in made))
            yield frame
            del frame

    monkeypatch.setattr(reader, "frames", counted)
    tracemalloc.start()
    video = vlm.read_video(path, 32, backend=backend)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert video.indices[-1] == 1499 and len(made) == 32 and max(alive) <= 2
    assert peak < 3 * video.frames.nbytes < 1500 * HEIGHT * WIDTH * 3 / 10


@pytest.mark.parametrize("backend", (None, *BACKENDS))
def test_a_file_that_may_not_be_read_is_not_said_to_be_broken(clip, backend, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.R_OK)  # root may read all
    with pytest.raises(VideoFileError, match="may not be read: change its permissions"):
        vlm.read_video(clip, 4, backend=backend)


@pytest.mark.parametrize("backend", (None, *BACKENDS))
@pytest.mark.parametrize("kind", ("missing", "folder", "empty", "text", "no end", "audio"))
def test_files_that_hold_no_video(tmp_path, clip, kind, backend):
    path, says = tmp_path / "broken.mp4", "is not a video, or its beginning or end is missing: download or copy it"
    if kind == "missing":
        says = "does not exist"
    elif kind == "folder":
        path, says = tmp_path, "is a folder: pass one of the files in it"
    elif kind == "empty":
        path.write_bytes(b"")
        says = "is empty"
    elif kind == "text":
        path.write_bytes(b"no video " * 200)
    elif kind == "no end":
        path.write_bytes(clip.read_bytes()[:1000])
    else:
        write(path, video=False, audio=True)
        says = "holds no video stream" if backend == "decord" else "holds audio only: pass a file with a video stream"
    with pytest.raises(VideoFileError, match=says) as error:
        vlm.read_video(path, 4, backend=backend)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_clip_that_is_cut_off_can_be_read_up_to_there(tmp_path):
    whole = write(tmp_path / "whole.mp4", 60, movflags="faststart")
    path = tmp_path / "cut.mp4"
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size * 5 // 6])
    with pytest.raises(VideoFileError, match=r"is cut off after about 1\.\d+ s: .* with end=") as error:
        vlm.read_video(path, 4)
    end = float(str(error.value).rsplit("end=", 1)[1])
    video = vlm.read_video(path, 4, end=end)
    assert np.array_equal(video.frames, everything(whole)[0][video.indices])


def test_a_damaged_clip_names_the_frame(tmp_path):
    path = write(tmp_path / "damaged.mp4", 60, gop=12, size=(320, 240), movflags="faststart")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 : len(raw) // 2 + 400] = b"\xff" * 400
    path.write_bytes(raw)
    with pytest.raises(VideoFileError, match=r"damaged at frame \d+ .*end=") as error:
        vlm.read_video(path, 60)
    end = float(str(error.value).rsplit("end=", 1)[1])
    assert vlm.read_video(path, fps=5, end=end).times[-1] < end


BAD = (
    ({"frames": 31}, SettingError, "31 frames requested, but .* has 30: pass frames=30 or fewer"),
    ({"frames": 31, "sampling": "qwen"}, SettingError, "31 frames requested, but .* has 30: pass frames=30 or fewer"),
    ({}, SettingError, "frames=None, fps=None: give one of the two"),
    ({"frames": 8, "fps": 2}, SettingError, "frames=8, fps=2: give one of the two"),
    ({"frames": 0}, SettingError, "frames=0: pass a whole number"),
    ({"frames": 2.5}, SettingError, "frames=2.5"),
    ({"frames": True}, SettingError, "frames=True"),
    ({"fps": 0}, SettingError, "fps=0: pass frames per second above 0"),
    ({"fps": float("nan")}, SettingError, "fps=nan"),
    ({"fps": "2"}, SettingError, "fps='2'"),
    ({"frames": 8, "start": "0"}, SettingError, "start='0'"),
    ({"frames": 8, "max_side": "448"}, SettingError, "max_side='448'"),
    ({"frames": 8, "sampling": None}, UnknownNameError, "unknown sampling None: choose from 'llava'"),
    ({"fps": 2, "min_frames": 9, "max_frames": 8}, SettingError, "min_frames=9, max_frames=8"),
    ({"frames": 8, "sampling": "lava"}, UnknownNameError, "did you mean 'llava'"),
    ({"frames": 8, "backend": "pyav"}, UnknownNameError, "unknown backend 'pyav': did you mean 'av'"),
    ({"frames": 8, "start": 2, "end": 1}, SettingError, "start=2, end=1"),
    ({"frames": 8, "start": -1}, SettingError, "start=-1"),
    ({"frames": 8, "start": 9}, SettingError, "no frame of .* is in start=9, end=None: it has 1.16 s"),
    ({"frames": 8, "max_side": 0}, SettingError, "max_side=0"),
)


@pytest.mark.parametrize(("settings", "kind", "says"), BAD)
def test_bad_settings(clip, settings, kind, says):
    with pytest.raises(kind, match=says) as error:
        vlm.read_video(clip, **settings)
    assert "\n" not in str(error.value)


def test_an_error_names_the_file_that_is_too_short(clip):
    with pytest.raises(SettingError, match=f"but {re.escape(str(clip))} has 30"):
        vlm.read_video(clip, 31)


@pytest.mark.parametrize("settings", ({"fps": 2}, {"max_side": 0}), ids=str)
def test_settings_are_checked_before_the_file_is_looked_for(tmp_path, settings):
    with pytest.raises(SettingError):
        vlm.read_video(tmp_path / "none.mp4", 8, **settings)


@pytest.mark.parametrize(("name", "fps"), (("one.mp4", 25.0), ("one.gif", 1.0)))
def test_a_clip_of_one_frame_has_the_rate_of_its_header(tmp_path, name, fps):
    path = tmp_path / name
    write(path, 1) if name.endswith("mp4") else Image.new("RGB", (32, 20)).save(path)
    video = vlm.read_video(path, 1)
    assert (video.fps, video.duration, video.times.tolist()) == (fps, 1 / fps, [0.0])


class Watched:
    """A container that counts how often one was opened and closed."""

    counts: ClassVar = {"opened": 0, "closed": 0}
    open = staticmethod(av.open)

    def __init__(self, *args, **kwargs):
        self.container = self.open(*args, **kwargs)
        self.counts["opened"] += 1

    def __getattr__(self, name):
        return getattr(self.container, name)

    def close(self):
        self.counts["closed"] += 1
        self.container.close()


@pytest.mark.parametrize(("name", "more"), (("vp8.webm", {"codec": "libvpx"}), ("sound.mp4", {"video": False})))
def test_all_that_was_opened_is_closed(tmp_path, monkeypatch, name, more):
    """Also what was opened twice, to count by decoding, and what holds no video."""
    path = write(tmp_path / name, audio="video" in more, **more)
    monkeypatch.setattr(av, "open", Watched)
    monkeypatch.setattr(Watched, "counts", {"opened": 0, "closed": 0})
    with nullcontext() if "codec" in more else pytest.raises(VideoFileError, match="audio only"):
        vlm.read_video(path, 3)
    assert Watched.counts["opened"] == Watched.counts["closed"] == (3 if "codec" in more else 1)


def test_options_reach_the_file_and_its_decoder(clip):
    reader = video_readers.AvReader(clip, {"skip_frame": "default"})
    for _ in range(2):
        assert reader.stream.codec_context.options == {"skip_frame": "default"}
        reader._restart()
    reader.close()
    with pytest.raises(VideoFileError, match="is not a video"):
        video_readers.AvReader(clip, {"format_whitelist": "matroska"})


def test_a_file_is_cut_off_where_more_than_a_few_frames_are_missing(clip, monkeypatch):
    listed = video_readers.AvReader._list
    for promised, missing in ((30, False), (31, True)):
        monkeypatch.setattr(video_readers.AvReader, "_list", lambda self, n=promised: (*listed(self)[:2], n))
        reader = video_readers.AvReader(clip)
        assert (reader.cut_off is not None) == missing
        reader.close()


def test_the_place_of_a_damage_is_told_with_what_is_before_it():
    for index, end in ((0, "0.00"), (1, "0.49")):
        error = video_readers.damaged(Path("a.mp4"), index, np.array([0.0, 0.5]))
        assert str(error).endswith(f"end={end}") and f"frame {index} ({index / 2:.2f} s)" in str(error)


def test_a_picture_of_a_format_without_frames_is_refused(tmp_path):
    path = tmp_path / "still.gif"
    Image.new("RGB", (32, 20)).save(path, "BMP")
    with pytest.raises(VideoFileError, match="is not a video"):
        vlm.read_video(path, 1)


def test_frames_of_no_duration_are_shown_as_browsers_do(tmp_path):
    path = tmp_path / "quick.gif"
    images = [Image.new("RGB", (32, 20), (60 * i, 0, 0)) for i in range(3)]
    images[0].save(path, save_all=True, append_images=images[1:], duration=0)
    assert vlm.read_video(path, 3).times.tolist() == pytest.approx([0, 0.1, 0.2])


def test_the_shorter_side_keeps_a_pixel():
    assert video_readers.scaled(np.zeros((1, 400, 3), np.uint8), 100).shape == (1, 100, 3)


def test_memory_and_missing_packages(clip, monkeypatch):
    monkeypatch.setattr(estimate, "free_memory", lambda device: 10_000)
    with pytest.raises(MemoryLimitError, match="30 frames of .* ask for fewer, or pass max_side"):
        vlm.read_video(clip, 30)
    monkeypatch.undo()
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("av", "decord") else found(name))
    with pytest.raises(MissingExtraError, match=r'pip install "mmaccel\[video\]"'):
        vlm.read_video(clip, 3)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match="backend='av' needs av"):
        vlm.read_video(clip, 3, backend="av")


def test_a_progress_bar_on_request(clip, capsys, monkeypatch):
    vlm.read_video(clip, 3)
    assert not capsys.readouterr().err
    vlm.read_video(clip, 3, progress=True)
    assert "clip.mp4" in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    vlm.read_video(clip, 3)
    assert not capsys.readouterr().err, "it is read at once"
    monkeypatch.setattr(module, "BAR_AFTER", 0.0)
    vlm.read_video(clip, 3)
    assert "3/3" in capsys.readouterr().err, "reading takes long"
    vlm.read_video(clip, 3, progress=False)
    assert not capsys.readouterr().err


def test_bounds_hold_for_a_file(clip):
    """30 frames at 25 a second: one frame a second would be one, and all of them 30."""
    for sampling_rule in ("uniform", "qwen", "qwen3"):
        assert len(vlm.read_video(clip, fps=1, sampling=sampling_rule)) == 4
        assert len(vlm.read_video(clip, fps=1, sampling=sampling_rule, min_frames=6)) == 6
    for sampling_rule in ("uniform", "qwen", "llava"):
        assert len(vlm.read_video(clip, fps=25, sampling=sampling_rule, max_frames=8)) == 8


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_file_is_closed_whatever_happens(clip, backend, monkeypatch):
    reader, closed = video_readers.READERS[backend], []
    close = reader.close
    monkeypatch.setattr(reader, "close", lambda self: closed.append(self.path) or close(self))
    vlm.read_video(clip, 2, backend=backend)
    assert closed == [clip]
    with pytest.raises(SettingError):
        vlm.read_video(clip, 31, backend=backend)
    assert closed == [clip, clip]


def test_what_a_result_says_of_its_file(clip):
    video = vlm.read_video(str(clip), 2)
    assert video.path == clip and video.backend == "av"
    assert {name: video.metadata[name] for name in ("total_num_frames", "fps", "height", "video_backend")} == {
        "total_num_frames": 2 * 29,  # each stands for the frames up to the next
        "fps": 25.0,
        "height": HEIGHT,
        "video_backend": "av",
    }
    assert video.metadata["duration"] == pytest.approx(1.2)


def test_processors_come_to_the_true_times(clip):
    """They divide indices by the rate, and take the frames as spread over all of the file."""
    pictures, seconds = np.zeros((4, 2, 2, 3), np.uint8), np.array([0.0, 1.0, 2.0, 60.0])
    unsteady = vlm.VideoFrames(pictures, np.arange(4), seconds, 5.0, 300, 60.2, clip, "av")
    assert VideoMetadata(**unsteady.metadata).timestamps == seconds.tolist() and unsteady.indices.tolist() == [
        0,
        1,
        2,
        3,
    ]
    for start, end, spacing in ((0.4, 0.8, 3 / 25), (None, None, 29 / 3 / 25)):
        video = vlm.read_video(clip, 4, start=start, end=end)
        assert VideoMetadata(**video.metadata).sampled_fps == pytest.approx(1 / spacing, rel=0.02)
        assert VideoMetadata(**video.metadata).timestamps == pytest.approx(video.times.tolist())
    alone = vlm.read_video(clip, 1)
    assert alone.metadata["total_num_frames"] == 30 and alone.metadata["frames_indices"].tolist() == [0]


def test_so_many_frames_as_there_are_take_one_look_at_the_file(clip, monkeypatch):
    reader, opened = video_readers.READERS["av"], []
    close = reader.close
    monkeypatch.setattr(reader, "close", lambda self: opened.append(self.path) or close(self))
    for frames, expected in ((7, 7), (99, 30)):
        video = module.read_at_most(clip, frames)
        assert len(video) == expected and np.array_equal(video.frames, vlm.read_video(clip, expected).frames)
    assert len(opened) == 4
    with pytest.raises(SettingError, match="frames=0"):
        module.read_at_most(clip, 0)


def test_endings_of_pictures_in_capitals(tmp_path):
    path = tmp_path / "MOVING.GIF"
    images = [Image.new("RGB", (32, 20), (60 * i, 0, 0)) for i in range(3)]
    images[0].save(path, "GIF", save_all=True, append_images=images[1:], duration=100)
    assert vlm.read_video(path, 3).backend == "pil"


def test_a_frame_of_another_size_is_made_to_fit(clip, monkeypatch):
    reader = video_readers.READERS["av"]
    frames = reader.frames

    def growing(self, indices):
        first, *others = frames(self, indices)
        yield first
        for frame in others:
            yield frame.repeat(2, 0).repeat(2, 1)

    monkeypatch.setattr(reader, "frames", growing)
    video = vlm.read_video(clip, 3)
    assert video.frames.shape == (3, HEIGHT, WIDTH, 3) and (video.frames[2] != video.frames[0]).any()


# The rules, against a plain reading of each family's own.


@pytest.mark.parametrize(("total", "frames"), itertools.product((4, 5, 30, 97, 250, 1001, 9999), (1, 2, 4, 8, 32, 64)))
def test_rules_by_number(total, frames):
    if frames > total:
        pytest.skip("more frames than there are")
    take = lambda name: sampling.sample_frames(name, total, frames=frames).tolist()  # noqa: E731
    step = total / frames
    assert take("llava") == np.linspace(0, total - 1, frames, dtype=int).tolist()
    assert take("uniform") == [i * total // frames for i in range(frames)]
    assert take("qwen3") == [round(x) for x in np.linspace(0, total - 1, frames)]
    assert take("internvl") == torch.arange(step / 2, total, step).int().tolist()
    if frames > 1:
        assert take("qwen") == torch.arange(0, total, step).int().tolist()
    for name in sampling.RULES:
        chosen = sampling.sample_frames(name, total, frames=frames)
        assert chosen.dtype == np.int64 and chosen[0] >= 0 and chosen[-1] < total and (np.diff(chosen) > 0).all()


@pytest.mark.parametrize(
    ("name", "total", "rate", "fps", "count"),
    (
        ("qwen", 250, 25.0, 2, 20),
        ("qwen", 250, 25.0, 2.15, 20),  # 21.5, rounded down to an even number
        ("qwen", 30, 25.0, 2, 4),  # the least
        ("qwen", 3, 25.0, 2, 2),
        ("qwen", 1, 25.0, 2, 1),
        ("qwen", 100_000, 25.0, 2, 768),  # the most
        ("qwen3", 250, 25.0, 2.15, 21),
        ("internvl", 250, 25.0, 1, 10),
        ("uniform", 3, 25.0, 2, 3),
        ("llava", 250, 25.0, 1, 10),
        ("llava", 251, 25.0, 1, 11),
        ("llava", 100_000, 25.0, 2, 768),
    ),
)
def test_rules_by_rate(name, total, rate, fps, count):
    chosen = sampling.sample_frames(name, total, fps=fps, rate=rate)
    assert len(chosen) == count and chosen[0] <= total // count // 2 and chosen[-1] < total


def test_llava_takes_every_nth_frame():
    assert sampling.sample_frames("llava", 60, fps=2, rate=29.97).tolist() == [0, 15, 30, 45]


def test_llava_spreads_the_most_frames_over_the_whole_clip():
    assert sampling.sample_frames("llava", 100, fps=10, rate=10, max_frames=4).tolist() == [0, 33, 66, 99]


def test_qwen_numbers_are_even():
    for frames, count in ((1, 2), (2, 2), (3, 4), (5, 4), (7, 8)):
        assert len(sampling.sample_frames("qwen", 100, frames=frames)) == count


@pytest.mark.parametrize(("total", "count"), ((1, 1), (2, 2), (3, 2), (7, 6)))
def test_qwen_takes_all_of_a_short_clip_in_pairs(total, count):
    assert len(sampling.sample_frames("qwen", total, frames=total)) == count


def test_a_tiny_rate_takes_one_frame():
    assert sampling.sample_frames("llava", 30, fps=1e-310, rate=25.0).tolist() == [0]


def test_every_backend_has_a_reader():
    assert set(video_readers.READERS) == {"av", "decord", "pil"}
