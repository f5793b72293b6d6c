"""Every command and every Python block of README and site runs, in a reader's order and in one folder."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pages as site
import pytest
import reader

from mmaccel import image, session, zoo
from mmaccel.comparison.runner import Runner
from mmaccel.errors import MmaccelError
from mmaccel.image.bench import benchmark
from mmaccel.speech.audio import recordings
from mmaccel.speech.audio.audio import RATE

TRIED = [name for name, text in reader.all_pages().items() if reader.blocks(text, "python", *reader.SHELL)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The reader's folder: at the beginning it holds a recording, and nothing else."""
    here = tmp_path_factory.mktemp("reader")
    reader.recording(here)
    return here


@pytest.fixture
def workplace(folder, monkeypatch):
    """That folder, models that are loaded once, a short example of speech, a short benchmark and no discarded runs.

    No session is left on a model.
    """
    monkeypatch.chdir(folder)
    monkeypatch.setattr(recordings, "example", _first_words)
    monkeypatch.setattr(zoo, "load", _loaded)
    monkeypatch.setattr(
        benchmark, "cases", lambda full: [benchmark.ImageCase(1, benchmark.GUIDED, 1, (image.ZipAR(window=2),))]
    )
    monkeypatch.setattr(Runner, "warm_up", lambda *_: None)
    yield
    for holder in list(session._holders.values()):
        live = holder()
        if live is not None:
            live.remove()


def _first_words(example=recordings.example):
    whole = example()
    return replace(whole, samples=whole.samples[: 3 * RATE], text=whole.text[:25])


@cache
def _loaded(name, load=zoo.load):
    return load(name)


@pytest.mark.parametrize("page", TRIED)
def test_a_reader_can_type_every_line_of_a_page(page, workplace, capsys):
    text = reader.all_pages()[page]
    if "talk.wav" in text and not Path("talk.wav").exists():
        pytest.skip("needs the recording of the speech extra")
    names = {"__name__": "page"}
    for block in reader.blocks(text):
        reader.type_block(block, names)
    if page.startswith("methods/") and "fast" in names:
        assert names["fast"].report.wall_seconds > 0 and not names["fast"].active


def test_the_site_repeats_the_readme():
    text = site.written((reader.ROOT / "docs/index.md").read_text(encoding="utf-8"), "index.md")
    readme = {block.code for block in reader.blocks(reader.all_pages()["README.md"])}
    assert reader.blocks(text) and {block.code for block in reader.blocks(text)} <= readme


def test_what_needs_a_download_says_so():
    for page, text in reader.all_pages().items():
        for block in reader.blocks(text, "python"):
            assert page == "README.md" or block.downloads == ("downloads" in block.title), f"{page}: {block.code}"


@pytest.mark.parametrize(
    "code",
    (
        "from mmaccel import video\nvideo.EasyCash()",
        "from mmaccel import video\nvideo.EasyCache(thresh=1)",
        "import mmaccel\nmmaccel.accelerate(pipe)",
    ),
)
def test_code_that_does_not_run_is_still_read(code):
    with pytest.raises((AttributeError, TypeError, AssertionError)):
        reader.resolve(code, {})


@pytest.mark.parametrize(
    "line",
    (
        "mmaccel run vlm missing.mp4 'what moves up?'",
        "mmaccel run video rocket",
        "mmaccel plan --preset quick",
        "make dinner",
        "pip install mmaccel",
        "pip install '.[everything]'",
        "rm -r build",
    ),
)
def test_a_line_that_does_not_work_is_noticed(line, workplace, capsys):
    with pytest.raises((AssertionError, MmaccelError)):
        reader.type_block(reader.Block("bash", "", line), {})
