"""Figures in prose are those of the committed rows: README's are written from them, and no page has a typed one."""

import re

import pytest
from PIL import Image
from reader import ROOT

from mmaccel.bench import index
from mmaccel.bench.pages import committed
from mmaccel.cli.bench import all_benchmarks
from mmaccel.comparison import results
from mmaccel.demos.pages import comparison, readme_figures, video_comparison
from mmaccel.image.bench import page as image_page
from mmaccel.tuning.curve import NEAR
from mmaccel.vlm.bench.text import MODES, NEW
from mmaccel.vlm.bench.text_tasks import tasks

README = (ROOT / "README.md").read_text(encoding="utf-8")
# Speed-ups, shares, decibels: what is measured. Settings and versions stand without a unit.
FIGURE = re.compile(r"(?<![\w.=*])\d+(?:\.\d+)?(?:x\b| ?%| dB\b| times\b| points\b)")


def test_the_figures_of_the_readme_and_the_questions_are_those_of_the_rows():
    questions = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    assert "<!-- figures: exact -->" in questions and readme_figures.rewritten(questions) == questions
    assert readme_figures.rewritten(README) == README, "run `python -m mmaccel.demos.pages.readme_figures`"
    assert len(FIGURE.findall(README)) > 5
    changed = re.sub(r"\*\*\d\.\dx\*\*", "**9.9x**", README)
    assert changed != README and readme_figures.rewritten(changed) == README


def test_the_readme_tells_what_speaks_against_it():
    """The own sampler of Wan's checkpoint, and every machine that a row of the table ran on."""
    folder = ROOT / "docs" / "benchmarks"
    rows = results.load(folder / "long" / "default_sampler.json")["rows"]
    worst = next(row["psnr_worst"] for row in rows if row["kind"] == "ours" and row["budget"] == 0.5)
    wan = README.partition("<!-- figures: wan -->")[2].partition("<!-- end -->")[0]
    assert f"{worst:.0f} dB for the worst" in " ".join(wan.split())
    lines = README.partition("| on one thread of |")[2].partition("<!-- end -->")[0].strip().splitlines()[1:]
    found = (
        results.load(folder / f"{name}.json")["header"]["machine"]
        for name in ("image", "unet", "pages", "canvas", "speech")
    )
    machines = {machine["processor"].replace("(R)", "").removesuffix(" Processor") for machine in found}
    assert {line.split("|")[-2].strip() for line in lines} == machines


def test_the_readme_writes_text_as_its_figure_was_measured():
    """Greedily, which a pipeline does only if it is told, with as many tokens, from a prompt of a measured kind."""
    snippet, _, block = README.partition("**Language models**")[2].partition("<!-- figures: text -->")
    assert "x** greedy on" in block.partition("<!-- end -->")[0] and MODES[0].sampling == {"do_sample": False}
    assert f"max_new_tokens={NEW}, do_sample=False)" in snippet and "Summarize" in snippet
    assert any(task.kind == "summary" and task.prompt.startswith("Summarize") for task in tasks(1))


@pytest.mark.parametrize(
    ("name", "script"),
    (("comparison", comparison), ("video_comparison", video_comparison), ("video_comparisons", video_comparison)),
)
def test_the_pictures_tell_the_speed_ups_of_the_rows(name, script):
    with Image.open(ROOT / "docs" / f"{name}.png") as picture:
        assert picture.text["speed-ups"].split() == list(script.speedups().values()), f"run {script.__name__}"


def test_the_readme_has_no_figure_that_is_typed():
    typed = re.sub(r"<!-- figures: .*?<!-- end -->|```.*?```", "", README, flags=re.DOTALL)
    assert FIGURE.findall(typed) == []
    assert FIGURE.findall("2.0x, 99.8%, 55 dB, 3 times, 0.5 points") and not FIGURE.findall("Wan 2.1, budget=0.5")


@pytest.mark.parametrize("benchmark", all_benchmarks(), ids=lambda benchmark: benchmark.name)
def test_no_page_has_a_figure_that_is_typed(benchmark):
    for text in (benchmark.intro, benchmark.limits, benchmark.section.simple):
        assert FIGURE.findall(text) == []
    assert FIGURE.findall(index.INTRO) == [f"{100 * (1 - NEAR):.0f} %"]


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "benchmarks").glob("*.json")), ids=lambda path: path.stem)
def test_every_page_says_which_commit_was_measured_or_that_nobody_knows(path):
    header = results.load(path)["header"]
    assert f"\n- commit: {committed(header)}\n" in path.with_suffix(".md").read_text(encoding="utf-8")


def test_what_auto_reaches_is_taken_from_the_rows():
    def row(window, speedup, batch=4, guidance=3.0):
        method = {"method": "image.SpeculativeJacobi", "settings": {"window": window}}
        return {**method, "speedup": speedup, "batch": batch, "guidance": guidance}

    rows = [row(8, 1.53), row(16, 1.2), row("auto", 1.08), row(8, 2.0, batch=1), row("auto", 1.7, batch=2)]
    rows += [{**row(4, 9.0), "settings": {"window": 4, "coupling": "gumbel"}}]  # more than the window differs
    told = ": 1.08x where `SpeculativeJacobi(window=8)` has 1.53x (batch 4, guidance 3)"
    assert image_page.auto(rows) == {"auto": told} and image_page.auto(rows[:2]) == {"auto": ""}
    made = results.load(ROOT / "docs" / "benchmarks" / "image.json")["rows"]
    said = (ROOT / "docs" / "benchmarks" / "image.md").read_text(encoding="utf-8")
    assert len(image_page.auto(made)["auto"].split("; ")) == 4 and image_page.auto(made)["auto"] in said
