"""The command line as a user types it."""

import json
import subprocess
import sys

import pytest
from PIL import Image

import mmaccel
from mmaccel import cli


def run(capsys, *words):
    code = cli.main(words)
    return code, capsys.readouterr()


def test_env_and_methods(capsys):
    code, out = run(capsys, "env")
    assert code == 0 and "torch" in out.out and "cores" in out.out
    code, out = run(capsys, "methods", "--modality", "image")
    assert code == 0 and "image.ZipAR" in out.out and "lossy" in out.out


def test_python_runs_the_package():
    done = subprocess.run([sys.executable, "-m", "mmaccel", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == mmaccel.__version__


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", "image", "--help"])
    assert stop.value.code == 0 and "mmaccel run image" in capsys.readouterr().out


def test_picture_and_plan(tmp_path, capsys):
    plan = tmp_path / "plan.json"
    code, out = run(capsys, "plan", "--method", "ZipAR:window=2", "-o", str(plan))
    assert code == 0 and json.loads(plan.read_text())["methods"][0]["settings"]["window"] == 2
    target = tmp_path / "heart.png"
    code, out = run(capsys, "run", "image", "red heart", "-o", str(target), "--plan", str(plan), "--seed", "3")
    assert code == 0 and "fewer" in out.out
    first = Image.open(target)
    assert first.size == (256, 256)
    again = tmp_path / "again.png"
    run(capsys, "run", "image", "red heart", "-o", str(again), "--plan", str(plan), "--seed", "3")
    assert again.read_bytes() == target.read_bytes(), "the seed does not repeat the picture"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.png", "heart.png", "plan.json"]


def test_compare_puts_two_side_by_side(tmp_path, capsys):
    target = tmp_path / "two.webp"
    code, out = run(capsys, "run", "image", "pizza", "-o", str(target), "--compare", "--preset", "fast")
    assert code == 0 and "speed-up" in out.out and "both measured" in out.out
    width, height = Image.open(target).size
    assert width > 2 * 256 and height > 256


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["spaceship", "-o", "{}/x.png"], "near words"),
        (["", "-o", "{}/x.png"], "empty"),
        (["pizza", "-o", "{}/x.gif"], ".png"),
        (["pizza", "-o", "{}/no/x.png"], "no folder"),
        (["pizza", "-o", "{}"], "end the name"),
        (["pizza", "-o", "{}/x.png", "--method", "ZipAR:window=0"], "window"),
        (["pizza", "-o", "{}/x.png", "--method", "ZipAR:window=99"], "16 columns"),
        (["pizza", "-o", "{}/x.png", "--method", "SpeculativeJacobi:window=999"], "256 tokens"),
        (["pizza", "-o", "{}/x.png", "--method", "ZipAR:widow=4"], "did you mean 'window'"),
        (["pizza", "-o", "{}/x.png", "--method", "ZipAR:window"], "KEY=VALUE"),
        (["pizza", "-o", "{}/x.png", "--method", "ZipRA"], "ZipAR"),
        (["pizza", "-o", "{}/x.png", "--preset", "fest"], "fast"),
        (["pizza", "-o", "{}/x.png", "--model", "/nowhere"], "no model"),
        (["pizza", "-o", "{}/x.png", "--plan", "{}/none.json"], "none.json"),
        (["pizza", "-o", "{}/x.png", "--count", "0"], "at least 1"),
        (["pizza", "-o", "{}/x.png", "--temperature", "0"], "temperature"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, capsys, words, hint):
    code, out = run(capsys, "run", "image", *(word.format(tmp_path) for word in words))
    assert code == 2
    assert hint in out.err and len(out.err.strip().splitlines()) == 1, out.err
    assert list(tmp_path.iterdir()) == [], "a file was left behind"


def test_truncated_weights_from_a_folder(tmp_path, capsys):
    import shutil

    from mmaccel import zoo

    folder = tmp_path / "model"
    shutil.copytree(zoo.path("tiny-janus"), folder)
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    code, out = run(capsys, "run", "image", "pizza", "-o", str(tmp_path / "x.png"), "--model", str(folder))
    assert code == 2 and "damaged" in out.err


def test_bench_is_json_in_the_one_format(capsys, monkeypatch):
    from mmaccel import bench
    from mmaccel.image import SpeculativeJacobi, ZipAR, benchmark

    methods = (SpeculativeJacobi(window=8), ZipAR(window=4))
    monkeypatch.setattr(benchmark, "groups", lambda full: [benchmark.Group(1, 3.0, 1, methods)])
    code, out = run(capsys, "bench", "image", "--json", "--threads", "1")
    assert code == 0
    result = json.loads(out.out)
    assert set(result) == {"header", "rows"} and {"versions", "machine", "threads", "date"} <= set(result["header"])
    assert len(result["rows"]) == 2
    for row in result["rows"]:
        assert set(bench.COLUMNS) <= set(row) and row["wall_seconds"] > 0 and 0 < row["work_ratio"] <= 1
    assert "ZipAR" in bench.table(result)
