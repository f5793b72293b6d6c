"""The commands of video: what reaches the pipeline, and what is written and printed of it."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import diffusers
import pytest
from PIL import Image

from mmaccel.cache import estimate
from mmaccel.cli import main as cli
from mmaccel.errors import PromptError, SettingError
from mmaccel.files import clips
from mmaccel.session import Session
from mmaccel.video import Auto, EasyCache, MagCache, examples, generation, quality
from mmaccel.video.command import VideoCommand

RED, BLUE = (255, 0, 0), (0, 0, 255)
SIZES = {"steps": 6, "guidance": 2.5, "frames": 9, "height": 32, "width": 48}
OPTIONS = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]


def frames(colour):
    return [Image.new("RGB", (32, 24), colour) for _ in range(2)]


@pytest.fixture
def filmed(monkeypatch, tmp_path, capsys):
    """`film(*words)` types a command: the plain clip is red and takes 4 s, the accelerated one blue and takes 1 s."""
    pipe, arguments = examples.wan_pipeline()
    seen = SimpleNamespace(pipe=pipe, runs=[], labels=[], folder=tmp_path, loaded=0)

    def load(*_):
        seen.loaded += 1
        return pipe

    def film(target, prompt, settings):
        fast = isinstance(target, Session)
        is_attached = "step" in vars(pipe.scheduler)
        seen.runs.append((fast, is_attached, prompt, settings, pipe._progress_bar_config["desc"]))
        target(**arguments(steps=6))
        return generation.Filmed(frames(BLUE if fast else RED), 1.0 if fast else 4.0)

    def type_in(*words):
        code = cli.main(["run", "video", "red heart", "-o", str(tmp_path / "a.png"), *words])
        seen.printed = capsys.readouterr()
        return code

    beside = clips.side_by_side
    monkeypatch.setattr(generation, "load", load)
    monkeypatch.setattr(generation, "film", film)
    monkeypatch.setattr(clips, "side_by_side", lambda found, texts: seen.labels.extend(texts) or beside(found, texts))
    seen.type = type_in
    return seen


def test_both_runs_are_made_of_the_same_words(filmed):
    method = "video.HeterogeneousSteps(budget=0.75)"
    words = ["--compare", "--method", "HeterogeneousSteps:budget=0.75", "--seed", "5", *OPTIONS]
    assert filmed.type(*words, "--trace", str(filmed.folder / "trace.png")) == 0
    settings = generation.VideoSettings(seed=5, **SIZES)
    warm, plain, fast = filmed.runs
    assert warm == (False, False, "red heart", replace(settings, steps=2), "warm up")
    assert plain == (False, False, "red heart", settings, "plain")
    assert fast == (True, True, "red heart", settings, "fast")
    assert filmed.labels == ["plain: 4.00 s", f"{method}: 1.00 s"]
    names = ["a.compare.png", "a.png", "trace.png"]
    assert sorted(path.name for path in filmed.folder.iterdir()) == names


def test_the_accelerated_clip_is_written_and_compared_with_the_plain_one(filmed):
    assert filmed.type("--compare", "--method", "HeterogeneousSteps") == 0
    clip, both = (Image.open(filmed.folder / f"a{more}.png").convert("RGB") for more in ("", ".compare"))
    assert clip.getpixel((10, 10)) == BLUE
    colours = [colour for _, colour in sorted(both.getcolors(1 << 20), reverse=True)]
    assert {RED, BLUE} <= set(colours[:4])
    kept = f"{quality.psnr(frames(RED), frames(BLUE)):.1f} dB PSNR, {quality.ssim(frames(RED), frames(BLUE)):.3f} SSIM"
    assert f"  quality     {kept} to the plain clip, measured\n" in filmed.printed.out
    assert "against 4.00 s, both measured" in filmed.printed.out, "without the run that only warms up"
    assert filmed.printed.out.splitlines()[-1].startswith("wrote ")


def test_without_torchmetrics_the_distance_is_told_in_decibels(filmed, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    assert filmed.type("--compare", "--method", "HeterogeneousSteps") == 0
    assert "dB PSNR to the plain clip, measured\n" in filmed.printed.out


def test_a_trace_that_nothing_can_draw_is_refused_before_the_clip_is_made(filmed, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert filmed.type("--method", "HeterogeneousSteps", "--trace", str(filmed.folder / "trace.png")) == 2
    assert 'pip install "mmaccel[metrics]"' in filmed.printed.err and not filmed.runs


@pytest.mark.parametrize(("words", "rate"), (([], 16), (["--rate", "5"], 5)))
def test_a_clip_has_the_rate_of_its_model_or_that_asked_for(filmed, monkeypatch, words, rate):
    rates = []
    monkeypatch.setattr(clips, "save", lambda clip, path, rate: rates.append(rate) or path.touch())
    assert filmed.type("--compare", "--method", "EasyCache", *words) == 0
    assert rates == [rate, rate]


def test_without_compare_nothing_runs_plainly(filmed):
    assert filmed.type("--method", "EasyCache") == 0
    assert [run[:2] for run in filmed.runs] == [(True, True)] and not filmed.labels
    assert "quality" not in filmed.printed.out and "say --compare" in filmed.printed.out
    assert [path.name for path in filmed.folder.iterdir()] == ["a.png"]


def test_a_trace_that_no_method_keeps_is_refused_before_the_clip_is_made(filmed):
    assert filmed.type("--method", "EasyCache", "--trace", str(filmed.folder / "trace.png")) == 2
    assert "--trace: video.EasyCache keeps no trace" in filmed.printed.err
    assert not list(filmed.folder.iterdir())


@pytest.mark.parametrize(
    ("words", "hint"),
    ((["--trace", "trace.txt"], "trace.txt"), (["--method", "NoSuch"], "NoSuch"), (OPTIONS, "9 frames")),
)
def test_what_cannot_be_done_is_said_before_anything_is_loaded(filmed, monkeypatch, words, hint):
    monkeypatch.setattr(estimate, "free_memory", lambda device: 12 * 9 * 32 * 48 - 1)
    assert filmed.type(*words) == 2 and hint in filmed.printed.err and not filmed.loaded


def test_compare_and_tune_make_the_call_of_a_run(filmed):
    filmed.pipe.set_progress_bar_config(desc="own")
    words = cli.build_parser().parse_args(["compare", "video", "red heart", "--method", "EasyCache", *OPTIONS])
    pipe, call = VideoCommand().prepare(words)
    sizes = generation.VideoSettings(**SIZES).arguments()
    assert pipe is filmed.pipe and call == {"prompt": "red heart", "output_type": "pil", **sizes}
    assert pipe._progress_bar_config == {"disable": True}, "which compare draws itself"
    words.prompt = " "
    with pytest.raises(PromptError, match="empty"):
        VideoCommand().prepare(words)
    assert filmed.loaded == 1


@pytest.mark.parametrize(("method", "measured"), (("MagCache", 1), ("auto", 1), ("MagCache:threshold=0", 0)))
@pytest.mark.parametrize("words", ([], ["--compare"]))
def test_what_measures_in_its_first_run_does_so_before_the_clip(filmed, monkeypatch, method, measured, words):
    monkeypatch.setattr(Auto, "prepare", lambda self, session, args, kwargs: None)
    assert filmed.type("--method", f"video.{method}", "--steps", "6", *words) == 0
    told = ["measure"] * measured + ["warm up", "plain"] * bool(words) + ["fast"]
    assert [run[-1] for run in filmed.runs] == told
    assert {run[3].steps for run in filmed.runs if run[-1] in ("measure", "fast")} == {6}
    assert "measured its ratios in this run" not in filmed.printed.out


def test_ratios_that_are_given_need_no_run():
    assert not MagCache(ratios=(1.0, 0.9)).measures_first and not EasyCache().measures_first


@pytest.mark.parametrize("name", ("HeliosPyramidPipeline", "LTX2DFRPipeline", "WanPipeline"))
def test_a_clip_to_warm_up_makes_few_steps_where_their_number_can_be_told(name):
    pipe = object.__new__(getattr(diffusers, name))
    settings = generation.VideoSettings(frames=9)
    brief = generation.briefly(settings, pipe)
    assert brief == (replace(settings, steps=2) if name == "WanPipeline" else settings)
    generation.check_settings(pipe, brief)


def test_a_setting_that_the_pipeline_does_not_have_has_its_own_name_in_compare_too(filmed, monkeypatch):
    monkeypatch.setattr(type(filmed.pipe), "__call__", lambda self, prompt=None, output_type="pil": None)
    words = cli.build_parser().parse_args(["compare", "video", "red heart", "--frames", "9"])
    with pytest.raises(SettingError, match="takes no num_frames=: leave out frames"):
        VideoCommand().prepare(words)


@pytest.mark.parametrize("command", ("run", "compare", "tune", "batch", "serve"))
def test_a_pipeline_that_needs_a_picture_is_refused_when_it_is_opened(command, monkeypatch, tmp_path, capsys):
    class Animated(type(examples.wan_pipeline()[0])):
        def __call__(self, image, prompt=None, **more):
            raise AssertionError("nothing is made")

    monkeypatch.setattr(generation, "load", lambda *_: Animated(**examples.wan_pipeline()[0].components))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "red heart"}\n')
    words = {"run": ["red heart", "-o", str(tmp_path / "a.png")], "serve": []}
    words["batch"] = [str(prompts), "-o", str(tmp_path / "out")]
    assert cli.main([command, "video", *words.get(command, ["red heart", "--method", "EasyCache"])]) == 2
    told = capsys.readouterr().err
    assert "Animated also needs image=: call it in Python" in told and "Traceback" not in told


def test_a_pipeline_that_needs_a_picture_is_refused_before_its_weights_are_loaded(monkeypatch, tmp_path, capsys):
    """Tens of gigabytes, of which the index says the class."""
    monkeypatch.setattr(generation, "load", lambda *_: pytest.fail("it was loaded"))
    for kind, says in (("WanImageToVideoPipeline", "also needs image=: call it in Python"), ("WanPipeline", "loaded")):
        (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": kind, "_diffusers_version": "0.42.1"}))
        words = ["run", "video", "red heart", "--model", str(tmp_path), "-o", str(tmp_path / "a.gif")]
        if kind == "WanPipeline":
            with pytest.raises(pytest.fail.Exception, match=says):
                cli.main(words)
        else:
            assert cli.main(words) == 2 and f"{kind} {says}" in capsys.readouterr().err
