"""The one format of results, several benchmarks in one go, two results beside each other, and the page over all."""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest

from mmaccel import version
from mmaccel.bench import index as bench_index
from mmaccel.bench import pages, plots, resume, selection
from mmaccel.bench.benchmark import Benchmark, Section, by, in_one
from mmaccel.bench.difference import difference
from mmaccel.bench.plots import plot
from mmaccel.cli import bench as bench_commands
from mmaccel.cli import main as cli
from mmaccel.comparison import results
from mmaccel.comparison.quality_plot import Axes, Label, Mark, Series, draw, place
from mmaccel.comparison.ranks import Ranks
from mmaccel.demos.gpu import page as gpu_page
from mmaccel.demos.pages.benchmark_pages import FOLDER, long_page
from mmaccel.errors import SettingError, WeightsError
from mmaccel.image.bench import page as image_page

COMMITTED = sorted(FOLDER.glob("*.json"))


def row(method="a", **more):
    values = {
        "settings": {},
        "exact": False,
        "seeds": [0],
        "wall_seconds": 1.0,
        "baseline_seconds": 2.0,
        "speedup": 2.0,
    }
    return results.row(**{"modality": "image", "model": "m", "method": method, **values, **more})


def result(*rows, **header):
    made = results.result(rows)
    made["header"].update(header)
    return made


def test_new_results_carry_the_commit_and_whether_anything_was_changed(monkeypatch, tmp_path):
    header = results.result([])["header"]
    assert {"commit", "clean"} <= set(header) and (header["commit"] is None) == (header["clean"] is None)
    asked = []
    monkeypatch.setattr(version, "_git", lambda *words, folder: asked.append(words[0]) or ANSWERS[words[0]])
    assert version.commit() == {"commit": "36a45fe0c1d2", "clean": False} and asked == list(ANSWERS)
    made = result(row(), commit="36a45fe0c1d2", clean=False)
    assert "- commit: 36a45fe0c1, with changes that were not committed\n" in pages.page(made, "t", "i", {})
    made["header"]["clean"] = True
    assert "- commit: 36a45fe0c1\n" in pages.page(made, "t", "i", {})
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))  # where there is no git
    assert version.commit() == {"commit": None, "clean": None}


ANSWERS = {"ls-files": "version.py", "rev-parse": "36a45fe0c1d2", "status": " M mmaccel/plan.py"}


def test_what_a_benchmark_writes_is_no_change(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)  # of a hook, which is about another repository
    code, page = tmp_path / "version.py", tmp_path / "results" / "image.unfinished.json"
    code.write_text("one")
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null")
    for words in (("init",), ("add", code.name), (*who, "commit", "-m", "one")):
        version._git(*words, folder=tmp_path)
    monkeypatch.setattr(version, "__file__", str(code))
    page.parent.mkdir()
    page.write_text("{}")
    assert version.commit()["clean"] is True
    code.write_text("changed")
    assert version.commit()["clean"] is False


def written(path, made):
    path.write_text(json.dumps(made))
    return str(path)


# The format


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_results_are_of_the_one_format(path):
    found = results.load(path)
    assert {"mmaccel", "python", "torch"} <= set(found["header"]["versions"]) and found["rows"]
    for each in found["rows"]:
        assert each["speedup"] is None or each["speedup"] > 0
        assert isinstance(each["seeds"], list) and isinstance(each["exact"], bool)
        assert each["quality"] is None or each["quality_metric"], "a figure without a name"


def test_there_is_something_committed():
    assert {"image", "kernels", "language", "speech", "text", "video", "vlm"} <= {path.stem for path in COMMITTED}


@pytest.mark.parametrize(
    "change, hint",
    [
        (lambda r: r.pop("rows"), "no rows"),
        (lambda r: r.pop("header"), "no header"),
        (lambda r: r["header"].pop("threads"), "header has no threads"),
        (lambda r: r["rows"][0].pop("speedup"), "row 0 has no speedup"),
        (lambda r: r["rows"][0].update(model=None), "row 0 leaves model empty"),
        (lambda r: r["rows"].append(3), "row 1 is no object"),
    ],
)
def test_what_is_no_result_is_said(tmp_path, change, hint):
    made = result(row())
    change(made)
    with pytest.raises(WeightsError, match=hint):
        results.load(written(tmp_path / "x.json", made))


def test_a_file_that_is_no_json_is_said(tmp_path):
    (tmp_path / "x.json").write_text("| method |")
    with pytest.raises(WeightsError, match="not JSON"):
        results.load(tmp_path / "x.json")


def test_methods_are_called_as_they_are_typed():
    jacobi = row("image.SpeculativeJacobi", settings={"window": 16, "coupling": "maximal", "init": "uniform"})
    assert results.called(jacobi) == "image.SpeculativeJacobi(window=16)"
    assert results.called(row("EasyCache", modality="video", settings={"threshold": 0.31563})) == (
        "video.EasyCache(threshold=0.316)"
    )
    assert results.called(row("image.Gone", settings={"x": 1})) == "image.Gone(x=1)"
    assert results.called(row("fewer steps", label="20 steps")) == "fewer steps, 20 steps"
    assert results.called(row("plain")) == "plain"


def test_seconds_are_the_processors_where_a_row_has_them():
    assert results.seconds(row()) == (1.0, 2.0)
    assert results.seconds(row(cpu_seconds=0.5, baseline_cpu_seconds=0.7)) == (0.5, 0.7)


# Two results


def test_rows_are_matched_and_compared():
    one = result(row("a", batch=1), row("a", batch=4, speedup=3.0), row("b", quality=0.5))
    two = result(row("a", batch=4, speedup=1.5, wall_seconds=0.5), row("a", batch=1), row("c"))
    found = difference(one, two)
    assert [(p.row["method"], p.row.get("batch")) for p in found.matched] == [("a", 4), ("a", 1)]
    assert [p.speedup_share for p in found.matched] == [0.5, 1.0] and found.matched[0].time_ratio == 0.5
    text = str(found)
    assert "3.00x to 1.50x" in text and "only in the old" in text and "only in the new" in text and not found.warnings
    data = json.loads(json.dumps(found.to_dict()))
    assert [r["in"] for r in data["rows"]] == ["both", "both", "new", "old"]
    assert data["rows"][0]["speedup"] == {"old": 3.0, "new": 1.5} and data["rows"][0]["batch"] == 4
    assert data["rows"][3]["quality"] == {"old": 0.5, "new": None} and data["rows"][0]["same_settings"]
    assert data["same_machine"] and data["warnings"] == [] and data["rows"][0]["time_ratio"] == 0.5
    assert [p.row["batch"] for p in found.fallen(0.9)] == [4] and not found.fallen(0.5)


def test_tuned_settings_match_where_there_is_one_row_of_each():
    one, two = result(row(settings={"t": 0.1}, budget=0.5)), result(row(settings={"t": 0.2}, budget=0.5))
    (pair,) = difference(one, two).pairs
    assert pair.old and pair.new and not pair.same_settings
    several = result(row(settings={"t": 0.3}), row(settings={"t": 0.4}))
    with pytest.raises(SettingError, match="no row in common"):
        difference(result(row(settings={"t": 0.1})), several)


@pytest.mark.parametrize("name", ["machine", "threads", "versions"])
def test_what_differs_between_the_runs_is_said(name):
    one, two = result(row()), result(row())
    if name == "threads":
        two["header"]["threads"] += 1
    else:
        two["header"][name] = {**two["header"][name], next(iter(two["header"][name])): "another"}
    found = difference(one, two)
    assert len(found.warnings) == 1 and ("seconds are not compared" in str(found)) == (name != "versions")
    assert (found.to_dict()["rows"][0]["time_ratio"] is None) == (name != "versions")
    assert found.pairs[0].speedup_share == 1.0


def test_a_speed_up_that_is_gone_has_fallen():
    found = difference(result(row()), result(row(speedup=None)))
    assert len(found.fallen(0.1)) == 1
    with pytest.raises(SettingError, match="nothing can be checked"):
        difference(result(row(speedup=None)), result(row())).fallen(0.9)


def test_difference_on_the_command_line(tmp_path, capsys):
    old = written(tmp_path / "old.json", result(row(speedup=2.0)))
    new = written(tmp_path / "new.json", result(row(speedup=1.5)))
    assert cli.main(["bench", "difference", old, new]) == 0 and "75%" in capsys.readouterr().out
    assert cli.main(["bench", "difference", old, new, "--fail-below", "0.9", "--json"]) == 1
    out = capsys.readouterr()
    assert json.loads(out.out)["rows"][0]["speedup_share"] == 0.75 and "less than 90%" in out.err
    assert cli.main(["bench", "difference", old, new, "--fail-below", "0.7"]) == 0
    assert cli.main(["bench", "difference", old, new, "--fail-below", "nan"]) == 2
    assert cli.main(["bench", "difference", old, str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


# All of them

FAKE = """
import sys, json
kind = sys.argv[sys.argv.index("bench") + 1]
if kind == "speech":
    sys.exit("no microphone")
if kind == "video":
    import os; os.kill(os.getpid(), 9)
rows = json.loads({rows!r})
print(json.dumps(rows))
sys.exit(1 if kind == "vlm" else 0)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """The interpreter that is started: answers at once, fails for speech, is killed for video, and late for vlm."""
    script = tmp_path / "fake.py"
    script.write_text(
        FAKE.format(rows=json.dumps(result(row(batch=1, guidance=3.0, baseline_quality=1.0, quality=1.0))))
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(bench_commands.sys, "executable", str(python))
    monkeypatch.setattr(bench_index, "write", lambda folder, _: [(folder / "index.md").write_text("x")])
    return python


def test_one_crash_loses_nothing(tmp_path, capfd, stand_in):
    folder = tmp_path / "results"
    assert cli.main(["bench", "all", "--json", "--page", str(folder)]) == 2
    out = capfd.readouterr()
    assert len([json.loads(line) for line in out.out.splitlines()]) == 9
    kept = {path.stem for path in folder.glob("*.json")}
    assert kept == {"canvas", "image", "kernels", "language", "pages", "pictures", "text", "unet", "vlm"}, (
        "what came through, and what failed after it had measured"
    )
    assert all(results.load(path)["rows"] for path in folder.glob("*.json")) and (folder / "index.md").is_file()
    assert "speech failed: exit code 1" in out.err and "video failed: exit code -9" in out.err
    last = out.err.strip().splitlines()[-1]
    assert "3 of 11 benchmarks failed" in last and "`mmaccel bench speech`" in last


def test_the_process_of_one_of_them_is_a_real_one(tmp_path):
    path = tmp_path / "one.json"
    path.write_text(json.dumps(result(row(batch=1, guidance=3.0))))
    found, reason = bench_commands._in_a_process(["bench", "difference", str(path), str(path), "--json"])
    assert reason == "" and found["rows"]


def test_a_short_run_without_quality_has_an_index_and_no_plot(tmp_path):
    (tmp_path / "image.json").write_text(json.dumps(result(row(batch=1, guidance=3.0))))
    assert bench_index.write(tmp_path, bench_commands.all_benchmarks()) == [tmp_path / "index.md"]
    text = (tmp_path / "index.md").read_text()
    assert "not judged" in text and "scripts of their own" not in text and not list(tmp_path.glob("*.png"))


def test_all_passes_its_options_on():
    arguments = argparse.Namespace(full=True, threads=1, page=Path("results"))
    words = list(bench_commands._words("vlm", arguments))
    parsed = cli.build_parser().parse_args(words)
    assert (parsed.kind, parsed.full, parsed.threads, parsed.json) == ("vlm", True, 1, True)
    assert parsed.page == Path("results/vlm.md")


# The page over all


def test_the_committed_page_is_that_of_the_committed_rows():
    found = bench_index.read(FOLDER, bench_commands.all_benchmarks())
    text = bench_index.page(found, bench_index.longer(FOLDER))
    assert (FOLDER / "index.md").read_text() == text, "run `mmaccel bench index`"
    for name in [benchmark.name for benchmark, _ in found]:
        assert f"({name}.md)" in text and (FOLDER / f"{name}.md").is_file()
    pictures = [line.split("](")[1].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert len(pictures) >= 4 and all((FOLDER / picture).is_file() for picture in pictures)


@pytest.mark.parametrize("name", bench_commands.benchmarks())
def test_every_committed_page_is_that_of_its_rows(name):
    made = bench_commands.benchmark_of(name).page(results.load(FOLDER / f"{name}.json"), f"{name}.json", f"{name}.png")
    assert (FOLDER / f"{name}.md").read_text() == made, "run `python -m mmaccel.demos.pages.benchmark_pages`"


@pytest.mark.parametrize("rows", sorted((FOLDER / "long").glob("*.json")), ids=lambda rows: rows.stem)
def test_every_committed_page_of_hours_is_that_of_its_rows(rows):
    path = rows.with_suffix(".md")
    assert path.read_text() == long_page(path), "run `python -m mmaccel.demos.pages.benchmark_pages`"


@pytest.mark.parametrize("name, other", (("commit", "0" * 40), ("machine", {"accelerator": "none"})))
def test_results_of_two_machines_or_commits_are_not_joined(tmp_path, name, other):
    path = FOLDER / "long" / "gpu.json"
    found = json.loads(path.read_text())
    assert gpu_page.joined([path])["rows"] == found["rows"]
    changed = found["header"][name] | other if name == "machine" else other
    (tmp_path / "b.json").write_text(json.dumps({**found, "header": {**found["header"], name: changed}}))
    with pytest.raises(WeightsError, match=f"b.json is of another {name} than .*gpu.json"):
        gpu_page.joined([path, tmp_path / "b.json"])


def test_every_page_is_compared():
    assert {path.stem for path in FOLDER.glob("*.md")} == {*bench_commands.benchmarks(), "index"}
    further = [path for path in FOLDER.rglob("*.md") if path.parent != FOLDER]
    assert {path.parent for path in further} == {FOLDER / "long"}
    assert all(path.with_suffix(".json").is_file() for path in further)


def test_what_batches_gain_is_taken_from_the_rows():
    def batched(method, window, speedup, batch=4, guidance=3.0, exact=True):
        settings = {"window": window} if method.endswith("Jacobi") else {}
        more = {"batch": batch, "guidance": guidance, "exact": exact}
        return row(f"image.{method}", settings=settings, speedup=speedup, **more)

    rows = [batched("SpeculativeJacobi", 8, 1.5), batched("SpeculativeJacobi", "auto", 1.1)]
    others = [batched("ZipAR", 0, 9.0, exact=False), batched("SpeculativeJacobi", 8, 9.0, batch=1)]
    told = "`SpeculativeJacobi(window=8)` makes 4 guided pictures 1.50x as fast"
    assert image_page.facts([*rows, *others])["batches"] == f': {told}, `window="auto"` 1.10x'
    assert (
        "`SpeculativeJacobi(window=64)` 0.50x"
        in image_page.facts([*rows, batched("SpeculativeJacobi", 64, 0.5)])["batches"]
    )
    assert image_page.facts(others[1:]) == {"batches": ""}


BENCHMARK = bench_commands.benchmark_of("vlm")
SECTION = BENCHMARK.section


def questions(method, speedup, quality, **more):
    more = {
        "modality": "vlm",
        "table": "slow",
        "share": 0.1,
        "baseline_quality": 0.9,
        "quality_metric": "right",
        **more,
    }
    return row(method, speedup=speedup, quality=quality, **more)


def shown(*rows):
    return [r["method"] for r, _ in selection.select(SECTION, list(rows))]


def test_rows_that_another_beats_are_left_out():
    best, fast, worse = questions("best", 2.0, 0.9), questions("fast", 3.0, 0.7), questions("worse", 1.9, 0.8)
    assert shown(worse, fast, best) == ["best", "fast"]
    assert shown(best, questions("as fast", 2.05, 0.8)) == ["best"], "3 % of time are noise"
    assert shown(best, questions("slower than plain", 0.9, 0.95)) == ["best"]
    assert shown(best, questions("neutral", 3.0, 0.9, exact=True, work_ratio=1.0)) == ["best"]
    assert shown(best, questions("fewer frames", 9.0, 0.1)) == ["best", "fewer frames"], "always there"


def test_a_folder_without_results_is_said(tmp_path, capsys):
    assert cli.main(["bench", "index", str(tmp_path)]) == 2
    assert "mmaccel bench all" in capsys.readouterr().err and not list(tmp_path.iterdir())


# Stopped, and going on


HEADER = {"clean": True, "commit": "36a45fe0c1d2"}


def stopped(path, monkeypatch, **header):
    """A benchmark of three parts whose third is interrupted, and what it had measured."""
    monkeypatch.setattr(results, "commit", lambda: {**HEADER, **header})
    made = []

    def part(name, fails=False):
        def make():
            made.append(name)
            if fails and made.count(name) == 1:
                raise KeyboardInterrupt
            return [row(name)]

        return make

    parts = {"a": part("a"), "b": part("b"), "c": part("c", fails=True)}
    benchmark = dataclasses.replace(BENCHMARK, parts=lambda full: parts)
    with pytest.raises(KeyboardInterrupt):
        resume.measure(benchmark, True, path)
    return benchmark, made


def test_a_benchmark_that_was_stopped_goes_on(tmp_path, monkeypatch, capsys):
    benchmark, made = stopped(tmp_path / "x.md", monkeypatch)
    found, kept = resume.measure(benchmark, True, tmp_path / "x.md")
    assert made == ["a", "b", "c", "c"] and [r["method"] for r in found["rows"]] == ["a", "b", "c"]
    assert not results.faults(found) and "2 parts" in capsys.readouterr().err
    kept.remove()
    assert not list(tmp_path.iterdir())
    resume.measure(benchmark, True, None)
    assert made[4:] == ["a", "b", "c"] and not list(tmp_path.iterdir()), "without a page nothing is kept"


def test_every_process_goes_on_after_the_parts_that_the_first_has_read():
    class Second(Ranks):
        """Of two, beside a first one that has read part `a`, and then makes `b`."""

        told = [[{"a": [row("a")]}], [[row("b")]]]  # noqa: RUF012

        def gathered(self, make):
            return [self.told.pop(0), make()]

    parts = {name: lambda name=name: [row(name)] for name in "abc"}
    benchmark = dataclasses.replace(BENCHMARK, parts=lambda full: parts)
    found, _ = resume.measure(benchmark, True, None, Second(1, 2))
    assert [each["method"] for each in found["rows"]] == ["a", "b", "c"]


@pytest.mark.parametrize("change", ({"commit": "another"}, {"clean": False}))
def test_rows_of_another_commit_are_never_mixed_in(tmp_path, monkeypatch, capsys, change):
    benchmark, made = stopped(tmp_path / "x.md", monkeypatch)
    monkeypatch.setattr(results, "commit", lambda: {**HEADER, **change})
    found, _ = resume.measure(benchmark, True, tmp_path / "x.md")
    assert made == ["a", "b", "c", "a", "b", "c"] and found["header"]["commit"] == {**HEADER, **change}["commit"]
    assert "not used" in capsys.readouterr().err


def test_rows_of_another_machine_or_of_changes_nobody_knows_are_never_mixed_in(tmp_path, monkeypatch):
    benchmark, made = stopped(tmp_path / "x.md", monkeypatch)
    monkeypatch.setattr(results, "machine", lambda: {**dict.fromkeys(results.MACHINE, "another")})
    resume.measure(benchmark, True, tmp_path / "x.md")
    resume.measure(benchmark, False, tmp_path / "x.md")
    assert made[3:] == ["a", "b", "c"] * 2, "nor those of a short run"
    (tmp_path / "x.unfinished.json").write_text("{")
    resume.measure(benchmark, False, tmp_path / "x.md")
    assert made[9:] == ["a", "b", "c"], "nor what is damaged"
    (tmp_path / "x.unfinished.json").write_text(json.dumps({"header": results.result([])["header"], "full": False}))
    resume.measure(benchmark, False, tmp_path / "x.md")
    assert made[12:] == ["a", "b", "c"], "nor what has no parts"
    monkeypatch.setattr("torch.get_num_threads", lambda: 99)
    resume.measure(benchmark, False, tmp_path / "x.md")
    assert made[15:] == ["a", "b", "c"], "nor those of another number of threads"
    benchmark, made = stopped(tmp_path / "y.md", monkeypatch, clean=False)
    resume.measure(benchmark, True, tmp_path / "y.md")
    assert made == ["a", "b", "c"] * 2


def test_all_goes_on_after_the_benchmarks_that_are_measured(tmp_path, monkeypatch, capfd, stand_in):
    monkeypatch.setattr(results, "commit", lambda: HEADER)
    ran, once = [], bench_commands._in_a_process

    def stop(words):
        ran.append(words[1])
        if words[1] == "kernels" and ran.count("kernels") == 1:
            raise KeyboardInterrupt
        return once(words)

    monkeypatch.setattr(bench_commands, "_in_a_process", stop)
    command = ["bench", "all", "--page", str(tmp_path)]
    with contextlib.suppress(KeyboardInterrupt):
        cli.main(command)
    before = len(ran)
    (tmp_path / "canvas.json").unlink()
    capfd.readouterr()
    cli.main(command)
    assert "canvas" in ran[before:], "whose rows somebody deleted"
    assert "image\n| method |" in capfd.readouterr().out, "what was measured before is told with the rest"
    assert ran[before - 1] == "kernels" and "image" not in ran[before:] and "kernels" in ran[before:]
    assert "speech" in ran[before:], "which failed"
    assert not list(tmp_path.glob("*.unfinished.json"))


def test_all_begins_anew_with_another_number_of_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "commit", lambda: HEADER)
    monkeypatch.setattr(bench_index, "write", lambda *_: [])
    ran = []

    def once(words):
        ran.append(words[1])
        if words[1] == "kernels" and "--threads" not in words:
            raise KeyboardInterrupt
        return result(row()), ""

    monkeypatch.setattr(bench_commands, "_in_a_process", once)
    command = ["bench", "all", "--page", str(tmp_path)]
    with contextlib.suppress(KeyboardInterrupt):
        cli.main(command)
    begun = list(ran)
    assert cli.main([*command, "--threads", "1"]) == 0 and ran == begun * 2


@pytest.fixture
def quick(monkeypatch):
    """`mmaccel bench image` makes one row, and a library prints meanwhile; yields the threads that were asked for."""
    threads = []

    def rows(full):
        print("a library says hello")  # noqa: T201
        yield row("full" if full else "short")

    made = dataclasses.replace(BENCHMARK, name="image", parts=in_one(rows), threads=3)
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    monkeypatch.setattr(bench_commands, "benchmark_of", lambda name: made)
    return threads


def test_what_a_library_prints_is_no_part_of_a_result(quick, capsys):
    assert cli.main(["bench", "image", "--json", "--full"]) == 0
    out = capsys.readouterr()
    assert [r["method"] for r in json.loads(out.out)["rows"]] == ["full"] and "hello" in out.err
    assert cli.main(["bench", "image", "--threads", "1"]) == 0 and quick == [3, 1]
    assert capsys.readouterr().out.startswith("| method |")


def test_a_page_that_cannot_be_written_loses_no_figure(quick, tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise OSError("no ink")

    words = ["bench", "image", "--json", "--page", str(tmp_path / "x.md")]
    monkeypatch.setattr(Benchmark, "write_page", fail)
    assert cli.main(words) == 2
    out = capsys.readouterr()
    assert json.loads(out.out)["rows"] and "no ink" in out.err
    assert [path.name for path in tmp_path.iterdir()] == ["x.unfinished.json"]
    monkeypatch.setattr(Benchmark, "write_page", lambda _, result, path: path.write_text(result["rows"][0]["method"]))
    assert cli.main(words) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"x.md", "x.json"}
    assert (tmp_path / "x.md").read_text() == "short", "it went on with what was measured"
    assert json.loads((tmp_path / "x.json").read_text()) == json.loads(capsys.readouterr().out)


def test_a_page_that_cannot_be_written_is_refused_before_the_work(quick, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    for page, said in (("x.json", "is no Markdown: name a file such as"), ("x", "/x.md"), ("file/x.md", "File exists")):
        assert cli.main(["bench", "image", "--page", str(tmp_path / page)]) == 2
        assert said in capsys.readouterr().err and not quick


# Plots


def test_labels_do_not_hide_each_other(tmp_path):
    crowd = [
        Series(f"method number {i}", (Mark(0.5 + i / 200, 0.9 - i / 300), Mark(0.52, 0.8 - i / 200))) for i in range(9)
    ]
    lines = [*crowd, Series("fewer frames", (Mark(0.1, 0.9),), "simple")]
    figure = draw(lines, Axes("title", "quality", plain=0.9), tmp_path / "x.png")
    axes = figure.axes[0]
    texts = [text for text in axes.texts if text.get_text()]
    assert {text.get_text() for text in texts} == {line.label for line in lines} | {"plain"}
    boxes = [text.get_window_extent(figure.canvas.get_renderer()) for text in texts]
    apart = [a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 or b.y1 <= a.y0 for a in boxes for b in boxes if a is not b]
    assert all(apart) and (tmp_path / "x.png").stat().st_size > 5000
    assert any(line.get_linestyle() == "--" for line in axes.lines), "the simple alternative"


def test_a_label_that_has_no_room_goes_over_marks_and_not_over_labels(tmp_path):
    figure = draw([], Axes("t", "q", plain=0.5), tmp_path / "x.png")
    same = [Label(f"label {i}", [(0.5, 0.5)], "black") for i in range(5)]
    boxes = place(figure.axes[0], same)
    assert len(set(boxes)) == 5


def test_a_benchmark_is_drawn(tmp_path):
    rows = [questions("plain", 1.0, 0.9, share=1.0), questions("vlm.HoliTom", 2.0, 0.8, settings={"keep": 0.1})]
    figure = plot(BENCHMARK, result(*rows, questions("fewer frames", 3.0, 0.7)), tmp_path / "x.png")
    assert {"HoliTom", "fewer frames", "plain"} == {t.get_text() for t in figure.axes[0].texts}


def test_what_is_drawn_of_a_benchmark(monkeypatch):
    """Tables, kinds of lines, their names and marks, and what the picture is told of the axes."""
    monkeypatch.setattr(plots, "draw", lambda lines, around, path: (lines, around, path))
    rows = [
        questions("plain", 1.0, 0.9),
        questions("vlm.A", 2.0, 0.8),
        questions("vlm.A", 4.0, 0.7, exact=True),
        questions("vlm.B", 1.25, 0.95, exact=True, share=0.5),
        questions("fewer frames", 5.0, 0.5),
        questions("theirs", 2.5, 0.6, kind="rival"),
        questions("untimed", None, 0.99),
    ]
    section = Section(lambda rows: by("share", "{}", rows), "none.", plot="p", quality="q", form=".1%")
    benchmark = dataclasses.replace(BENCHMARK, section=section, title="Questions")

    def drawn(*rows, **changes):
        changed = dataclasses.replace(benchmark, section=dataclasses.replace(section, **changes))
        return plot(changed, result(*rows), "x.png")

    lines, around, path = drawn(*rows)
    assert path == "x.png" and around == Axes("Questions on m", "q", True, plain=0.9, is_share=True)
    assert [(line.label, line.kind) for line in lines] == [
        ("A", "method"),
        ("fewer frames", "simple"),
        ("theirs", "other"),
        ("B (exact)", "method"),
    ]
    assert lines[0].marks == (Mark(0.5, 0.8), Mark(0.25, 0.7)) and lines[3].marks == (Mark(0.8, 0.95),)
    assert [line.label for line in drawn(*rows, one_group=True)[0]] == ["A", "fewer frames", "theirs"]
    assert [line.marks for line in drawn(*rows, draws_exact=False)[0]][0] == (Mark(0.5, 0.8),)
    assert drawn(*rows, higher_is_better=False, form=".3g")[1] == Axes("Questions on m", "q", False, plain=0.9)
    judged = [questions(r["method"], r["speedup"], r["quality"], baseline_quality=None) for r in rows[1:2]]
    lines, around, _ = drawn(*judged, questions("vlm.C", 2.0, None, exact=True, baseline_quality=None))
    assert [line.label for line in lines] == ["A"] and around.plain is None
    lines = drawn(*rows[:2], questions("vlm.C", 2.0, None, exact=True), questions("vlm.D", 1.5, None, exact=True))[0]
    assert [(line.label, line.marks) for line in lines[1:]] == [("C (exact)", (Mark(0.5, 0.9),))], "the fastest"


def test_parts_of_a_method_are_drawn_only_where_they_are_worth_having(monkeypatch):
    monkeypatch.setattr(plots, "draw", lambda lines, around, path: [line.label for line in lines])
    best, worse = questions("vlm.A", 2.0, 0.9), questions("vlm.B", 1.5, 0.8, kind="part")
    section = dataclasses.replace(SECTION, series=lambda row: row["method"])
    benchmark = dataclasses.replace(BENCHMARK, section=section)
    assert plot(benchmark, result(best, worse), "") == ["A"]
    assert plot(benchmark, result(best, {**worse, "speedup": 3.0}), "") == ["A", "B"]
    own = dataclasses.replace(section, picture=lambda rows: ([Series(r["method"], ()) for r in rows], Axes("t", "q")))
    assert plot(dataclasses.replace(benchmark, section=own), result(best, worse), "") == ["vlm.A", "vlm.B"]


def test_a_picture_shows_goals_worst_seeds_and_which_way_is_up(tmp_path):
    lines = [
        Series("m", (Mark(0.5, 0.9, worst=0.7), Mark(0.4, 0.8, label="here"))),
        Series("o", (Mark(0.3, 0.6),), "other"),
    ]
    axes = draw(lines, Axes("t", "q", plain=1.0, target=0.45, floor=0.75), tmp_path / "x.png").axes[0]
    assert [t.get_text() for t in axes.texts] == ["here", "m", "o", "plain", "asked for", "asked for"]
    method, worst, other, *_ = axes.lines
    assert list(method.get_xdata()) == [0.4, 0.5], "as the settings go, not as they came"
    assert list(worst.get_ydata()) == [0.9, 0.7] and worst.get_color() == method.get_color()
    assert (other.get_color(), other.get_linestyle()) == ("#888888", "-") != (method.get_color(), "-")
    dotted = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert [line.get_xdata()[0] for line in dotted][0] == 0.45 and dotted[1].get_ydata()[0] == 0.75
    low, high = axes.get_ylim()
    assert low < 0.6 and high > 1.0 and axes.get_xlim() == (0, 1.08)
    assert (axes.get_title(), axes.get_ylabel()) == ("t", "q")
    assert axes.xaxis.get_major_formatter()(0.5) == "50%" and axes.yaxis.get_major_formatter()(0.5) != "50%"
    around = Axes("t", "q", higher_is_better=False, plain_time=2.0, plain_label="offline", time="s", is_share=True)
    axes = draw(lines[:1], around, tmp_path / "x.png").axes[0]
    low, high = axes.get_ylim()
    assert low > 0.9 > 0.7 > high and axes.get_xlabel() == "s"
    assert axes.yaxis.get_major_formatter()(0.5) == "50%" and axes.xaxis.get_major_formatter()(0.5) != "50%"
    assert axes.texts[-1].get_text() == "offline: the reference for the others"
    assert list(axes.lines[-1].get_xdata()) == [2.0] and list(axes.lines[-1].get_ydata()) == [high]


def test_of_many_methods_those_of_the_index_are_named(monkeypatch):
    monkeypatch.setattr(plots, "draw", lambda lines, around, path: [(line.label, line.kind) for line in lines])
    benchmark = dataclasses.replace(BENCHMARK, section=dataclasses.replace(SECTION, series=lambda row: row["method"]))
    rows = [questions("vlm.Best", 3.0, 0.9), *(questions(f"vlm.M{n}", 2.0, 0.8) for n in range(plots.MOST_LABELS - 1))]
    assert plot(benchmark, result(*rows), "")[1] == ("M0", "method")
    lines = plot(benchmark, result(*rows, questions("fewer frames", 4.0, 0.5)), "")
    assert lines == [("Best", "method"), *[("", "other")] * (plots.MOST_LABELS - 1), ("fewer frames", "simple")]


@pytest.mark.parametrize(("fastest", "scale", "begin"), ((0.09, "linear", 0), (0.04, "log", 0.04 / 1.6)))
def test_times_far_apart_are_drawn_in_equal_ratios(tmp_path, fastest, scale, begin):
    lines = [Series("m", (Mark(fastest, 0.9), Mark(0.4, 0.8)))]
    axes = draw(lines, Axes("t", "q", plain=1.0), tmp_path / "x.png").axes[0]
    assert axes.get_xscale() == scale and axes.get_xlim()[0] == pytest.approx(begin)
    assert axes.xaxis.get_major_formatter()(0.5) == "50%"
