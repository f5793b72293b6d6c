"""The canvas tab on the shipped model: both texts, when they were committed, the code, and what is refused."""

import contextlib
import io

import gradio as gr
import numpy as np
import pytest
from PIL import ExifTags, Image

from mmaccel.canvas.generation import example
from mmaccel.demos.app import Frame, Limits, Models
from mmaccel.demos.app.looks import panels
from mmaccel.demos.app.runs import Run, Stopped
from mmaccel.demos.app.tabs import canvas_tab
from mmaccel.demos.app.tabs.canvas_run import CanvasRequest
from mmaccel.demos.app.tabs.choice import Choice
from mmaccel.errors import MmaccelError, PromptError, SettingError, UnknownNameError, UnsupportedTargetError


@pytest.fixture(scope="module")
def frame():
    return Frame()


@pytest.fixture(scope="module")
def results():
    with gr.Blocks():
        return panels.results()


@pytest.fixture
def picture(tmp_path):
    example().save(tmp_path / "things.png")
    return tmp_path / "things.png"


def ask(frame, results, path, question="list all things", preset="balanced", compare=True, run=None, **more):
    values = {"model": "tiny-canvas", "method": "", "length": "64", "threshold": ""} | more
    fields = (question, preset, "", values["model"], values["method"], values["length"], values["threshold"])
    return canvas_tab._work(frame, results, compare, run or Run(), str(path), *fields)


def test_a_text_is_filled_plainly_and_accelerated(frame, results, picture):
    run = Run()
    board, text, committed, details, report, *_ = ask(frame, results, picture, run=run)
    assert "The same text" in board and "word for word: <b>row" in text and "Plain" not in text
    assert committed["visible"] and committed["value"].width == 900 and details["visible"]
    assert "both measured" in report and {"read", "plain", "accelerated", "draw"} <= set(run.stages)
    pipe, _ = frame.models._shared["canvas", "tiny-canvas"].loaded
    assert "step" not in vars(pipe.scheduler), "the session left something behind"


def test_without_comparing_nothing_is_claimed(frame, results, picture):
    board, *_ = ask(frame, results, picture, compare=False)
    assert "No speed-up is claimed" in board and "faster" not in board


def test_the_shown_code_fills_the_same_text(frame, results, picture, monkeypatch):
    monkeypatch.chdir(picture.parent)
    method = "canvas.FreeDave:drafts=2\ncanvas.PrefixCache"
    _, text, *_, code = ask(frame, results, picture, method=method)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue().splitlines()[0] == text.partition("<b>")[2].removesuffix("</b></p>")
    assert "both measured" in printed.getvalue()


def test_the_shown_code_turns_a_photograph_as_the_tab_does(frame, results, picture, monkeypatch):
    monkeypatch.chdir(picture.parent)
    turned = Image.open(picture)
    data = turned.getexif()
    data[ExifTags.Base.Orientation] = 6
    turned.transpose(Image.Transpose.ROTATE_90).save(picture, exif=data)
    *_, code = ask(frame, results, picture, compare=False)
    names = {}
    exec(code, names)
    assert np.array_equal(names["picture"], np.asarray(example()))


def test_a_model_that_draws_is_offered_by_its_operator_alone(results, picture):
    assert Frame().models.names("canvas") == ["tiny-canvas"]
    with pytest.raises(UnsupportedTargetError, match="draws pictures, and cannot be asked about one"):
        ask(Frame(Models({"canvas": ["tiny-amused"]})), results, picture, model="tiny-amused")


def test_fields_reach_the_request_within_their_bounds():
    made = canvas_tab.asked(Limits(), True, "/x/a.png", " b ", "fast", "7", "m", "", "9", "0.5")
    assert made == CanvasRequest("b", Choice("m", "fast", (), 7), "a.png", 9, 0.5, True)
    assert canvas_tab.asked(Limits(), False, None, "b", "fast", "7", "m", "", "", "").threshold == 2
    for values, named in ((("513", ""), "tokens of the canvas"), (("", "1.5"), "chance")):
        with pytest.raises(SettingError, match=named):
            canvas_tab.asked(Limits(), True, "a", "b", "fast", "7", "m", "", *values)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    (
        ({"question": " "}, PromptError, "the question is empty"),
        ({"path": ""}, PromptError, "no picture yet"),
        ({"path": __file__}, SettingError, "it is none, or is damaged"),
        ({"path": "/tmp/gone/board.png"}, SettingError, "^board.png is no longer here: upload it again$"),
        ({"model": "tiny-amused"}, UnknownNameError, "did you mean 'tiny-canvas'"),
        ({"method": "canvas.FactorComit"}, MmaccelError, "FactorCommit"),
    ),
)
def test_what_cannot_be_done_is_said(frame, results, picture, wrong, error, words):
    path = wrong.pop("path", picture)
    with pytest.raises(error, match=words):
        ask(frame, results, path, **wrong)


def test_pictures_are_measured_before_they_are_decoded(picture, results):
    with pytest.raises(SettingError, match="64x64 pixels: 4000 are enough"):
        ask(Frame(limits=Limits(picture_pixels=4000)), results, picture)


def test_a_run_that_is_stopped_ends_and_frees_the_pipeline(frame, results, picture):
    run = Run(lambda share, name: run.stop() if name == "plain" else None)
    with pytest.raises(Stopped):
        ask(frame, results, picture, run=run)
    assert "The same text" in ask(frame, results, picture)[0]
