"""Which rows the index shows, and how a result stands in a page and on a terminal."""

import dataclasses
import json

import pytest
from reader import ROOT

from mmaccel.bench import pages, selection
from mmaccel.bench.benchmark import Benchmark, Section, by, in_one
from mmaccel.bench.resume import Unfinished, measure
from mmaccel.comparison.results import result
from mmaccel.comparison.results import row as full_row
from mmaccel.demos.pages import other_processor
from mmaccel.errors import SettingError, WeightsError

MIXED = Section(lambda rows: {"": rows}, "none", is_mixed=True)
PLAIN = Section(lambda rows: {"": rows}, "none")
LOWER = Section(lambda rows: {"": rows}, "none", higher_is_better=False)


def row(method="a", speedup=2.0, quality=0.5, **more):
    found = {"modality": "x", "model": "m", "settings": {}, "exact": False, "work_ratio": 0.5, "wall_seconds": 1.0}
    return full_row(**{**found, "method": method, "speedup": speedup, "quality": quality, **more})


def shown(section, *rows):
    return [(each["method"], role) for each, role in selection.select(section, list(rows))]


@pytest.mark.parametrize(
    ("method", "more", "role"),
    (
        ("plain", {}, "plain"),
        ("offline", {}, "plain"),
        ("a", {}, "method"),
        ("a", {"kind": "simple"}, "simple"),
        ("fewer frames", {}, "simple"),
        ("fewer steps", {}, "simple"),
        ("fixed chunks", {}, "simple"),
        ("a", {"kind": "rival"}, "other"),
        ("moonshine-voice 1.0", {}, "other"),
    ),
)
def test_what_a_row_is(method, more, role):
    assert selection.role_of(row(method, **more)) == role


def test_ours_come_by_speed_the_exact_ones_last_then_the_best_of_others_then_the_simple_ones():
    exact, slow = row("exact", 1.5, 0.9, exact=True, baseline_quality=0.9), row("slow", 2.0, 0.8)
    fast, simple = row("fast", 3.0, 0.6), row("fewer steps", 2.0, 0.1)
    rivals = row("better", 2.0, 0.7, kind="rival"), row("worse", 2.0, 0.6, kind="rival")
    found = shown(PLAIN, simple, fast, *rivals, exact, row("plain", 1.0), slow)
    assert found == [
        ("exact", "method"),
        ("slow", "method"),
        ("fast", "method"),
        ("better", "other"),
        ("fewer steps", "simple"),
    ]


def test_only_rows_that_save_work_and_time_and_keep_to_the_time_they_were_tuned_to_are_shown():
    good = row("good", 2.0, 0.9)
    for useless in (
        row("no faster", 1.0, 0.95),
        row("neutral", 3.0, 0.95, work_ratio=1.0),
        row("not measured", None, 0.95),
        row("late", 3.0, 0.95, wall_share=0.58, budget=0.5),
        row("worse", 2.0, 0.8),
        row("as good, slower", 1.9, 0.9),
    ):
        assert shown(PLAIN, useless, good) == [("good", "method")]
    assert len(shown(PLAIN, row("in time", 3.0, 0.8, wall_share=0.575, budget=0.5), good)) == 2
    assert len(shown(PLAIN, row("work unknown", 3.0, 0.8, work_ratio=None), good)) == 2
    assert len(shown(PLAIN, row("better", 1.9, 0.95), good)) == 2, "3 % of time are noise, 5 % are not"
    assert shown(PLAIN, row("better", 1.95, 0.95), good) == [("better", "method")]
    assert len(shown(PLAIN, row("ours", 1.9, 0.1, kind="ours"), good)) == 2, "as it comes"
    assert len(shown(MIXED, row("worse", 1.9, 0.1), good)) == 2, "they measure different things"
    assert len(shown(PLAIN, *(row(name, 2.0, None) for name in "ab"))) == 2, "nothing was judged"
    assert shown(LOWER, row("high", 2.0, 0.9), row("low", 2.0, 0.5)) == [("low", "method")]


def test_an_exact_row_has_the_quality_of_the_plain_run():
    group = [row("plain", 1.0, None), row("a", baseline_quality=0.8)]
    assert selection.score(PLAIN, row(exact=True, quality=0.1), group) == 0.8
    assert selection.score(PLAIN, row(exact=True, quality=0.1), []) == 0.1
    assert (
        selection.score(LOWER, row(quality=0.1), group) == -0.1
        and selection.score(LOWER, row(quality=None), []) is None
    )


def test_a_lossy_row_does_not_make_an_exact_one_pointless():
    exact = row("exact", 2.0, None, exact=True, baseline_quality=0.8)
    lucky, faster = row("lucky", 2.1, 0.9), row("faster", 3.0, None, exact=True)
    assert shown(PLAIN, exact, lucky) == [("exact", "method"), ("lucky", "method")]
    assert shown(PLAIN, exact, lucky, faster) == [("faster", "method"), ("lucky", "method")]


def test_a_result_as_a_table():
    rows = [
        row("a", 2.0, 0.12345, baseline_quality=0.5, exact=True),
        row("b", None, None, work_ratio=None, wall_seconds=None, settings={"k": 1}),
    ]
    assert pages.table({"rows": rows}).splitlines()[2:] == [
        "| a | yes | 1.00 | 2.00x | 2.00x fewer | 0.123 (plain 0.5) |",
        "| b(k=1) | no |  |  |  |  |",
    ]
    grouped = by("method", "of {}", [rows[1], rows[0], rows[1]])
    assert list(grouped) == ["of b", "of a"] and len(grouped["of b"]) == 2


HEADER = {
    "versions": {"torch": "2", "numpy": "1"},
    "commit": "36a45fe0c1d2",
    "clean": True,
    "machine": {"system": "Linux", "processor": "CPU", "cores": "2", "accelerator": "none"},
    "threads": 1,
    "date": "2026-11-22T08:00:00+00:00",
}


def test_a_page_has_its_texts_with_figures_and_its_plot_beside_it(tmp_path):
    drawn = []
    made = Benchmark(
        "x",
        "Title",
        parts=None,
        section=PLAIN,
        intro="See {json} and {png}, on {place}: {count}.",
        tables=lambda rows: {"One": f"{len(rows)} rows"},
        limits=" {count} limits ",
        facts=lambda rows: {"count": 7},
        plot=lambda rows, path: drawn.append((rows, path)),
    )
    made.write_page({"header": HEADER, "rows": [1, 2]}, tmp_path / "new" / "y.md")
    assert drawn == [([1, 2], tmp_path / "new" / "y.png")]
    assert (tmp_path / "new" / "y.md").read_text().split("\n\n") == [
        "# Title",
        "See y.json and y.png, on CPU, 1 thread, 2026-11-22: 7.",
        "- versions: torch 2, numpy 1\n- commit: 36a45fe0c1\n"
        "- machine: Linux, CPU, 1 thread of 2 cores, no accelerator\n"
        "- date: 2026-11-22T08:00:00+00:00",
        "## One",
        "2 rows",
        "## What limits each",
        "7 limits\n",
    ]


def test_a_page_without_a_plot_of_its_own_shows_quality_against_time(tmp_path):
    section = dataclasses.replace(PLAIN, plot="points against time", quality="points")
    made = Benchmark("x", "T", None, section, "Read.\n\n{plot}", lambda rows: {}, "")
    made.write_page({"header": HEADER, "rows": [row("plain", 1.0), row("a")]}, tmp_path / "y.md")
    assert "![points against time](y.png)" in (tmp_path / "y.md").read_text()
    assert (tmp_path / "y.png").stat().st_size > 5000
    made.write_page({"header": HEADER, "rows": [row("a", quality=None)]}, tmp_path / "short.md")
    assert "png" not in (tmp_path / "short.md").read_text() and not (tmp_path / "short.png").exists()


def test_a_script_that_measures_is_told_its_options_and_on_how_many_threads_to_compute(monkeypatch, tmp_path):
    threads = []
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    for words in ([], ["--threads", "3", "--most-rounds", "5"]):
        monkeypatch.setattr("sys.argv", ["script", "--output", str(tmp_path / "new" / "x"), *words])
        pages.run("about", str, lambda most_rounds: {"rounds": most_rounds}, most_rounds={"type": int, "default": 2})
        assert (tmp_path / "new" / "x.md").read_text() == str({"rounds": 5 if words else 2})
    assert threads == [1, 3]


def test_a_script_whose_processes_have_one_thread_each_is_asked_for_no_others(monkeypatch, tmp_path, capsys):
    threads = []
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    words = ["script", "--output", str(tmp_path / "x")]
    monkeypatch.setattr("sys.argv", words)
    pages.run("about", str, dict, threads=False)
    assert threads == [1], "as its page says"
    monkeypatch.setattr("sys.argv", [*words, "--threads", "3"])
    with pytest.raises(SystemExit):
        pages.run("about", str, dict, threads=False)
    assert "unrecognized arguments: --threads 3" in capsys.readouterr().err


def test_the_picture_of_a_result_is_drawn_beside_its_page(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    monkeypatch.setattr("sys.argv", ["script", "--output", str(tmp_path / "new" / "x")])
    pages.run("about", str, lambda: {"rows": 2}, lambda result, path: path.write_text(f"drawn of {result}"))
    assert (tmp_path / "new" / "x.png").read_text() == "drawn of {'rows': 2}"


def test_every_result_of_a_script_that_measures_is_written(monkeypatch, tmp_path):
    def measure():
        for count in (1, 2):
            yield {"rows": [{}] * count}
            assert json.loads((tmp_path / "x.json").read_text()) == {"rows": [{}] * count}

    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    monkeypatch.setattr("sys.argv", ["script", "--output", str(tmp_path / "x")])
    pages.run("about", str, measure)
    assert (tmp_path / "x.md").read_text() == "{'rows': [{}, {}]}"


@pytest.mark.parametrize("full", (True, False))
def test_parts_are_made_in_order_and_at_the_length_that_was_asked_for(full, tmp_path, monkeypatch):
    monkeypatch.setattr("mmaccel.comparison.results.result", lambda rows: {"header": HEADER, "rows": []})
    asked = []

    def parts(full):
        asked.append(full)
        return {"one": lambda: [row("a")], "two": lambda: [row("b"), row("c")]}

    made = Benchmark("x", "T", parts, PLAIN, "", dict, "")
    result, kept = measure(made, full, tmp_path / "x.md")
    assert [each["method"] for each in result["rows"]] == ["a", "b", "c"] and asked == [full]
    assert kept.path == tmp_path / "x.unfinished.json" and kept.path.is_file() and result["header"] == HEADER
    assert list(Unfinished(kept.path, HEADER, full).parts) == ["one", "two"]
    assert not Unfinished(kept.path, HEADER, not full).parts and not Unfinished(None, HEADER, full).parts
    kept.remove()
    kept.remove()
    assert not kept.path.exists()
    alone = Benchmark("x", "T", in_one(lambda full: iter([row(str(full))])), PLAIN, "", dict, "")
    result, kept = measure(alone, full, None)
    assert (
        [each["method"] for each in result["rows"]] == [str(full)] and kept.path is None and list(kept.parts) == ["all"]
    )
    kept.remove()


def on_two_processors(tmp_path, here=1.5, **machine):
    """Results of a benchmark on two machines, in a folder each."""
    found = []
    for name, speedup, more in (("first", 3.0, {"processor": "one"}), ("second", here, machine)):
        written = result([row(speedup=speedup, baseline="none"), row(f"only {name}")])
        written["header"]["machine"] |= {"processor": "other(R) Processor", **more}
        (tmp_path / name).mkdir(exist_ok=True)
        found.append(tmp_path / name / "x.json")
        found[-1].write_text(json.dumps(written))
    return found


def test_another_processor_is_set_beside_the_committed_rows(tmp_path):
    first, second = on_two_processors(tmp_path, here=0.9)
    found = other_processor.beside([second], first.parent)
    assert [(each["label"], each["beside"], each["speedup"]) for each in found["rows"]] == [
        ("a, baseline none", 3, 0.9)
    ]
    page = other_processor.page(found)
    assert (
        "| a, baseline none | no | 3.00x | 0.90x | 30% |" in page and "| method | exact | one | other | of it |" in page
    )
    assert "slower on other: a, baseline none (0.90x).\n" in page and "slower on one: none.\n" in page


def test_other_processors_are_not_mixed(tmp_path):
    first, second = on_two_processors(tmp_path)
    third = second.with_name("y.json")
    written = json.loads(second.read_text())
    written["header"]["machine"]["cores"] = 99
    third.write_text(json.dumps(written))
    (first.parent / "y.json").write_text(first.read_text())
    with pytest.raises(WeightsError, match="y.json is of another machine than .*x.json"):
        other_processor.beside([second, third], first.parent)
    second.write_text(json.dumps({**written, "rows": written["rows"][1:]}))
    with pytest.raises(SettingError, match="no row in common"):
        other_processor.beside([second], first.parent)


def test_no_two_lines_of_the_canvas_plot_look_alike(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    from mmaccel.canvas.bench import page as canvas_page

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *given, **more: drawn.append(self))
    committed = ROOT / "docs" / "benchmarks" / "canvas.json"
    canvas_page.plot(json.loads(committed.read_text(encoding="utf-8"))["rows"], tmp_path / "canvas.png")
    _, below = drawn[0].axes
    lines = [line for line in below.lines if not line.get_label().startswith("_")]
    looks = {(line.get_marker(), line.get_color()) for line in lines}
    assert len(looks) == len(lines) > 30
