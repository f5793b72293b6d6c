"""The video benchmark: its samplers, converged clips, rows, and what its page says of them."""

from types import SimpleNamespace

import pytest
import torch

from mmaccel.bench import index
from mmaccel.comparison import results
from mmaccel.video.bench import benchmark, findings, page
from mmaccel.video.bench.cases import VideoCase, ours, scenes
from mmaccel.video.bench.filming import FilmedLatents, Filming
from mmaccel.video.bench.sampling import GRID, LEAST, QUICK_GRID, Sampling, converged


def row(method, kind="rival", quality=40.0, worst=30.0, **more):
    figures = {
        "psnr_worst": worst,
        "psnr_converged": 35.0,
        "psnr_converged_worst": 25.0,
        "ssim": 0.9,
        "ssim_worst": 0.8,
    }
    given = {
        "settings": {},
        "exact": False,
        "kind": kind,
        "budget": 0.5,
        "wall_share": 0.5,
        "label": "",
        "speedup": 2.0,
    }
    plain = {"plain_converged": 47.0, "plain_converged_worst": 31.0, "work_ratio": 0.5, "model": "tiny-wan, 40 steps"}
    return results.row(
        **{"modality": "video", "method": method, "quality": quality, **figures, **given, **plain, **more}
    )


def sampled(method, kind, quality, work_ratio=0.5, **columns):
    sampling = Sampling(**columns)
    told = {"table": "samplers", "model": f"tiny-wan, {sampling}", "work_ratio": work_ratio}
    return row(method, kind, quality, **told, **sampling.columns)


def test_the_grid_varies_one_thing_at_a_time_and_runs_the_asked_for_settings():
    found = [sampling.columns for sampling in GRID]
    assert len({str(sampling) for sampling in GRID}) == len(GRID)
    for name, values in {"steps": {4, 8, 20, 30, 50}, "guidance": {1, 3, 5}, "shift": {1, 3, 5, 8}}.items():
        assert {each[name] for each in found} == values
    assert {(each["sampler"], each["steps"]) for each in found} >= {("UniPC", n) for n in (4, 8, 20, 30, 50)}


def test_a_converged_clip_has_four_times_the_most_steps_of_its_sampler():
    assert converged(Sampling(40), GRID).steps == 200 == converged(Sampling(4), GRID).steps
    assert converged(Sampling(20, guidance=5.0), GRID).steps == 80
    assert converged(Sampling(4)).steps == LEAST and converged(Sampling(40)).steps == 160


@pytest.fixture(scope="module")
def filming():
    return Filming([scene.prompt for scene in scenes(2)], sampling=Sampling(3, "UniPC", 1.0, 5.0))


def test_clips_are_sampled_as_asked_for(filming):
    config = filming.target.scheduler.config
    assert type(filming.target.scheduler).__name__ == "UniPCMultistepScheduler" and config.flow_shift == 5.0
    calls = []
    filming.run(lambda *args, **call: calls.append(call) or [torch.zeros(1)], 0)
    assert calls[0]["guidance_scale"] == 1.0 and calls[0]["num_inference_steps"] == 3


def test_clips_are_judged_against_the_converged_one_too(filming, monkeypatch):
    asked = []
    monkeypatch.setattr(filming, "run", lambda target, seed, steps: asked.append(steps) or latents(seed, 0.3))
    found = filming.judge(latents(0, 0.0), latents(0, 0.3))
    again = filming.judge(latents(0, 0.0), latents(0, 0.0))
    assert found["psnr_converged"] == 100 > found["psnr"] and again["psnr"] == 100 > again["psnr_converged"]
    assert asked == [filming.reference.steps], "made once"


def latents(seed, shift):
    return FilmedLatents(seed, torch.full((1, 8, 2, 16, 16), shift))


def test_a_row_has_both_measures_and_those_of_the_plain_run(filming, monkeypatch):
    monkeypatch.setattr(filming, "reference", Sampling(4, "UniPC", 1.0, 5.0))
    case = VideoCase("fewer steps", "simple", lambda _: 2)
    judged = scenes(2)
    made = benchmark.judge(filming, 0.5, [case.entry(filming.target, 1.0)], judged, table="samplers", steps=3)
    (found,) = made
    each = [sample["psnr_converged"] for sample in found["samples"]]
    assert found["psnr_converged"] == pytest.approx(sum(each) / 2) and found["psnr_converged_worst"] == min(each)
    assert found["plain_converged"] > found["psnr_converged"], "three steps are nearer to four than two are"
    plain = [sample["plain_converged"] for sample in found["samples"]]
    assert found["plain_converged"] == pytest.approx(sum(plain) / 2) and found["plain_converged_worst"] == min(plain)
    assert found["work_ratio"] == pytest.approx(2 / 3)
    assert found["model"].endswith("UniPC, 3 steps, guidance 1, shift 5") and not results.faults(
        results.result([found])
    )


def test_a_rival_that_is_not_installed_says_so_in_its_row(tmp_path):
    filming = SimpleNamespace(steps=40, sampling=Sampling())
    gone = benchmark.not_installed(filming, 0.5, VideoCase("gone", "rival", lambda x: x, package="gone_package"))
    made = results.result([row("HeterogeneousSteps", "ours"), gone, row("SeaCache")])
    assert not results.faults(made)
    benchmark.BENCHMARK.write_page(made, tmp_path / "video.md")
    assert "| gone | gone_package is not installed |" in (tmp_path / "video.md").read_text()
    assert "SeaCache" in index.page([(benchmark.BENCHMARK, made)])


def test_what_wins_is_said_of_each_figure():
    mine = row("HeterogeneousSteps", "ours", 55.0, 20.0)
    others = [row("SeaCache", "rival", 50.0, 26.0), row("fewer steps", "simple", 30.0, 24.0)]
    late = row("slow", "rival", 90.0, 80.0, wall_share=0.9)
    text = findings.of_budget([mine, *others, late])
    same = row("cache-dit, our steps, DMD", "rival", 56.0, wall_share=0.6)
    assert "cache-dit, our steps, DMD wins" in findings.of_budget([mine, same])
    first, second, *_ = text.splitlines()
    assert first == (
        "- To the plain clip, mean: `HeterogeneousSteps` wins; ours is +5.0 dB to SeaCache and +25.0 dB to fewer steps."
    )
    assert "worst prompt: SeaCache wins; ours, `HeterogeneousSteps`, is -6.0 dB to SeaCache" in second
    assert "slow" not in text
    assert "To the converged clip, mean: nobody wins" in text
    shown = index.page([(benchmark.BENCHMARK, results.result([mine, *others]))])
    assert first in shown and second in shown, "in the index as well"


def test_nearer_to_the_converged_clip_than_the_plain_one_is_said():
    mine = row("HeterogeneousSteps", "ours", 55.0)
    nearer = row("target converged", "part", 45.0, psnr_converged=49.5, psnr_converged_worst=30.0)
    told = findings.of_budget([mine, nearer, row("SeaCache")])
    assert told.endswith('with `target="converged"` ours is +2.5 dB on the mean and -1.0 dB on the worst prompt.')
    nearer["samples"] = [{"psnr_converged": found, "plain_converged": 30.0} for found in (29.0, 31.0, 32.0)]
    assert findings.of_budget([mine, nearer, row("SeaCache")]).endswith("It is nearer on 2 of 3 prompts.")


def test_samplers_have_tables_and_words_of_their_own():
    grid = [sampled("HeterogeneousSteps", "ours", 45.0), sampled("fewer steps", "simple", 40.0)]
    grid += [sampled("HeterogeneousSteps", "ours", 30.0, steps=4), sampled("fewer steps", "simple", 33.0, steps=4)]
    found = page.tables([row("HeterogeneousSteps", "ours"), row("fewer steps", "simple"), *grid])
    assert list(found) == ["50% of the time", page.SAMPLERS]
    assert "| Euler, 4 steps, guidance 3, shift 3 | 30.0 (30.0) | 33.0 (30.0) |" in found[page.SAMPLERS]
    assert "| Euler, 4 steps, guidance 3, shift 3 | 47.0 (31.0) | 35.0 (25.0) |" in found[page.SAMPLERS], "with plain"
    told = findings.of_samplers(grid)
    assert (
        "mean ahead in 1 and behind in 1 of 2 (+1.0 dB, at worst -3.0 dB with Euler, 4 steps, guidance 3, shift 3)"
        in told
    )
    late = sampled("SeaCache", "rival", 90.0, work_ratio=1.0)
    assert "SeaCache" not in findings.of_samplers([*grid, late])
    assert "| 90.0 (30.0), 100% of the work |" in page.tables([row("a", "ours"), *grid, late])[page.SAMPLERS]
    assert "ours against fewer steps" in index.page([(benchmark.BENCHMARK, results.result([*grid, row("a", "ours")]))])


def test_the_parts_of_a_run_are_those_of_its_rows(monkeypatch):
    monkeypatch.setattr(benchmark, "all_entries", lambda filming, judged, *more: [("all", len(judged), *more)])
    monkeypatch.setattr(benchmark, "sampled", lambda filming, judged: [(filming.sampling, [s.motion for s in judged])])
    monkeypatch.setattr(benchmark, "Filming", lambda prompts, **given: SimpleNamespace(sampling=given["sampling"]))
    monkeypatch.setattr(benchmark.zoo, "load", lambda name: None)
    assert list(benchmark.parts(True)) == ["50%", "25%", *map(str, GRID)]
    first, second, *rest = (row for make in benchmark.parts(True).values() for row in make())
    assert (first, second) == (("all", 16, 0.5, True), ("all", 16, 0.25, True))
    assert rest == [(sampling, ["still", "lively"] * 3) for sampling in GRID]
    assert sum(len(list(make())) for make in benchmark.parts(False).values()) == 2 + len(QUICK_GRID)


def test_a_sampler_has_rows_of_ours_fewer_steps_and_rivals(filming, monkeypatch):
    ran = []
    monkeypatch.setattr(benchmark, "_run", lambda filming, entries, judged: ran.append(entries))
    monkeypatch.setattr(benchmark, "_row", lambda filming, budget, entry, *_: (budget, entry.label))
    monkeypatch.setattr(VideoCase, "is_missing", property(lambda case: case.package == "cache_dit"))
    *found, gone = benchmark.sampled(filming, [])
    assert set(found) == {
        *(
            (budget, name)
            for budget in (0.5, 0.25)
            for name in ("HeterogeneousSteps", "target converged", "fewer steps")
        ),
        *((0.5, name) for name in ("SeaCache of diffusers", "Spectrum")),
    }
    assert gone["label"] == "cache_dit is not installed" and gone["table"] == "samplers" and len(ran) == 1


def test_a_case_of_ours_keeps_its_settings():
    assert ours(0.25).make(1.0).budget == 0.25 and ours(0.25).kind == "ours"
