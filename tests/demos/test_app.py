"""The demo app without a browser: requests, limits, shared models, stopping, and the code that it shows."""

import importlib.util
import re
import sys
import threading
import time
from types import SimpleNamespace

import gradio as gr
import numpy as np
import pytest
import torch
from PIL import Image, ImageChops

from mmaccel.cli import main as cli
from mmaccel.demos.app import Frame, Limits, Models
from mmaccel.demos.app.limits import number
from mmaccel.demos.app.looks import panels
from mmaccel.demos.app.runs import Run, Runs, Stopped, readable
from mmaccel.demos.app.tabs import image_tab, video_tab
from mmaccel.demos.app.tabs.code import image_code, video_code
from mmaccel.demos.app.tabs.image_run import draw
from mmaccel.demos.app.tabs.passes import Passes
from mmaccel.demos.app.tabs.video_run import shoot
from mmaccel.errors import MissingExtraError, PromptError, SettingError, UnknownNameError, UnsupportedTargetError
from mmaccel.image.generation import language_model
from mmaccel.session import accelerate
from mmaccel.video import generation

LIMITS = Limits()


@pytest.fixture(scope="module")
def models():
    return Models()


def image_request(prompt="red heart", method="image.ZipAR:window=2", compare=False, preset="exact", seed="3", **more):
    values = {"model": "tiny-janus", "guidance": "", "temperature": "", "top_k": "", **more}
    return image_tab.asked(LIMITS, compare, prompt, preset, seed, method=method, **values)


def video_request(prompt="rocket moves up", compare=False, method="", seed="5", steps="6", model="tiny-wan"):
    size = {"frames": "5", "height": "32", "width": "32", "guidance": ""}
    return video_tab.asked(LIMITS, compare, prompt, "balanced", seed, model, method, steps, **size)


CACHED = video_request(method="video.EasyCache", steps="8")


def same(one, other, levels=0):
    one, other = one.convert("RGB"), other.convert("RGB")
    most = max(high for _, high in ImageChops.difference(one, other).getextrema()) if one.size == other.size else 256
    return most <= levels


def shown(code):
    """The names that a shown code leaves."""
    names = {}
    exec(compile(code, "shown", "exec"), names)
    return names


@pytest.mark.parametrize("compare", (False, True))
def test_the_shown_code_draws_the_same_picture(models, tmp_path, monkeypatch, compare):
    request = image_request(temperature="0.8", compare=compare)
    drawn = draw(models, Run(), request)
    monkeypatch.chdir(tmp_path)
    made = shown(image_code(request, models))
    # transformers' own way from pixels to a picture cuts off what ours rounds
    assert same(Image.open(tmp_path / "picture.png"), drawn.picture, levels=1)
    assert (made["fast"].report.speedup is not None) is compare
    other = draw(models, Run(), image_request(temperature="0.8", seed="4"))
    assert not same(other.picture, drawn.picture, levels=30), "the seed changes nothing"


def test_the_shown_code_draws_in_the_dtype_of_the_demo(tmp_path, monkeypatch):
    models, request = Models(dtype=torch.bfloat16), image_request()
    drawn = draw(models, Run(), request)
    monkeypatch.chdir(tmp_path)
    made = shown(image_code(request, models))
    assert made["model"].dtype == torch.bfloat16
    assert same(Image.open(tmp_path / "picture.png"), drawn.picture, levels=1)


def test_the_shown_code_films_the_same_clip(models, tmp_path, monkeypatch):
    request = video_request(compare=True, method="video.EasyCache")  # the preset picks steps from measured times
    shot = shoot(models, Run(), request)
    monkeypatch.chdir(tmp_path)
    made = shown(video_code(request, models))
    assert len(shot.frames) == 5
    assert all(same(one, two) for one, two in zip(made["frames"], shot.frames, strict=True))
    with Image.open(tmp_path / "clip.webp") as clip:
        assert clip.n_frames == 5
    assert made["fast"].report.speedup is not None


def test_the_shown_code_draws_with_a_pipeline_of_pictures(tmp_path, monkeypatch):
    """As Flux's, whose output has `images` and no frames."""
    pipe = generation.load("tiny-wan")

    class Painter(type(pipe)):
        def __call__(self, *args, **kwargs):
            return SimpleNamespace(images=[clip[0] for clip in super().__call__(*args, **kwargs).frames])

    pipe.__class__ = Painter
    monkeypatch.setattr(generation, "load", lambda *_: pipe)
    monkeypatch.chdir(tmp_path)
    models, request = Models({"video": ["own/painter"]}), video_request(method="video.EasyCache", model="own/painter")
    shot = shoot(models, Run(), request)
    shown(video_code(request, models, shot.rate, shot.field))
    assert shot.field == "images" and same(Image.open(tmp_path / "picture.png"), shot.frames[0])


def test_what_the_video_tab_says_of_tiny_far_works(models):
    method, frames = re.search(r"(video\.\S+) and (\d+) frames", video_tab.FAR_NOTE).groups()
    size = {"frames": frames, "height": "", "width": "", "guidance": ""}
    fields = ("red heart stays", "balanced", "5", "tiny-far", method, "2")
    shot = shoot(models, Run(), video_tab.asked(LIMITS, False, *fields, **size))
    assert len(shot.frames) == int(frames) and shot.report.engaged and not shot.report.warnings
    with gr.Blocks() as blocks:
        video_tab.build(Frame(models))
    assert any(getattr(block, "info", None) == video_tab.FAR_NOTE for block in blocks.blocks.values())


def test_the_video_tab_begins_with_a_prompt_of_its_first_model_and_shows_its_pictures(models):
    for own, prompt in ((None, next(iter(video_tab.SAMPLES))), (["tiny-unet"], next(iter(video_tab.DRAWN)))):
        with gr.Blocks() as blocks:
            video_tab.build(Frame(Models({"video": own} if own else {})))
        assert prompt in [getattr(block, "value", None) for block in blocks.blocks.values()]
    size = {"frames": "", "height": "", "width": "", "guidance": ""}
    shot = shoot(models, Run(), video_tab.asked(LIMITS, True, prompt, "balanced", "5", "tiny-unet", "", "2", **size))
    assert shot.field == "images" and len(shot.frames) == 1
    assert shot.cost.startswith("The very same picture") and shot.quality.endswith("to the plain picture, measured")
    clip, picture = video_tab._made(gr.Video(render=False), shot)
    assert not clip["visible"] and picture["visible"] and picture["value"] is shot.shown[0]


def test_the_shown_code_is_the_public_api(models):
    """What README shows: no module of ours below the parts, for any model of the zoo."""
    codes = [image_code(image_request(compare=True), models), video_code(video_request(compare=True), models)]
    for code in codes:
        ours = re.findall(r"^from (mmaccel[\w.]*) import", code, re.MULTILINE)
        assert set(ours) == {"mmaccel"} and "zoo.load(" in code and "fast.baseline()" in code
    code = image_code(image_request(model="folder/own", guidance="2", compare=True), models)
    assert "generation.load('folder/own')" in code and "guidance=2.0" in code and "fast.baseline()" in code


def test_a_speed_up_is_claimed_only_beside_a_plain_run(models):
    run = Run()
    alone, compared = draw(models, run, image_request()), Run()
    beside = draw(models, compared, image_request(compare=True))
    assert alone.plain is None and alone.report.speedup is None
    assert "speed-up" not in panels.report_text(alone.report)
    assert "both measured" in panels.report_text(beside.report, beside.quality) and "a chance of" in beside.quality
    assert beside.plain is not None and not same(beside.plain, beside.picture)
    alone_shown, slider = image_tab._pictures(beside)
    assert not alone_shown["visible"] and slider["visible"], "both in the slider, the plain one to the left"
    left, right = slider["value"]
    assert same(left, image_tab.enlarged(beside.plain)) and same(right, image_tab.enlarged(beside.picture))
    assert set(run.stages) >= {"accelerated", "draw"} and "plain" not in run.stages
    assert list(compared.stages)[-5:] == ["warm up", "plain", "accelerated", "measure", "draw"]
    table = panels.stage_table({"plain": 2.0, "<b>": 1.0})
    assert "100%" in table and "50%" in table and "<b>" not in table


def test_a_method_without_trace_has_no_heat_map(models):
    shot = shoot(models, Run(), video_request(method="video.EasyCache"))
    assert shot.computed is None and shoot(models, Run(), video_request()).computed is not None


def test_passes_tell_which_tokens_were_settled_when(models):
    with models.borrow("image", "tiny-janus", Run()) as shared:
        painter = shared.loaded
        request = image_request()
        with accelerate(painter.target, *request.choice.methods) as session:
            passes = Passes(256)
            before = len(language_model(painter.target)._forward_pre_hooks)
            with passes.watch(painter.target, Run()):
                began = time.perf_counter()
                painter.generate(session, ["red heart"], request.settings)
            most = time.perf_counter() - began
            last, times = passes.maps(session.adapter.layout())
            seconds = np.reshape(passes.seconds(session.adapter.layout()), last.shape)
            report = session.report
    assert last.shape == times.shape == (16, 16)
    # ZipAR of window 2: a row follows two passes behind the row above, one token a pass.
    assert (last[1:, 4] > last[:-1, 4]).all() and (last[:, 5] == last[:, 4] + 1).all()
    assert last.max() == len(passes.passes) == report.forwards, "the map tells another number than the report"
    assert last.min() == 2, "the first pass is the prompt's own"
    assert (times.reshape(-1)[:-1] >= 1).all()
    order = np.argsort(last.reshape(-1), kind="stable")
    assert (np.diff(seconds.reshape(-1)[order]) >= 0).all() and 0 < seconds.min() < seconds.max() <= most
    assert len(language_model(painter.target)._forward_pre_hooks) == before


@pytest.mark.parametrize("kind", ["image", "video"])
def test_a_stopped_run_ends_at_once_and_the_next_one_works(models, kind):
    calls = []

    def progress(share, name):
        calls.append((share, name))
        if name == "accelerated" and share and share > 0:
            run.stop()

    run = Run(progress)
    request, work = (image_request(), draw) if kind == "image" else (CACHED, shoot)
    with pytest.raises(Stopped):
        work(models, run, request)
    assert max(share for share, name in calls if name == "accelerated") < 1
    clean = work(models, Run(), request)
    again = work(models, Run(), request)
    pictures = [[run.picture] if kind == "image" else run.frames for run in (clean, again)]
    assert all(same(one, two) for one, two in zip(*pictures, strict=True))
    target = models._shared[kind, request.choice.model].loaded
    assert "generate" not in vars(getattr(target, "target", target))


def test_who_waits_for_a_model_may_leave(models):
    run = Run()
    with models.borrow("image", "tiny-janus", Run()):
        threading.Timer(0.3, run.stop).start()
        with pytest.raises(Stopped), models.borrow("image", "tiny-janus", run):
            raise AssertionError("two runs at once")


def test_stop_ends_the_runs_of_one_visitor_only():
    runs = Runs()
    with runs.begin("one", lambda *_: None) as first, runs.begin("two", lambda *_: None) as second:
        runs.stop("one")
        assert runs.count() == 2
        with pytest.raises(Stopped):
            first.check()
        second.check()
    assert runs.count() == 0
    runs.stop("nobody")
    with runs.begin("three", lambda *_: None) as third:
        runs.close(seconds=0.01)
        with pytest.raises(Stopped):
            third.check()


@pytest.mark.parametrize(
    ("change", "error", "hint"),
    [
        ({"prompt": "x" * 100_000}, PromptError, "100000 characters"),
        ({"prompt": None}, PromptError, "empty"),
        ({"prompt": "spaceship"}, PromptError, "spaceship"),
        ({"method": "image.ZipRA"}, UnknownNameError, "ZipAR"),
        ({"method": "image.ZipAR:window=0"}, SettingError, "window"),
        ({"method": "video.EasyCache"}, TypeError, "does not work on"),
        ({"method": "x" * 10_000}, SettingError, "10000 characters"),
        ({"method": "", "preset": "../../etc"}, UnknownNameError, "preset"),
        ({"model": "someone/huge-model"}, UnknownNameError, "tiny-janus"),
        ({"model": ["a"]}, SettingError, "tiny-janus"),
        ({"seed": "-1"}, SettingError, "seed"),
        ({"seed": "1e400"}, SettingError, "seed"),
        ({"temperature": "nan"}, SettingError, "temperature"),
        ({"top_k": "9" * 5000}, SettingError, "top-k"),
    ],
)
def test_bad_input_is_an_error_of_ours(models, change, error, hint):
    with pytest.raises(error, match=hint):
        draw(models, Run(), image_request(**change))


def test_numbers_and_seeds():
    assert number("steps", "7", 1, 9) == 7 and number("scale", "0.5", 0, 1, whole=False) == 0.5
    seeds = {image_request(seed="").choice.seed for _ in range(4)}
    assert len(seeds) == 4, "an empty field always draws the same seed"
    with pytest.raises(SettingError, match="from 1 to 100"):
        video_request(steps="101")
    with pytest.raises(SettingError, match="above 0"):
        Limits(steps=0)


def test_only_what_the_operator_allows_is_loaded():
    models = Models({"image": ["folder/own"]})
    assert models.names("image")[0] == "folder/own" and models.names("speech")
    models.check("image", "folder/own")
    for name in ("tiny-wan", "folder/else", ""):
        with pytest.raises((UnknownNameError, SettingError)):
            models.check("image", name)
    Models(any_model=True).check("image", "folder/else")
    with pytest.raises(UnknownNameError, match="image"):
        Models({"images": ["x"]})


def test_a_pipeline_of_masked_pictures_is_refused_by_name():
    models = Models({"image": ["tiny-amused"]})
    with pytest.raises(UnsupportedTargetError, match="tiny-amused is a pipeline of masked pictures"):
        draw(models, Run(), image_request(method="", preset="balanced", model="tiny-amused"))


def test_unused_models_make_room():
    models = Models(most=1)
    first = models._find("image", "a")
    with first.lock:
        models._find("image", "b")
        assert ("image", "a") in models._shared, "a model in use was dropped"
    models._find("image", "c")
    assert list(models._shared) == [("image", "c")]


def test_the_model_that_was_used_longest_ago_makes_room():
    models = Models(most=2)
    for name in ("a", "b", "a", "c"):
        models._find("image", name)
    assert [name for _, name in models._shared] == ["a", "c"]


def test_errors_for_the_browser_tell_nothing_and_are_no_markup(caplog):
    with pytest.raises(gr.Error) as shown, readable():
        raise PromptError("no <script>alert(1)</script>")
    assert "<" not in shown.value.message and "script" in shown.value.message
    with pytest.raises(gr.Error) as shown, readable():
        raise RuntimeError("/secret/path")
    assert "secret" not in shown.value.message and "secret" in caplog.text
    with pytest.raises(gr.Error) as shown, readable():
        raise torch.OutOfMemoryError("x")
    assert "memory" in shown.value.message


def test_command_line(capsys, monkeypatch):
    assert cli.main(["demo", "--model", "own"]) == 2
    assert "KIND=ID_OR_PATH" in capsys.readouterr().err
    assert cli.main(["demo", "--model", "picture=own"]) == 2
    assert "image" in capsys.readouterr().err


def test_without_gradio_the_error_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("mmaccel.demos.app")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'pip install "mmaccel\[demo\]"'):
        importlib.import_module("mmaccel.demos.app")
