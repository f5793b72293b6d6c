"""Plans and results that somebody else wrote: each fault is one readable error."""

import json
from dataclasses import fields

import pytest

import mmaccel
from mmaccel.bench import index as bench_index
from mmaccel.bench.difference import difference
from mmaccel.cli import main as cli
from mmaccel.cli.bench import all_benchmarks
from mmaccel.comparison import results
from mmaccel.errors import MmaccelError, SettingError, UnknownNameError, WeightsError
from mmaccel.files import foreign_json
from mmaccel.image import ZipAR
from mmaccel.plan import MOST_BYTES, Plan
from mmaccel.tuning.curve import point

METHOD = ZipAR(window=2)
CURVE = [point(METHOD, 1.5, "surprise", "nats", 0.25), point(ZipAR(window=3), 1.2, "surprise", "nats", None)]
SAVED = Plan((METHOD,), "janus", measured=CURVE, why="it was measured").to_dict()


def text(**changes):
    return json.dumps({**SAVED, **changes})


def measured(**changes):
    return {"measured": [{**CURVE[0], **changes}]}


def without(name):
    return {key: value for key, value in SAVED.items() if key != name}


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


# What is in the file -> a word of the error.
FILES = {
    "6,000 digits": (text(format=1).replace('"format": 1', '"format": ' + "9" * 6000), "thousands of digits"),
    "400 digits": (text().replace('"window": 2', '"window": ' + "9" * 400), "a number of 1329 bits"),
    "200,000 brackets": ("[" * 200_000, "nested too deeply"),
    "100 brackets": (text(versions=nested(100)), "nested too deeply"),
    "too large": (text(why="x" * MOST_BYTES), "larger than 1 MiB"),
    "cut off": (text()[:-9], "not JSON"),
    "empty": ("", "not JSON"),
}
METHODS, POINTS = "methods=.*not a list of methods", "measured=.*not a list of measured settings"
# Parts of the plan -> a word of the error.
PLANS = {
    "a list": ([1], "has no format"),
    "nothing": (None, "has no format"),
    "another format": ({**SAVED, "format": 2}, "has format 2, which is not 1"),
    "a hostile format": ({**SAVED, "format": "\x1b[2J"}, r"control character '\\x1b'"),
    "versions of letters": ({**SAVED, "versions": "abc"}, "versions=.*not an object of texts"),
    "versions of pairs": ({**SAVED, "versions": [["a", "b"]]}, "versions=.*not an object of texts"),
    "a version in numbers": ({**SAVED, "versions": {"torch": 2}}, "versions=.*not an object of texts"),
    "no versions": (without("versions"), "has no versions"),
    "no family": (without("family"), "has no family"),
    "a family in numbers": ({**SAVED, "family": 3}, "family=3, which is not a text"),
    "no methods": (without("methods"), "has no methods"),
    "an empty list of methods": ({**SAVED, "methods": []}, METHODS),
    "one method": ({**SAVED, "methods": {"name": "image.ZipAR", "settings": {}}}, METHODS),
    "methods by name": ({**SAVED, "methods": ["image.ZipAR"]}, METHODS),
    "a method without settings": ({**SAVED, "methods": [{"name": "image.ZipAR"}]}, METHODS),
    "a method with a list": (
        {**SAVED, "methods": [{"name": ["x"], "settings": {}}]},
        METHODS,
    ),
    "settings in pairs": (
        {**SAVED, "methods": [{"name": "image.ZipAR", "settings": []}]},
        METHODS,
    ),
    "a curve of something else": ({**SAVED, "measured": [{"x": 1}]}, POINTS),
    "a curve of numbers": ({**SAVED, "measured": [1.5]}, POINTS),
    "a curve that is none": ({**SAVED, "measured": 3}, POINTS),
    "a speed-up in words": ({**SAVED, **measured(speedup="fast")}, POINTS),
    "a speed-up below nothing": ({**SAVED, **measured(speedup=-1)}, POINTS),
    "a quality in words": ({**SAVED, **measured(surprise="good")}, POINTS),
    "a quality that is missing": ({**SAVED, **measured(metric="psnr")}, POINTS),
    "a metric that is a list": ({**SAVED, **measured(metric=["psnr"])}, POINTS),
    "a title that is none": ({**SAVED, **measured(title=3)}, POINTS),
    "a title with escapes": ({**SAVED, **measured(title="\x1b]0;x\x07")}, "control character"),
    "a reason in numbers": ({**SAVED, "why": 3}, "why=3, which is not a text"),
    "a reason with escapes": ({**SAVED, "why": "\x1b[31mred"}, r"control character '\\x1b'"),
    "a reason with lines": ({**SAVED, "why": "good\n  image.ZipAR(window=2): exact"}, r"control character '\\n'"),
    "a reason that runs backwards": ({**SAVED, "why": "\u202ethguor"}, "control character"),
    "half a character": ({**SAVED, "why": "\ud800"}, "control character"),
    "a family with escapes": ({**SAVED, "family": "\x9b2J"}, "control character"),
    "a version with escapes": ({**SAVED, "versions": {"torch\x1b[2J": "2"}}, "control character"),
    "a carriage return": ({**SAVED, "family": "janus\rX"}, "control character"),
}


def refused(read, word):
    with pytest.raises(WeightsError, match=word) as error:
        read()
    said = str(error.value)
    assert foreign_json.UNPRINTABLE.search(said) is None and len(said) < 400
    return said


def test_what_is_tampered_with_below_is_a_good_plan(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(text())
    loaded = Plan.load(path)
    assert loaded.to_dict() == SAVED and "measured image.ZipAR(window=2): 1.50x, nats 0.25" in str(loaded)
    path.write_text(text().ljust(MOST_BYTES))
    assert Plan.load(path) == loaded, "as large as it may be"
    path.write_bytes(text().encode("utf-16"))  # as a shell of Windows writes
    assert Plan.load(path) == loaded


@pytest.mark.parametrize("name", FILES)
def test_files_that_hold_no_plan(name, tmp_path, capsys):
    content, word = FILES[name]
    path = tmp_path / "plan.json"
    path.write_text(content)
    said = refused(lambda: Plan.load(path), word)
    assert str(path) in said and said.endswith("make one with mmaccel.plan(...).save()")


@pytest.mark.parametrize("name", PLANS)
def test_plans_of_the_wrong_shape(name, tmp_path):
    data, word = PLANS[name]
    said = refused(lambda: Plan.from_dict(data), word)
    assert said.endswith("make one with mmaccel.plan(...).save()")
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    assert str(path) in refused(lambda: Plan.load(path), word)


@pytest.mark.parametrize("make", ("folder", "nothing"))
def test_a_path_without_a_file(make, tmp_path):
    path = tmp_path / "plan.json"
    if make == "folder":
        path.mkdir()
    assert str(path) in refused(lambda: Plan.load(path), "cannot read .*directory.*make one with")


def test_no_more_is_read_than_a_plan_can_be():
    refused(lambda: Plan.load("/dev/zero"), "/dev/zero is larger than 1 MiB")


@pytest.mark.parametrize(
    ("part", "change", "error"),
    (
        ("methods", {"settings": {"window": 0}}, SettingError),
        ("methods", {"settings": {"windw": 1}}, UnknownNameError),
        ("methods", {"name": "image.ZipAl"}, UnknownNameError),
        ("measured", {"name": "image.ZipAl"}, UnknownNameError),
        ("measured", {"settings": {"window": 0}}, SettingError),
    ),
)
def test_methods_of_a_file_are_checked_and_the_file_is_named(part, change, error, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(text(**{part: [{**SAVED[part][0], **change}]}))
    with pytest.raises(error, match="plan.json: "):
        Plan.load(path)


def test_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "plan.json"
    contents = [*(content for content, _ in FILES.values()), *(json.dumps(data) for data, _ in PLANS.values())]
    for content in contents:
        path.write_text(content)
        assert cli.main(["run", "image", "red heart", "-o", str(tmp_path / "x.png"), "--plan", str(path)]) == 2
        said = capsys.readouterr()
        assert not said.out and str(path) in said.err and len(said.err.splitlines()) == 1
        assert said.err.isascii() and "\x1b" not in said.err and "Traceback" not in said.err
    assert cli.main(["plan", "--plan", str(tmp_path)]) == 2 and "cannot read" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


STRANGE = (None, True, -1, 0.5, 10**30, float("nan"), float("inf"), "", "auto", "x" * 99, [], [[]], [1, "a"], {"a": 1})


@pytest.mark.parametrize("name", mmaccel.methods())
def test_no_value_of_a_setting_ends_in_a_raw_error(name):
    for field in fields(mmaccel.get_method(name)):
        for value in STRANGE:
            saved = {"name": name, "settings": {field.name: value}}
            try:
                made = Plan.from_dict({**SAVED, "methods": [saved], "measured": []})
            except MmaccelError as error:
                assert len(str(error)) < 600
            else:
                assert str(made) and json.dumps(made.to_dict())


def test_a_number_beyond_floats_is_a_setting_error():
    with pytest.raises(SettingError, match="threshold"):
        mmaccel.video.EasyCache(threshold=10**400)


# Results


def row(**changes):
    values = {"modality": "image", "model": "m", "method": "a", "settings": {}, "exact": False, "speedup": 2.0}
    return {**results.row(**values), **changes}


def result(header=None, **changes):
    made = results.result([row(**changes)])
    return {**made, "header": {**made["header"], **(header or {})}}


RESULTS = {
    "a speed-up in words": (result(speedup="fast"), "row 0 has speedup='fast', which is not a number"),
    "a time that is true": (result(wall_seconds=True), "wall_seconds=True, which is not a number"),
    "settings in a list": (result(settings=[1]), r"settings=\[1\], which is not an object"),
    "a model in numbers": (result(model=3), "model=3, which is not a text"),
    "exact in numbers": (result(exact=1), "exact=1, which is not true or false"),
    "escapes": (result(method="\x1b[31m"), "control character"),
    "a machine in words": (result({"machine": "fast"}), "header has a wrong machine"),
    "a machine without parts": (result({"machine": {}}), "its machine has no system"),
    "versions in words": (result({"versions": "abc"}), "header has a wrong versions"),
    "threads in words": (result({"threads": "2"}), "header has a wrong threads"),
    "a number": (3, "it has no rows"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_of_the_wrong_shape(name, tmp_path, capsys):
    data, word = RESULTS[name]
    good, bad = tmp_path / "good.json", tmp_path / "image.json"
    good.write_text(json.dumps(result()))
    bad.write_text(json.dumps(data))
    assert str(bad) in refused(lambda: results.load(bad), word)
    for words in (["difference", str(good), str(bad)], ["difference", str(bad), str(good)], ["index", str(tmp_path)]):
        assert cli.main(["bench", *words]) == 2
        said = capsys.readouterr()
        assert not said.out and len(said.err.splitlines()) == 1 and said.err.isascii() and str(bad) in said.err


@pytest.mark.parametrize("content", ("[" * 200_000, '{"rows": ' + "9" * 6000 + "}", "| method |"))
def test_results_that_are_none(content, tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text(content)
    refused(lambda: results.load(path), "mmaccel bench image --json > ")
    assert cli.main(["bench", "difference", str(path), str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    refused(lambda: results.load(tmp_path), "cannot read")


def test_rows_of_another_benchmark_have_no_index(tmp_path):
    (tmp_path / "image.json").write_text(json.dumps(result()))
    with pytest.raises(WeightsError, match=r"image.json holds no rows of this benchmark .KeyError.'batch'"):
        bench_index.write(tmp_path, all_benchmarks())
    assert [path.name for path in tmp_path.iterdir()] == ["image.json"]


def test_an_old_speed_up_of_nothing_has_no_share():
    (pair,) = difference(result(speedup=0.0), result()).pairs
    assert pair.speedup_share is None and str(difference(result(speedup=0.0), result()))
