"""Clips on disk, their quality, and traces."""

import copy
import inspect
import math
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import sampled_models
import torch
from diffusers import (
    AudioPipelineOutput,
    DiffusionPipeline,
    StableDiffusionPipeline,
    StableVideoDiffusionPipeline,
    WanPipeline,
)
from diffusers.modular_pipelines import PipelineState
from PIL import Image

import mmaccel
from mmaccel import zoo
from mmaccel.adapter import Adapter, find_adapter
from mmaccel.cache import estimate
from mmaccel.canvas.picture_examples import pictures
from mmaccel.cli import main as cli
from mmaccel.comparison.trial import Workload
from mmaccel.errors import MemoryLimitError, MissingExtraError, PromptError, SettingError, UnsupportedTargetError
from mmaccel.files import clips
from mmaccel.plan import Plan
from mmaccel.report import Report
from mmaccel.session import Session
from mmaccel.stepping.layout import LatentLayout
from mmaccel.video import (
    BlockRouter,
    EasyCache,
    HeterogeneousSteps,
    Trace,
    comparing,
    examples,
    generation,
    quality,
    trace_of,
)
from mmaccel.video.batching import VideoBatching
from mmaccel.video.bench.cases import VideoCase
from mmaccel.video.modality import Video
from mmaccel.video.trace import check_traced


def clip(frames=5, size=(32, 24), shift=0):
    return [Image.new("RGB", size, (20 * i + shift, 80, 200)) for i in range(frames)]


@pytest.mark.parametrize("kind", (".gif", ".webp", ".png", ".mp4"))
def test_every_format_holds_every_frame(tmp_path, kind):
    path = tmp_path / f"clip{kind}"
    clips.save(clip(), path)
    if kind == ".mp4":
        av = pytest.importorskip("av")
        with av.open(str(path)) as container:
            assert len(list(container.decode(video=0))) == 5
    elif kind == ".png":
        assert Image.open(path).width > 5 * 32
    else:
        with Image.open(path) as picture:
            assert picture.n_frames == 5 and picture.size == (32, 24)


def test_odd_sizes_go_into_mp4(tmp_path):
    av = pytest.importorskip("av")
    clips.save(clip(size=(33, 25)), tmp_path / "odd.mp4")
    with av.open(str(tmp_path / "odd.mp4")) as container:
        assert container.streams.video[0].width == 32


def test_other_names_and_no_frames_are_refused(tmp_path):
    with pytest.raises(SettingError, match=r"\.mp4"):
        clips.save(clip(), tmp_path / "clip.avi")
    with pytest.raises(SettingError, match="no frames"):
        clips.save([], tmp_path / "clip.gif")
    assert not list(tmp_path.iterdir())


def test_quality_of_known_differences():
    assert quality.psnr(clip(), clip()) == 100
    expected = -10 * math.log10((51 / 255) ** 2 / 3)  # one channel of three is off by a fifth
    assert quality.psnr(clip(), clip(shift=51)) == pytest.approx(expected, abs=0.01)
    assert quality.ssim(clip(), clip()) == pytest.approx(1.0, abs=1e-3)
    assert quality.ssim(clip(), clip(shift=51)) < 0.99


def test_similarity_is_of_the_whole_range_of_colours():
    """Not of that which the two clips happen to have."""
    one, other = ([Image.new("RGB", (16, 16), (shade,) * 3)] * 2 for shade in (100, 120))
    a, b, c = 100 / 255, 120 / 255, 0.01**2
    assert quality.ssim(one, other) == pytest.approx((2 * a * b + c) / (a * a + b * b + c), abs=1e-4)


def test_side_by_side_has_both():
    both = clips.side_by_side([clip(), clip(shift=50)], ["plain", "fast"])
    assert len(both) == 5 and both[0].width > 2 * 256


def test_traces_count_and_draw(tmp_path):
    trace = Trace([1.0, 0.7, 0.4, 0.1])
    for active in (1.0, torch.tensor([0, 5]), 0.0, 1.0):
        trace.add(active, tokens=12)
    assert trace.shares() == [1.0, 0.1667, 0.0, 1.0]
    assert trace.counts().tolist() == [3, 2, 2, 2, 2, 3, 2, 2, 2, 2, 2, 2]
    assert trace.heat_map().shape == (1, 3, 4)
    trace.grid = (2, 2, 3)
    assert trace.heat_map()[1, 0, 0] == 2 and trace.heat_map()[0, 1, 2] == 3
    trace.save(tmp_path / "trace.png")
    assert Image.open(tmp_path / "trace.png").width > 500


def test_a_trace_draws_shares_levels_and_frames(tmp_path, monkeypatch):
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure

    drawn, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *given, **more: drawn.append(self) or save(self, *given, **more)
    )
    trace = Trace([0.9, 0.6, 0.3, 0.1])  # of which the run made three
    trace.grid = (3, 2, 2)
    for active in (1.0, torch.tensor([0, 1, 2]), 0.0):
        trace.add(active, tokens=12)
    trace.save(tmp_path / "trace.png")
    chart, *maps, levels, scale = sorted(
        drawn[0].axes, key=lambda axes: axes.get_ylabel() in ("noise level", "steps computed")
    )
    assert [bar.get_height() for bar in chart.patches] == [1.0, 0.25, 0.0]
    whole, partial, none = (to_hex(bar.get_facecolor()) for bar in chart.patches)
    assert whole != partial == none, "full steps stand out"
    assert chart.get_title(loc="left") == "1.2 of 3 steps computed"
    assert levels.lines[0].get_ydata().tolist() == [0.9, 0.6, 0.3]
    assert [axes.get_title() for axes in maps] == ["frame 0", "frame 1", "frame 2"]
    assert [axes.images[0].get_array().tolist() for axes in maps] == [[[2, 2], [2, 1]], [[1, 1]] * 2, [[1, 1]] * 2]
    assert scale.get_ylabel() == "steps computed" and scale.get_ylim() == (1, 2), "as the maps"


def test_a_trace_of_whole_steps_has_no_heat_map_of_one_colour(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *given, **more: drawn.append(self) or save(self, *given, **more)
    )
    trace = Trace([0.9, 0.6, 0.3])
    for active in (1.0, 0.0, 1.0):
        trace.add(active, tokens=12)
    trace.save(tmp_path / "trace.png")
    chart, levels = drawn[0].axes
    assert chart.get_title(loc="left") == "2 of 3 steps computed" and levels.get_ylabel() == "noise level"


def test_a_grid_of_another_size_is_not_used_for_a_trace():
    trace = Trace([1.0])
    trace.grid = (2, 2, 2)
    trace.add(1.0, tokens=6)
    assert trace.heat_map().shape == (1, 2, 3)


def test_the_peak_is_1_for_pictures_and_the_range_for_latents():
    pictures, latents = torch.tensor([0.2, 0.4]), torch.tensor([-1.0, 3.0])
    assert quality.tensor_psnr(pictures, pictures + 0.1) == pytest.approx(20, abs=1e-3)
    assert quality.tensor_psnr(latents, latents + 0.1) == pytest.approx(20 + 20 * math.log10(4), abs=1e-3)
    assert quality.tensor_psnr(pictures + 0.7, pictures + 0.8) == pytest.approx(20 + 20 * math.log10(0.2), abs=1e-3)
    with_alpha = [Image.new("RGBA", (4, 2), (255, 0, 51, 7))]
    assert quality.pixels(with_alpha)[0, :, 0, 0].tolist() == pytest.approx([1.0, 0.0, 0.2])
    assert quality.pixels(with_alpha).shape == (1, 3, 2, 4)


def test_what_is_not_installed_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics.functional.image", None)
    with pytest.raises(MissingExtraError, match=r"SSIM needs torchmetrics: pip install \"mmaccel\[metrics\]\""):
        quality.ssim(clip(), clip())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"drawn by matplotlib: pip install \"mmaccel\[metrics\]\""):
        Trace([1.0]).save("trace.png")
    monkeypatch.setattr(comparing.importlib.util, "find_spec", lambda name: None)
    trial = trial_of(examples.wan_pipeline()[0])
    assert trial.metrics == (comparing.PSNR,) and set(trial.judge([clip()], [clip()])) == {"psnr"}


def test_the_benchmark_tunes_to_a_time(monkeypatch):
    from mmaccel.video.bench import benchmark

    monkeypatch.setattr(benchmark, "share_of", lambda tuning, entry: 1 / (1 + entry.setup))
    tuning = SimpleNamespace(target=None)
    case = VideoCase("x", "rival", lambda x: x, 1e-3, 100.0)
    assert 1 / (1 + benchmark.tune(tuning, case, 0.25).setup) == pytest.approx(0.25, abs=0.05)
    assert benchmark.tune(tuning, VideoCase("y", "ours", lambda x: "fixed"), 0.25).setup == "fixed"


def test_the_time_of_an_entry_is_taken_beside_a_plain_run():
    from mmaccel.comparison.entry import Entry
    from mmaccel.video.bench import benchmark

    class Slowing(Workload):
        """A machine that gets slower with every run; the entry does a quarter of the work."""

        unit, target, prompts, clock, load = "steps", 1.0, ["a", "b"], 0.0, 1.0

        def run(self, target, seed, fewer=None):
            self.load *= 1.1
            self.clock += target * self.load

        def timer(self):
            return self.clock

    quick = Entry("quick", "ours", setup=lambda target: nullcontext(target / 4))
    assert benchmark.share_of(Slowing(), quick) == pytest.approx(0.25, rel=0.11)
    assert not quick.metrics, "nothing is judged while an entry is tuned"


def test_the_page_compares_with_what_kept_to_the_time(tmp_path):
    from mmaccel.comparison import results
    from mmaccel.video.bench import benchmark

    def row(method, kind, wall_share, quality):
        figures = {"psnr_worst": quality - 5, "ssim": 0.9, "ssim_worst": 0.8, "psnr_still": None, "psnr_lively": None}
        given = {"kind": kind, "budget": 0.5, "wall_share": wall_share, "quality": quality, "label": "", "settings": {}}
        return {"method": method, "work_ratio": None, "speedup": 1 / wall_share, **given, **figures}

    rows = [row("HeterogeneousSteps", "ours", 0.52, 40.0), row("fewer steps", "simple", 0.5, 30.0)]
    rows += [row("late", "rival", 0.9, 60.0), row("EasyCache", "rival", 0.5, 42.0), row("half", "part", 0.5, 39.0)]
    benchmark.BENCHMARK.write_page({"header": results.result([])["header"], "rows": rows}, tmp_path / "video.md")
    text = (tmp_path / "video.md").read_text()
    for figure in ("mean", "worst prompt"):
        said = f"{figure}: EasyCache wins; ours, `HeterogeneousSteps`,"
        said += " is -2.0 dB to EasyCache and +10.0 dB to fewer steps"
        assert said in text
    assert "| HeterogeneousSteps |  | 52% |" in text and "| half |  | 50% |" in text and "| late |" in text
    assert (tmp_path / "video.png").stat().st_size > 5000


def test_a_layout_is_needed_only_for_families_with_tokens():
    assert LatentLayout().tokens(torch.zeros(2, 3, 4)).shape == (2, 1, 12)


@pytest.mark.parametrize("seed", (0, 7))
def test_films_are_made_from_their_seed_with_the_settings_asked_for(seed):
    asked = {}

    def target(prompt, generator, **given):
        asked.update(given, prompt=prompt, seed=generator.initial_seed())
        return SimpleNamespace(frames=[clip(3), clip(3, shift=9)])

    settings = generation.VideoSettings(seed=seed, steps=4, guidance=2.0, frames=9, height=32, width=48)
    shot = generation.film(target, "red heart", settings, strength=0.5)
    assert len(shot.frames) == 3 and shot.frames[0].getpixel((0, 0))[0] == 0 and shot.seconds >= 0
    sizes = {"num_inference_steps": 4, "guidance_scale": 2.0, "num_frames": 9, "height": 32, "width": 48}
    assert asked == {**sizes, "prompt": "red heart", "seed": seed, "strength": 0.5, "output_type": "pil"}
    generation.film(target, "red heart", generation.VideoSettings())
    assert set(asked) == {*sizes, "prompt", "seed", "strength", "output_type"}
    assert generation.VideoSettings(steps=3).arguments() == {"num_inference_steps": 3}


def test_a_prompt_is_no_picture_where_a_pipeline_takes_one_first():
    def target(image=None, prompt=None, **_):
        return SimpleNamespace(images=clip(1) if image is None and prompt == "heart" else [])

    assert len(generation.film(target, "heart", generation.VideoSettings()).frames) == 1


def test_a_pipeline_of_sound_films_nothing():
    with pytest.raises(UnsupportedTargetError, match="AudioPipelineOutput has no frames: .*compare video"):
        generation.film(lambda **_: AudioPipelineOutput(audios=[0.0]), "rain", generation.VideoSettings())


def test_a_pipeline_of_pictures_films_the_first():
    shot = generation.film(lambda *_, **__: SimpleNamespace(images=clip(2)), "heart", generation.VideoSettings())
    assert len(shot.frames) == 1 and shot.frames[0].getpixel((0, 0))[0] == 0


def test_a_clip_beside_no_others_is_filmed_whole():
    made = SimpleNamespace(video=clip(3))
    assert len(generation.film(lambda **_: made, "heart", generation.VideoSettings()).frames) == 3


class Animated:
    """Needs a picture, as Wan I2V, and has no settings of a clip's length."""

    def __call__(self, image, prompt=None, num_inference_steps=50, generator=None, output_type="pil", **more):
        raise AssertionError("it is refused before the work")


class Still:
    def __call__(self, prompt=None, num_inference_steps=50, generator=None, output_type="pil"):
        raise AssertionError("it is refused before the work")


@pytest.mark.parametrize("settings", ({"frames": 9}, {"guidance": 2.0}, {"height": 32}))
def test_what_a_pipeline_does_not_have_is_refused_by_name(settings):
    (name,) = settings
    with pytest.raises(SettingError, match=f"Still takes no (num_frames|guidance_scale|height)=: leave out {name}"):
        generation.film(Still(), "heart", generation.VideoSettings(**settings))


def test_frames_are_refused_where_a_pipeline_of_pictures_would_pass_them_over():
    """Its call takes any argument, and no class of it names this one."""
    pipe, settings = zoo.load("tiny-unet"), generation.VideoSettings(frames=9)
    with pytest.raises(SettingError, match="TinyUNetPipeline takes no num_frames=: leave out frames"):
        generation.film(pipe, pipe.example[1], settings)
    with pytest.raises(SettingError, match="StableDiffusionPipeline takes no num_frames=: leave out num_frames"):
        generation.check_arguments(StableDiffusionPipeline, ("prompt", "num_frames"))

    class Passing(WanPipeline):
        def __call__(self, prompt, **more):
            raise AssertionError("not called")

    generation.check_arguments(Passing, ("prompt", "num_frames"))  # named by what it extends


def test_a_pipeline_that_needs_more_than_a_prompt_is_refused():
    with pytest.raises(UnsupportedTargetError, match="Animated also needs image=: call it in Python"):
        generation.film(Animated(), "heart", generation.VideoSettings())
    generation.check_arguments(Animated(), ("prompt", "image", "strength"))  # passed on
    with pytest.raises(UnsupportedTargetError, match="StableVideoDiffusionPipeline also needs image="):
        generation.check_arguments(object.__new__(StableVideoDiffusionPipeline))


@pytest.mark.parametrize("kind", (".gif", ".webp"))
@pytest.mark.parametrize("rate", (4, 20))
def test_frames_are_shown_at_the_rate_asked_for(tmp_path, kind, rate):
    path = tmp_path / f"clip{kind}"
    clips.save(clip(), path, rate=rate)
    with Image.open(path) as shown:
        shown.seek(1)
        shown.load()
        assert shown.info["duration"] == 1000 / rate


@pytest.mark.parametrize("kind", (".gif", ".webp"))
@pytest.mark.parametrize("rate", (16, 24, 30, 50, 7.5))
def test_a_clip_lasts_as_long_as_its_frames_at_any_rate(tmp_path, kind, rate):
    path, lasts = tmp_path / f"clip{kind}", []
    clips.save([Image.new("RGB", (8, 8), (5 * i, 0, 0)) for i in range(48)], path, rate=rate)
    with Image.open(path) as shown:
        for frame in range(shown.n_frames):
            shown.seek(frame)
            shown.load()
            lasts.append(shown.info["duration"])
    unit = 10 if kind == ".gif" else 1
    assert len(lasts) == 48 and sum(lasts) == pytest.approx(48_000 / rate, abs=unit / 2)
    assert max(lasts) - min(lasts) <= unit


def test_a_gif_that_browsers_would_slow_down_is_refused_before_any_work(tmp_path, capsys):
    words = ["run", "video", "rocket moves up", "-o", str(tmp_path / "clip.gif"), "--rate", "60", "--model", "no/model"]
    assert cli.main(words) == 2
    assert "rate=60: browsers play a .gif at no more than 50 frames a second" in capsys.readouterr().err
    with pytest.raises(SettingError, match="rate=51: "):
        clips.save(clip(), tmp_path / "clip.gif", rate=51)
    arguments = SimpleNamespace(rate=60.0)
    with pytest.raises(SettingError, match="rate=60: "):
        VideoBatching().check(arguments, tmp_path / "clip.gif")
    clips.check_format(tmp_path / "clip.webp", 60)


def test_equal_clips_are_at_100_db():
    pipe, _ = examples.wan_pipeline()
    trial = comparing.VideoTrial(find_adapter(pipe), {"num_inference_steps": 4})
    noise = torch.randn(1, 4, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    assert trial.judge(noise, noise) == {"psnr": 100.0} and trial.equal(noise, noise.clone())
    assert 0 < trial.judge(noise, noise + 0.1)["psnr"] < 60 and not trial.equal(noise, noise + 0.1)


@pytest.mark.parametrize("broken", (math.nan, math.inf, -math.inf))
def test_an_output_that_is_not_finite_is_the_worst(broken):
    trial = trial_of(examples.wan_pipeline()[0])
    latents = torch.randn(1, 4, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    spoiled = latents.clone()
    spoiled[0, 0, 0, 0, 0] = broken
    worse, worst = (trial.judge(latents, output)["psnr"] for output in (-latents, spoiled))
    assert worst == -100 < worse and trial.judge(spoiled, spoiled)["psnr"] == -100


def test_what_is_nan_in_pictures_is_shown_black():
    trial = trial_of(examples.wan_pipeline()[0])
    pictures = torch.full((1, 2, 3, 12, 16), math.nan)
    for output in (pictures, pictures.movedim(2, -1).numpy()):
        assert [frame.getextrema() for frame in trial.show(output).clips[0]] == [((0, 0),) * 3] * 2


@pytest.mark.parametrize("call", [
    {}, {"num_inference_steps": 7}, {"sigmas": [1.0, 0.5]}, {"num_inference_steps": 7, "sigmas": [1.0]},
])  # fmt: skip
def test_fewer_steps_are_an_alternative_where_nothing_else_fixes_them(call):
    pipe, _ = examples.flux_pipeline()
    trial = comparing.VideoTrial(find_adapter(pipe), call)
    defaults = inspect.signature(type(pipe).__call__).parameters["num_inference_steps"].default
    expected = 0 if "sigmas" in call else call.get("num_inference_steps", defaults)
    assert trial.count == expected
    assert ("sigmas= fixes the steps" in trial.no_simple) == ("sigmas" in call)


class Scheduled(DiffusionPipeline):
    """As Ideogram 4: its guidance has a value for every step, by default too, and refuses another number of them."""

    def __call__(self, num_inference_steps=48, guidance_scale=None, guidance_schedule=(7.0,) * 48):
        """Not run."""


@pytest.mark.parametrize(
    ("call", "count"),
    [({}, 0), ({"guidance_schedule": (7.0,)}, 0), ({"guidance_schedule": None, "guidance_scale": 7.0}, 48)],
    ids=str,
)
def test_guidance_of_every_step_fixes_the_steps(call, count):
    pipe = Scheduled()
    pipe.register_modules(transformer=sampled_models.wan()[0])
    trial = trial_of(pipe, **call)
    assert trial.count == count and ("guidance_schedule= fixes the steps" in trial.no_simple) == (count == 0)


def test_what_a_pipeline_refuses_is_said_and_our_own_errors_stay():
    def refuses(*_, **__):
        raise ValueError("height has to be divisible by 16")

    def ours(*_, **__):
        raise PromptError("near words")

    def never(*_, **__):
        raise AssertionError("an empty prompt is refused before the work")

    settings = generation.VideoSettings()
    with pytest.raises(SettingError, match="the pipeline refuses this: height"):
        generation.film(refuses, "heart", settings)
    with pytest.raises(PromptError, match="near words"):
        generation.film(ours, "heart", settings)
    with pytest.raises(PromptError, match="empty"):
        generation.film(never, "  ", settings)
    trial = trial_of(examples.wan_pipeline()[0], num_inference_steps=4)
    with pytest.raises(SettingError, match="the pipeline refuses this: height"):
        trial.run(refuses, 0)
    with pytest.raises(PromptError, match="near words"):
        trial.run(ours, 0)


@pytest.mark.parametrize("audio", (None, torch.zeros(4)))
def test_sound_that_a_clip_is_without_is_told(audio):
    class Sounding(Adapter):
        call_is_run = True

    def pipe(*_, **__):
        return SimpleNamespace(frames=[clip(2)], audio=audio)

    with Session(Plan((), family="sounding"), Sounding(pipe)) as fast:
        assert len(generation.film(fast, "a drum", generation.VideoSettings()).frames) == 2
        idle = Report([], exact=True, wall_seconds=1.0).told()
        assert fast.report.warnings == ([] if audio is None else [*idle, generation.SILENT])


@pytest.mark.parametrize("name", ("steps", "frames", "height", "width"))
def test_sizes_begin_at_1(name):
    assert generation.VideoSettings(**{name: 1})
    with pytest.raises(SettingError, match=f"{name}=0: it must be at least 1"):
        generation.VideoSettings(**{name: 0})


def test_a_clip_has_to_fit_into_memory(monkeypatch):
    settings = generation.VideoSettings(frames=9, height=32, width=48)
    need = 4 * 3 * 9 * 32 * 48
    for free in (need, None):
        monkeypatch.setattr(estimate, "free_memory", lambda device, free=free: free)
        generation.check_memory(settings)
    monkeypatch.setattr(estimate, "free_memory", lambda device: need - 1)
    with pytest.raises(MemoryLimitError, match="9 frames of 48 x 32 pixels"):
        generation.check_memory(settings)
    generation.check_memory(generation.VideoSettings())


def test_folders_of_pipelines_are_known(tmp_path):
    known = [Video().recognizes(model) for model in ("tiny-wan", "tiny-janus", str(tmp_path))]
    (tmp_path / "model_index.json").write_text("{}")
    assert [*known, Video().recognizes(str(tmp_path))] == [True, False, False, True]


def test_models_are_opened_on_their_device_and_in_their_type(monkeypatch):
    given = []
    monkeypatch.setattr(generation, "load", lambda *asked: given.append(asked) or "pipe")
    assert Video().open("some/model", "cuda", torch.bfloat16) == "pipe"
    assert given == [("some/model", "cuda", torch.bfloat16)]


def test_what_is_loaded_is_a_pipeline_that_can_be_accelerated(monkeypatch, tmp_path):
    made, given = examples.wan_pipeline()[0], []

    def from_pretrained(model, **more):
        given.append((model, more))
        return made

    monkeypatch.setattr(DiffusionPipeline, "from_pretrained", from_pretrained)
    monkeypatch.setattr(DiffusionPipeline, "download", lambda model, **more: str(tmp_path))
    assert generation.load("someone/model", dtype=torch.bfloat16) is made
    safe = {"use_safetensors": True, "trust_remote_code": False}
    assert given == [("someone/model", {"dtype": torch.bfloat16, **safe})]
    made.register_modules(transformer=None)
    with pytest.raises(UnsupportedTargetError, match="WanPipeline without a transformer to accelerate"):
        generation.load("someone/model", dtype=torch.float32)
    with pytest.raises(UnsupportedTargetError, match="tiny-janus makes no video: use `mmaccel run image`"):
        generation.load("tiny-janus")
    made = pictures()[0]
    command = "`mmaccel run image PROMPT -o picture.png --model someone/model`"
    with pytest.raises(UnsupportedTargetError, match=f"AmusedPipeline, of the family masked pictures: use {command}"):
        generation.load("someone/model", dtype=torch.float32)


def trial_of(pipe, **inputs):
    return comparing.VideoTrial(find_adapter(pipe), inputs)


def test_a_trial_runs_its_inputs_from_the_seed_and_with_fewer_steps():
    trial, asked = trial_of(examples.wan_pipeline()[0], num_inference_steps=7, guidance_scale=2.0), []

    def target(generator, **given):
        asked.append({**given, "seed": generator.initial_seed(), "drawn": float(torch.rand(1))})
        return (frames, "more")

    frames = clip(1)
    assert trial.run(target, 3) is frames is trial.run(target, 3, fewer=4) and trial.count == 7
    one, other = asked
    assert (one["num_inference_steps"], one["guidance_scale"], one["seed"]) == (7, 2.0, 3)
    assert other == {**one, "num_inference_steps": 4}, "the global state is that of the seed too"


def test_what_a_block_router_is_given_is_for_no_other_target():
    pipe, arguments = examples.block_pipeline()
    trial, asked = trial_of(pipe, **arguments(frames=6, height=2, width=2, steps=2)), []
    trial.taken = BlockRouter.call_arguments
    for fewer in (None, 1):
        trial.run(lambda **given: asked.append(given) or (clip(1),), 0, fewer)
    assert [given["num_inference_steps"] for given in asked] == [2, 1]
    assert all({"draft", "score"}.isdisjoint(given) and "latents" in given for given in asked)
    with mmaccel.accelerate(pipe, BlockRouter(tau=-1e9, latents=True)) as fast:
        trial.run(fast, 0)
        assert fast.report.engaged


def test_outputs_of_modular_pipelines_are_compared_as_they_stand():
    """By name they return the bare output, by names a dictionary, and otherwise all their state."""
    trial, pictures = trial_of(examples.wan_pipeline()[0]), clip(2)
    found = trial.run(lambda **_: pictures, 0)
    assert found is pictures and trial.judge(found, clip(2))["psnr"] == 100
    assert [len(frames) for frames in trial.show(found).clips] == [1, 1]
    latents = torch.zeros(2, 4, 2, 8, 8)
    assert trial.run(lambda **_: latents, 0) is latents is trial.run(lambda **_: {"latents": latents, "audio": 1}, 0)
    for nothing in (PipelineState({"images": pictures}), None):
        with pytest.raises(SettingError, match="returned a .*no pictures: .* output='images'"):
            trial.run(lambda nothing=nothing, **_: nothing, 0)
        with pytest.raises(SettingError, match="output='images'"):
            quality.as_tensor(nothing)


def test_a_trial_says_what_it_cannot_do():
    pipe, _ = examples.wan_pipeline()
    assert trial_of(pipe, latents=torch.zeros(1)).seedless == "latents= fixes the noise"
    assert trial_of(pipe).seedless == "" and trial_of(pipe, num_inference_steps=None).count == 0
    assert "does not say how many steps" in trial_of(pipe).no_simple
    with pytest.raises(SettingError, match="WanPipeline takes no num_frame=: leave out num_frame"):
        trial_of(pipe, num_frame=9).run(pipe, 0)
    with pytest.raises(SettingError, match="Still takes no num_frames=: leave out num_frames"):
        generation.check_arguments(Still(), ("prompt", "num_frames"))
    with pytest.raises(UnsupportedTargetError, match="WanTransformer3DModel makes no clip by itself"):
        trial_of(pipe.transformer)


def test_pictures_of_all_rows_are_judged_and_shown():
    pytest.importorskip("torchmetrics")
    trial = trial_of(examples.wan_pipeline()[0])
    one, other = clip(3), clip(3, shift=51)
    found = trial.judge([one, one], [one, other])
    assert found["ssim"] == pytest.approx((1 + quality.ssim(one, other)) / 2, abs=1e-4)
    assert found["psnr"] == pytest.approx(quality.psnr(one, other) + 10 * math.log10(2), abs=1e-3)
    assert trial.equal([one], [clip(3)]) and not trial.equal([one], [other])
    assert [len(frames) for frames in trial.show([one, other]).clips] == [3, 3]
    small = [clip(2, size=(10, 24))]
    assert set(trial.judge(small, small)) == {"psnr"}, "smaller than the window of SSIM"
    assert set(trial.judge([clip(1, (11, 11))], [clip(1, (11, 11))])) == {"psnr", "ssim"}
    latents = torch.randn(1, 4, 2, 16, 16)
    assert set(trial.judge(latents, latents)) == {"psnr"} and not trial.show(latents).clips


@pytest.mark.parametrize("kind", ("array", "tensor"))
def test_clips_are_seen_in_every_output_type(kind):
    """Arrays have their channels last, tensors before height and width; a batch of pictures is one of short clips."""
    trial = trial_of(examples.wan_pipeline()[0])

    def output(*shape):
        pixels = torch.linspace(0, 1, math.prod(shape)).view(shape)
        return pixels.numpy() if kind == "array" else pixels.movedim(-1, -3)

    films, pictures = output(2, 3, 12, 16, 3), output(2, 12, 16, 3)
    assert [[frame.size for frame in frames] for frames in trial.show(films).clips] == [[(16, 12)] * 3] * 2
    assert [[frame.size for frame in frames] for frames in trial.show(pictures).clips] == [[(16, 12)]] * 2
    first, last = trial.show(films).clips[0][0], trial.show(films).clips[1][2]
    assert first.getpixel((0, 0)) == (0, 0, 0) and last.getpixel((15, 11)) == (255, 255, 255)
    for seen in (films, pictures):
        assert trial.judge(seen, seen) == {"psnr": 100.0, "ssim": pytest.approx(1.0, abs=1e-4)}
    for latents in (films - 0.5, films * 2, output(2, 3, 12, 16, 4), output(12, 16, 3)):
        assert not trial.show(latents).clips and set(trial.judge(latents, latents)) == {"psnr"}


def test_sound_is_judged_by_its_numbers():
    """Pipelines such as AudioLDM 2 return it in rows."""
    trial = trial_of(examples.wan_pipeline()[0])
    sound = torch.linspace(-1, 1, 32).view(2, 16)
    for output in (sound, sound.numpy()):
        assert trial.judge(output, output) == {"psnr": 100.0} and not trial.show(output).clips


def expected_for(method):
    """What `check_traced` says of it."""
    said = r"--trace: video\.EasyCache keeps no trace: use video\.HeterogeneousSteps"
    return nullcontext() if method.traces else pytest.raises(SettingError, match=said)


def test_a_trace_is_of_the_last_run_of_what_keeps_one():
    pipe, arguments = examples.wan_pipeline()
    for method in (HeterogeneousSteps(), EasyCache()):
        with mmaccel.accelerate(pipe, method) as fast:
            with pytest.raises(SettingError, match="keeps no trace, or has not run yet"):
                trace_of(fast)
            with expected_for(method):
                check_traced(fast, "--trace")
            fast(**arguments())
            if method.name.endswith("HeterogeneousSteps"):
                fast(**arguments(steps=5))
                assert len(trace_of(fast).shares()) == 5
            else:
                pytest.raises(SettingError, trace_of, fast)


@pytest.mark.parametrize("within", (True, False))
def test_a_run_that_could_not_be_followed_keeps_no_trace_of_another(within):
    """Nor the target's own call, within no call of the session, that is interrupted."""
    pipe, arguments = examples.wan_pipeline()
    with mmaccel.accelerate(pipe, HeterogeneousSteps()) as fast:
        fast(**arguments(steps=5))
        if within:
            pipe.scheduler = copy.deepcopy(pipe.scheduler)
            fast(**arguments(steps=5))
        else:
            pipe.scheduler.set_timesteps(5)
        with pytest.raises(SettingError, match="keeps no trace, or has not run yet"):
            trace_of(fast)


def test_a_run_that_computes_everything_has_no_trace():
    fast = mmaccel.accelerate(examples.wan_pipeline()[0], HeterogeneousSteps(1.0))
    with fast, pytest.raises(SettingError, match="--trace: video.HeterogeneousSteps keeps no trace"):
        check_traced(fast, "--trace")


def test_long_clips_are_drawn_in_twelve_frames(tmp_path, monkeypatch):
    trace, drawn = Trace([1.0, 0.5]), []
    trace.grid = (30, 2, 2)
    trace.add(1.0, 120)
    trace.add(torch.arange(116, 120), 120)
    monkeypatch.setattr("matplotlib.axes.Axes.imshow", lambda self, frame, **more: drawn.append((frame.sum(), more)))
    titles = []
    monkeypatch.setattr("matplotlib.axes.Axes.set_title", lambda self, title, **more: titles.append(title))
    trace.save(tmp_path / "trace.png")
    assert titles[1:4] == ["frame 0", "frame 3", "frame 5"] and titles[-1] == "frame 29"
    assert [int(total) for total, _ in drawn] == [4] * 11 + [8], "the first and the last are among them"
    assert {(more["vmin"], more["vmax"]) for _, more in drawn} == {(1, 2)}


def test_pictures_of_masks_have_no_steps_of_diffusion():
    """As in pipelines of masked pictures that bring a class of their own, such as Meissonic's."""

    class Pipeline(DiffusionPipeline):
        def __init__(self, transformer, scheduler):
            super().__init__()
            self.register_modules(transformer=transformer, scheduler=scheduler)

    parts = pictures()[0]
    with pytest.raises(UnsupportedTargetError, match="Pipeline draws codes in place of masks: canvas.HaltonOrder"):
        mmaccel.plan(Pipeline(parts.transformer, parts.scheduler), HeterogeneousSteps())
