"""Pictures and clips on disk, files that appear whole, foreign JSON, and what this machine says of itself."""

import errno
import os
import stat
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmaccel import machine
from mmaccel.errors import MissingExtraError, SettingError, WeightsError
from mmaccel.files import clips, foreign_json, kept_choices, output, pictures, user_cache

RED, BLUE = (255, 0, 0), (0, 0, 255)


def picture(width, height, colour=RED):
    return Image.new("RGB", (width, height), colour)


# Pictures


def test_pictures_are_enlarged_by_a_whole_factor_or_left_as_they_are():
    sizes = {(64, 32): (256, 128), (100, 10): (300, 30), (256, 8): (256, 8), (300, 1): (300, 1)}
    assert {size: pictures.enlarged(picture(*size)).size for size in sizes} == sizes


@pytest.mark.parametrize("mode", ("I;16", "I;16B", "I"))
def test_grey_of_16_bits_is_no_white_page(tmp_path, mode):
    """As scans have it: PIL itself shows all above 255 as white."""
    ramp = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 64)
    if mode == "I;16":
        Image.fromarray(ramp).save(tmp_path / "scan.png")
        read = pictures.read_picture(tmp_path / "scan.png")
    else:
        read = pictures.on_white(Image.fromarray(ramp.astype({"I": np.int32, "I;16B": ">u2"}[mode])))
    assert np.array_equal(np.asarray(read), np.repeat((ramp >> 8)[..., None], 3, 2))


def test_whole_numbers_of_8_bits_stay_as_they_are():
    grey = np.arange(256, dtype=np.int32).reshape(16, 16)
    assert np.array_equal(np.asarray(pictures.on_white(Image.fromarray(grey)))[..., 0], grey)


def test_a_sheet_fills_rows_and_leaves_gaps():
    page = pictures.sheet([picture(10, 6), picture(4, 8, BLUE), picture(10, 6, BLUE)], 2)
    assert page.size == (2 * 10 + pictures.GAP, 2 * 8 + pictures.GAP)
    at = {(0, 0): RED, (18, 0): BLUE, (18 + 4, 0): pictures.BACKGROUND, (0, 16): BLUE, (18, 16): pictures.BACKGROUND}
    assert {point: page.getpixel(point) for point in at} == at and page.getpixel((12, 0)) == pictures.BACKGROUND


def test_a_long_heading_takes_more_lines_and_pictures_beside_each_other_begin_at_one_height():
    one, long = "short", "a heading of many words that needs several lines"
    bar = pictures.headed(picture(100, 20), long).height - 20
    lines = pictures.wrapped(long, 100)
    assert len(lines) > 2 and " ".join(lines) == long and bar == pictures.BAR + pictures.LINE * (len(lines) - 1)
    both = pictures.side_by_side([picture(100, 20), picture(100, 20, BLUE)], [one, long])
    assert both.size == (200 + pictures.GAP, 20 + bar)
    assert both.getpixel((0, bar)) == RED and both.getpixel((108, bar)) == BLUE
    assert both.getpixel((0, bar - 1)) == pictures.BACKGROUND
    for x in (0, 108):
        heading = both.crop((x, 0, x + 100, bar))
        assert len(heading.getcolors(1000)) > 2, "each has its text"
    with pytest.raises(ValueError, match="longer"):
        pictures.side_by_side([picture(9, 9)], [one, one])


def test_words_that_are_too_long_break_between_letters_and_none_is_lost():
    lines = pictures.wrapped("SpeculativeJacobi(window=16)", 90)
    assert "".join(lines) == "SpeculativeJacobi(window=16)" and lines[0] == "SpeculativeJ"[: len(lines[0])]
    assert "" not in lines and pictures.wrapped("", 90) == [""]


def test_formats_of_pictures_in_any_case():
    pictures.check_format("x.PNG")
    with pytest.raises(SettingError, match=r"'x.gif': end the name with .png, .jpg, .jpeg, .webp"):
        pictures.check_format("folder/x.gif")


# Clips


@pytest.mark.parametrize("kind", ("gif", "webp"))
def test_clips_repeat_for_ever_at_their_rate(tmp_path, kind):
    clips.save([picture(8, 8), picture(8, 8, BLUE)], tmp_path / f"x.{kind}", rate=4)
    with Image.open(tmp_path / f"x.{kind}") as found:
        assert (found.n_frames, found.info["loop"]) == (2, 0)
        assert kind == "webp" or found.disposal_method == 2, "no frame shows through the next one"
        found.seek(1)
        found.load()
        assert found.info["duration"] == 250


def test_all_frames_stand_in_one_row_of_a_png(tmp_path):
    clips.save([picture(8, 8), picture(8, 8, BLUE)], tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as found:
        assert found.size == (16 + pictures.GAP, 8) and found.getpixel((17, 3)) == BLUE


def test_mp4_is_refused_before_any_work_where_nothing_writes_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    clips.check_format(Path("x.gif"))
    with pytest.raises(MissingExtraError, match=r"mmaccel\[video\]"):
        clips.check_format(Path("x.MP4"))


def test_clips_side_by_side_are_enlarged_and_of_one_length():
    both = clips.side_by_side([[picture(64, 64)] * 2, [picture(64, 64, BLUE)] * 2], ["a", "b"])
    assert [frame.size for frame in both] == [(2 * 256 + pictures.GAP, 256 + pictures.BAR)] * 2
    with pytest.raises(ValueError, match="shorter"):
        clips.side_by_side([[picture(8, 8)] * 2, [picture(8, 8)]], ["a", "b"])


# Files that appear whole


def test_a_finished_file_can_be_read_as_others_of_its_folder(tmp_path):
    (tmp_path / "other").touch()
    with output.replacing(tmp_path / "x.png") as temporary:
        assert temporary.suffix == ".png" and temporary.parent == tmp_path and not (tmp_path / "x.png").exists()
        temporary.write_text("new")
    mode, others = (stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("x.png", "other"))
    assert mode == others and sorted(path.name for path in tmp_path.iterdir()) == ["other", "x.png"]
    (tmp_path / "again").touch()
    assert stat.S_IMODE((tmp_path / "again").stat().st_mode) == others, "the mask of the process is as it was"


@pytest.mark.skipif(sys.platform == "win32", reason="links and permissions of POSIX")
def test_a_link_stays_and_the_file_behind_it_keeps_its_permissions(tmp_path):
    (tmp_path / "shared").mkdir()
    real, link, dangling = tmp_path / "shared" / "plan.json", tmp_path / "mine.json", tmp_path / "new.json"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    dangling.symlink_to("shared/new.json")
    output.check_writable(link)
    for path in (link, dangling):
        with output.replacing(path) as temporary:
            assert temporary.parent == tmp_path / "shared"
            temporary.write_text("new")
    assert link.is_symlink() and real.read_text() == "new" and stat.S_IMODE(real.stat().st_mode) == 0o640
    assert dangling.is_symlink() and (tmp_path / "shared" / "new.json").read_text() == "new"
    (tmp_path / "lost.json").symlink_to("none/x.json")
    with pytest.raises(OSError, match=r"there is no folder .*none: create it first, or write elsewhere with -o"):
        output.check_writable(tmp_path / "lost.json")
    (tmp_path / "out.png").symlink_to("/dev/null")
    with pytest.raises(OSError, match="out.png is not a regular file"):
        output.check_writable(tmp_path / "out.png")


@pytest.mark.skipif(sys.platform == "win32", reason="links of POSIX")
@pytest.mark.parametrize("name", ("behind", "behind.png"))
def test_behind_a_link_is_written_what_the_named_ending_says(tmp_path, name):
    behind, link = tmp_path / "shared" / name, tmp_path / "mine.webp"
    behind.parent.mkdir()
    behind.write_text("old")
    link.symlink_to(behind)
    output.check_writable(link)
    with output.replacing(link) as temporary:
        assert temporary.suffix == ".webp" and temporary.parent == behind.parent
        clips.save([picture(8, 8)] * 2, temporary)
    with Image.open(behind) as found:
        assert found.format == "WEBP" and link.is_symlink()
    assert list(behind.parent.iterdir()) == [behind]


def test_a_file_is_closed_hidden_while_it_is_written_and_may_be_taken_away(tmp_path, monkeypatch):
    made, make = [], tempfile.mkstemp
    monkeypatch.setattr(tempfile, "mkstemp", lambda **options: made.append(make(**options)) or made[-1])
    with pytest.raises(ZeroDivisionError), output.replacing(tmp_path / "x.png") as temporary:
        assert temporary.name.startswith(".mmaccel-")
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(made[0][0])
        temporary.unlink()
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), output.replacing(tmp_path / "x.png"):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir()), "nor does what has failed stay"
    with pytest.raises(OSError, match="write elsewhere with -o$"):
        output.check_writable(Path("/dev/null"))


@pytest.fixture
def held_open(monkeypatch):
    """As on Windows, where a file that another program has open cannot be replaced."""

    def replace(self, target):
        raise PermissionError(errno.EACCES, "Access is denied")

    monkeypatch.setattr(Path, "replace", replace)


def test_a_result_is_kept_beside_a_file_that_is_open_in_another_program(tmp_path, held_open):
    said = r"x.png .*Access is denied.*close.* the result is in .*\.mmaccel-"
    with pytest.raises(OSError, match=said) as told, output.replacing(tmp_path / "x.png") as temporary:
        temporary.write_text("new")
    assert str(temporary) in str(told.value) and temporary.read_text() == "new"


def test_a_choice_that_cannot_be_kept_leaves_nothing(tmp_path, monkeypatch, held_open):
    monkeypatch.setattr(kept_choices, "path", lambda: tmp_path / "choices.json")
    kept_choices.keep("here", "decoding", "packed")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_said_with_the_option_and_nothing_stays(tmp_path, monkeypatch):
    def full(self, data):
        assert len(data) == output.ROOM
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"no room for .*x.png \(No space left on device\): .* elsewhere with --page"):
        output.check_writable(tmp_path / "x.png", "--page")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "word"), ((".", "is a folder: give a file name"), ("none/x.png", "no folder .*none: .* with --page"))
)
def test_paths_that_cannot_be_written_are_told_before_work(tmp_path, name, word):
    with pytest.raises(OSError, match=word):
        output.check_writable(tmp_path / name, "--page")


# JSON of others


@pytest.mark.parametrize(
    "found", ({"a\x1b": 1}, [["\u202e"]], ("\ud800",), {"a": {"b": "c\nd"}}, [2**1000], {"a": -(2**1001)})
)
def test_what_is_not_plain_is_found_anywhere(found):
    with pytest.raises(WeightsError, match="control character|bits"):
        foreign_json.check_plain(found)


def test_what_is_plain_passes_up_to_the_deepest_level():
    foreign_json.check_plain([2**1000 - 1, "é", None, True, 1.5])
    nested = "x"
    for _ in range(foreign_json.DEEPEST):
        nested = [nested]
    foreign_json.check_plain(nested)
    for deeper in ([nested], {"a": nested}, (nested,)):
        with pytest.raises(WeightsError, match="nested"):
            foreign_json.check_plain(deeper)


@pytest.mark.parametrize(
    ("content", "word"),
    (
        (b'"\xff"', "is not JSON .*utf-8"),
        (b"[1,", "is not JSON"),
        (b'["\\u001b"]', "holds a text with the control"),
        (b"9" * 5000, "a number of thousands of digits"),
        (b"[" * 99_999, "is nested too deeply"),
    ),
)
def test_files_are_refused_with_path_reason_and_advice(tmp_path, content, word):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(WeightsError, match=rf"x.json {word}.*: the advice$|x.json holds {word}: the advice$"):
        foreign_json.read_json(tmp_path / "x.json", 10**6, "the advice")


def test_a_file_of_just_the_largest_size_is_read(tmp_path):
    (tmp_path / "x.json").write_text('"abc"')
    assert foreign_json.read_json(tmp_path / "x.json", 5, "advice") == "abc"
    with pytest.raises(WeightsError, match=r"x.json is larger than 0 MiB: advice"):
        foreign_json.read_json(tmp_path / "x.json", 4, "advice")


# What is kept of this machine


def test_caches_are_where_the_user_says(monkeypatch):
    monkeypatch.setenv("MMACCEL_CACHE", "~/kept")
    assert user_cache.cache_folder() == Path.home() / "kept"
    monkeypatch.delenv("MMACCEL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert user_cache.cache_folder() == Path("/somewhere/mmaccel")


def test_only_choices_of_this_processor_and_this_torch_hold_here(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_choices, "path", lambda: tmp_path / "a" / "new" / "choices.json")
    here = kept_choices.place(3)
    another = here.replace("torch ", "torch 0"), "Another, " + here
    for place in (here, *another):
        kept_choices.keep(place, "decoding", "packed")
    assert kept_choices.here() == {here: {"decoding": "packed"}} and set(kept_choices.read()) == {here, *another}
    (tmp_path / "a" / "new" / "choices.json").write_text(f'{{"{here}": {{"a": 1}}, "b": 3}}')
    assert kept_choices.read() == {here: {"a": 1}}, "parts of another shape are left out"
    kept_choices.forget()
    kept_choices.forget()
    assert kept_choices.read() == {} and not list((tmp_path / "a" / "new").iterdir())


def test_a_user_without_a_home_folder_measures_again(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(kept_choices, "path", homeless)
    kept_choices.keep("here", "decoding", "packed")
    assert kept_choices.read() == {}


def test_a_machine_is_described_without_starting_an_accelerator(monkeypatch):
    said = machine.machine()
    assert list(said) == ["system", "processor", "cores", "accelerator"] and said["processor"] == machine.processor()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "H100")
    assert machine.machine()["accelerator"] == "H100"


@pytest.mark.parametrize("kind", ("cuda", "xpu"))
def test_the_gpus_in_use_are_waited_for_and_none_is_started(monkeypatch, kind):
    waited = []
    gpus = {"synchronize": waited.append, "device_count": lambda: 4, "current_device": lambda: 0}
    for name, function in {**gpus, "memory_reserved": lambda device: 9 * (device == 2)}.items():
        monkeypatch.setattr(f"torch.{kind}.{name}", function)
    for started, calls in ((False, []), (True, [0, 2])):
        monkeypatch.setattr(f"torch.{kind}.is_initialized", lambda started=started: started)
        machine.synchronize()
        assert waited == calls


@pytest.mark.parametrize(("held", "name"), ((0, "none"), (4096, "Apple GPU")))
def test_an_apple_gpu_is_waited_for_and_named_where_it_is_in_use(monkeypatch, held, name):
    waited = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    monkeypatch.setattr("torch.mps.synchronize", lambda: waited.append("Apple GPU"))
    monkeypatch.setattr("torch.mps.current_allocated_memory", lambda: held)
    machine.synchronize()
    assert waited == ["Apple GPU"] and machine.machine()["accelerator"] == name


@pytest.mark.parametrize(
    ("build", "platform", "devices", "asks_torch"),
    (
        ("2.13.0+cpu", "linux", ["/dev/null"], False),
        ("2.13.0", "linux", ["/dev/none"], False),
        ("2.13.0", "linux", ["/dev/none", "/dev/null"], True),
        ("2.13.0", "win32", ["/dev/none"], True),
    ),
)
def test_torch_is_loaded_only_where_there_can_be_an_accelerator(monkeypatch, build, platform, devices, asks_torch):
    asked = []
    monkeypatch.setattr(machine.metadata, "version", lambda name: build)
    monkeypatch.setattr(machine.sys, "platform", platform)
    monkeypatch.setattr(machine, "DEVICES", devices)
    torch = type(machine)("torch")
    torch.cuda = type("", (), {"is_available": staticmethod(lambda: asked.append(1) or False)})
    torch.backends = type("", (), {"mps": type("", (), {"is_available": staticmethod(lambda: False)})})
    modules = {name: module for name, module in machine.sys.modules.items() if name != "torch"}
    monkeypatch.setattr(machine.sys, "modules", modules)
    real = __import__
    monkeypatch.setattr("builtins.__import__", lambda name, *rest: torch if name == "torch" else real(name, *rest))
    assert machine._accelerator() == "none" and bool(asked) == asks_torch


def test_the_processor_is_what_linux_or_else_python_calls_it(monkeypatch):
    told = "processor\t: 0\nmodel name\t: A: B 9000 \nmodel name\t: another\n"
    monkeypatch.setattr(Path, "is_file", lambda self: str(self) == "/proc/cpuinfo")
    monkeypatch.setattr(Path, "read_text", lambda self: told)
    monkeypatch.setattr(machine.platform, "processor", lambda: "of Python")
    assert machine.processor() == "A: B 9000"
    told = "processor\t: 0\n"
    assert machine.processor() == "of Python"
    monkeypatch.setattr(Path, "is_file", lambda self: False)
    monkeypatch.setattr(Path, "read_text", None)
    assert machine.processor() == "of Python"
    monkeypatch.setattr(machine.platform, "processor", lambda: "")
    assert machine.processor() == "unknown"
    assert set(machine.DEVICES) == {"/dev/nvidiactl", "/dev/nvmap", "/dev/kfd", "/dev/dxg"}
