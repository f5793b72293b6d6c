"""Video files watched while they are decoded: the frames of a plain reading, without still ones, and one error each."""

import threading

import numpy as np
import pytest
import torch

from mmaccel import vlm, zoo
from mmaccel.demos.vlm import watched_video
from mmaccel.errors import SettingError, VideoFileError
from mmaccel.vlm.input.changes import Changes
from mmaccel.vlm.input.read_video import frames_in_file
from mmaccel.vlm.stream import watching
from mmaccel.vlm.stream.ahead import ahead
from mmaccel.vlm.stream.watching import CHUNK

METHOD = vlm.StreamingCompression(keep=0.25, refresh=1.0)


@pytest.fixture(scope="module")
def parts():
    return zoo.load("tiny-onevision")


@pytest.fixture(scope="module")
def asked():
    return zoo.questions("tiny-onevision", 1, seed=1, brief=True)[0]


@pytest.fixture(scope="module")
def file(asked, tmp_path_factory):
    path = tmp_path_factory.mktemp("clips") / "clip.mp4"
    watched_video.write(asked.frames[:12], path, 64)
    return path


def test_a_file_that_is_watched_whole_is_a_file_that_was_read_and_pushed(parts, file):
    watching, pushing = (vlm.VideoStream(*parts, METHOD) for _ in range(2))
    seen = vlm.watch(watching, file, still=0, frames=10)
    read = vlm.read_video(file, frames=10).frames
    for first in range(0, 10, CHUNK):
        pushing.push(read[first : first + CHUNK])
    assert (seen.frames, seen.decoded) == (10, 10) and seen.seconds > 0
    assert torch.equal(watching.memory.tokens(), pushing.memory.tokens())
    assert watching.stats.seconds == seen.seconds and watching.stats.tower_share == pushing.stats.tower_share
    assert watching.ask("what moves up?", 3) == pushing.ask("what moves up?", 3)


def test_frames_that_show_nothing_new_never_reach_the_tower(parts, file):
    read = vlm.read_video(file, frames=12).frames
    changes = Changes(80)
    new = [frame for frame in read if changes.new(frame)]
    watching, pushing = (vlm.VideoStream(*parts, METHOD) for _ in range(2))
    seen = vlm.watch(watching, file, still=80, frames=99)
    for first in range(0, len(new), CHUNK):
        pushing.push(new[first : first + CHUNK])
    assert seen.frames == len(new) < seen.decoded == 12 and str(seen) == f"{len(new)} of 12 frames showed something new"
    assert torch.equal(watching.memory.tokens(), pushing.memory.tokens())


def test_small_things_count_and_noise_does_not():
    rng = np.random.default_rng(0)
    ground = np.full((90, 160, 3), 128, np.uint8)
    noisy = (ground + rng.integers(-20, 21, ground.shape)).astype(np.uint8)
    thing = noisy.copy()
    thing[40:52, 70:82] = 255
    moved = noisy.copy()
    moved[40:52, 82:94] = 255
    for scale in (1, 3):  # also where not every pixel is looked at
        changes = Changes(24)
        clip = [ground, noisy, thing, thing, moved, noisy]
        assert [changes.new(f.repeat(scale, 0).repeat(scale, 1)) for f in clip] == [
            True,
            False,
            True,
            False,
            True,
            True,
        ]
    assert Changes(24).new(ground) and all(Changes(0).new(frame) for frame in (ground, ground))
    changes = Changes(24)
    assert changes.new(ground) and changes.new(ground[:3, :5]), "another size is another scene"


def test_frames_before_a_fault_are_kept(parts, file, monkeypatch):
    def broken(*_, **more):
        yield from vlm.read_video(file, frames=CHUNK + 1).frames
        raise VideoFileError("frame 7 is damaged")

    monkeypatch.setattr(watching, "frames_in_file", broken)
    stream = vlm.VideoStream(*parts, METHOD)
    with pytest.raises(VideoFileError, match="frame 7"):
        vlm.watch(stream, file, still=0)
    assert stream.stats.frames == CHUNK + 1


def test_so_many_frames_a_second_of_a_long_clip(tmp_path):
    path = tmp_path / "long.mp4"
    watched_video.write(np.zeros((800, 16, 16, 3), np.uint8), path, 16)  # 8 a second
    assert sum(1 for _ in frames_in_file(path, fps=8)) == 800
    assert sum(1 for _ in frames_in_file(path, fps=2)) == 200
    assert sum(1 for _ in frames_in_file(path, 900)) == 800


def test_no_thread_stays_whatever_happens(parts, file, monkeypatch):
    before = threading.active_count()
    stream = vlm.VideoStream(*parts, METHOD)

    def broken(pixels):
        raise KeyboardInterrupt

    monkeypatch.setattr(stream, "push_features", broken)
    with pytest.raises(KeyboardInterrupt):
        vlm.watch(stream, file, still=0)
    for stage in ("features", "pixels"):
        monkeypatch.setattr(stream, stage, lambda made: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            vlm.watch(stream, file, still=0)
    assert threading.active_count() == before and stream.stats.frames == 0


def test_so_many_are_drawn_ahead_and_no_more():
    drawn = []
    paused = threading.Event()

    def items():
        for number in range(9):
            drawn.append(number)
            if number == 3:
                paused.set()
            yield number

    given = ahead(items(), 2)
    assert next(given) == 0 and paused.wait(9)
    assert drawn == [0, 1, 2, 3], "one was taken, two wait, and one is at hand"
    given.close()
    assert len(drawn) <= 5 and list(ahead(iter(()))) == []


def test_items_are_drawn_under_the_autocast_of_who_takes_them():
    """Such as what a tower makes of frames."""

    def items():
        for _ in range(3):
            yield torch.is_autocast_enabled("cpu")

    with torch.autocast("cpu", torch.bfloat16):
        assert list(ahead(ahead(items()))) == [True] * 3
    assert list(ahead(items())) == [False] * 3


def test_nothing_is_drawn_behind_an_error():
    drawn = []

    def fails_at_1(number):
        drawn.append(number)
        return 1 // (1 - number)

    with pytest.raises(ZeroDivisionError):
        list(ahead(map(fails_at_1, range(9)), 2))
    assert drawn == [0, 1]


def test_what_a_file_or_a_user_can_have_wrong_is_one_line(parts, tmp_path, file):
    stream = vlm.VideoStream(*parts, METHOD)
    for more, error, told in (
        ({"path": tmp_path / "no.mp4"}, VideoFileError, "does not exist"),
        ({"path": file, "still": 300}, SettingError, "still=300"),
        ({"path": file, "fps": 0}, SettingError, "fps=0"),
        ({"path": file, "backend": "ffmpeg"}, ValueError, "backend"),
    ):
        with pytest.raises(error, match=told) as raised:
            vlm.watch(stream, **more)
        assert "\n" not in str(raised.value)
    assert stream.stats.frames == 0
