"""Clips on disk, their quality, and traces."""

import inspect
import math
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from mmaccel.adapter import find_adapter
from mmaccel.errors import SettingError
from mmaccel.files import clips
from mmaccel.stepping.layout import LatentLayout
from mmaccel.video import Trace, comparing, examples, generation, quality
from mmaccel.video.bench.cases import VideoCase


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


def test_the_benchmark_tunes_to_a_time(monkeypatch):
    from mmaccel.video.bench import benchmark

    def seconds(tuning, entry):
        return 1.0 if entry.kind == "plain" else 1 / (1 + entry.setup)

    monkeypatch.setattr(benchmark, "seconds_of", seconds)
    tuning = SimpleNamespace(target=None)
    case = VideoCase("x", "rival", lambda x: x, 1e-3, 100.0)
    assert 1 / (1 + benchmark.tune(tuning, case, 0.25).setup) == pytest.approx(0.25, abs=0.05)
    assert benchmark.tune(tuning, VideoCase("y", "ours", lambda x: "fixed"), 0.25).setup == "fixed"


def test_the_page_compares_with_what_kept_to_the_time(tmp_path):
    from mmaccel.comparison import results
    from mmaccel.video.bench import benchmark

    def row(method, kind, wall_share, quality):
        figures = {"psnr_worst": quality - 5, "ssim": 0.9, "ssim_worst": 0.8, "psnr_still": None, "psnr_lively": None}
        given = {"kind": kind, "budget": 0.5, "wall_share": wall_share, "quality": quality, "label": "", "settings": {}}
        return {"method": method, "work_ratio": None, **given, **figures}

    rows = [row("HeterogeneousSteps", "ours", 0.52, 40.0), row("fewer steps", "simple", 0.5, 30.0)]
    rows += [row("late", "rival", 0.9, 60.0), row("EasyCache", "rival", 0.5, 42.0), row("half", "part", 0.5, 39.0)]
    benchmark.BENCHMARK.write_page({"header": results.result([])["header"], "rows": rows}, tmp_path / "video.md")
    text = (tmp_path / "video.md").read_text()
    assert "+10.0 dB (worst +10.0) to fewer steps and -2.0 dB (worst -2.0) to EasyCache" in text
    assert "+4% of the budget" in text and "half, -1.0 dB" in text and "| late |" in text
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


def test_a_pipeline_of_pictures_films_the_first():
    shot = generation.film(lambda *_, **__: SimpleNamespace(images=clip(2)), "heart", generation.VideoSettings())
    assert len(shot.frames) == 1 and shot.frames[0].getpixel((0, 0))[0] == 0


@pytest.mark.parametrize("kind", (".gif", ".webp"))
@pytest.mark.parametrize("rate", (4, 20))
def test_frames_are_shown_at_the_rate_asked_for(tmp_path, kind, rate):
    path = tmp_path / f"clip{kind}"
    clips.save(clip(), path, rate=rate)
    with Image.open(path) as shown:
        shown.seek(1)
        shown.load()
        assert shown.info["duration"] == 1000 / rate


def test_equal_clips_are_at_100_db():
    pipe, _ = examples.wan_pipeline()
    trial = comparing.VideoTrial(find_adapter(pipe), {"num_inference_steps": 4})
    noise = torch.randn(1, 4, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    assert trial.judge(noise, noise) == {"psnr": 100.0} and trial.equal(noise, noise.clone())
    assert 0 < trial.judge(noise, noise + 0.1)["psnr"] < 60 and not trial.equal(noise, noise + 0.1)


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
