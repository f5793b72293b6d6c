"""Tuning: which settings run, which one is picked, what is warned of, and the files."""

import importlib
import json

import numpy as np
import pytest
import torch

import mmaccel
from mmaccel.cli import main as cli
from mmaccel.cli.tune import grid_of
from mmaccel.comparison import results
from mmaccel.comparison.comparison import Comparison
from mmaccel.comparison.trial import Metric
from mmaccel.errors import ConflictError, MissingExtraError, SettingError, UnknownNameError
from mmaccel.image import GroupedSpeculative, SpeculativeJacobi, ZipAR
from mmaccel.image import examples as image_examples
from mmaccel.testing.contract import snapshot
from mmaccel.tuning import plot
from mmaccel.tuning.curve import Goal, describe, point
from mmaccel.tuning.grid import KNOBS, settings_of
from mmaccel.video import Auto, EasyCache, HeterogeneousSteps, TeaCache, TokenCache
from mmaccel.video import examples as video_examples
from mmaccel.video.command import VideoCommand
from mmaccel.vlm import CompressKV, DyCoke, PrefillDrop, SelectKV, VidCom2, examples, visual_examples

module = importlib.import_module("mmaccel.tuning.tune")
PSNR = Metric("psnr", "PSNR dB", "PSNR in dB", ".1f")
SURPRISE = Metric("surprise", "surprise", "nats per token", higher_is_better=False)


@pytest.fixture(scope="module")
def janus():
    return image_examples.janus()


@pytest.fixture(scope="module")
def wan():
    pipe, arguments = video_examples.wan_pipeline()
    return pipe, {name: value for name, value in arguments(1, steps=12).items() if name != "latents"}


# The grid


def test_the_main_setting_is_varied(wan, janus):
    assert [m.budget for m in settings_of(wan[0], HeterogeneousSteps(forecast=0.0), None)] == [0.2, 0.35, 0.5, 0.7]
    assert all(m.forecast == 0 for m in settings_of(wan[0], HeterogeneousSteps(forecast=0.0), None)), "others stay"
    assert [m.threshold for m in settings_of(wan[0], EasyCache, None)] == [0.025, 0.05, 0.1, 0.2]
    assert [m.window for m in settings_of(janus[0], GroupedSpeculative, None)] == [8, 16], "as much as there are tokens"
    jacobi = settings_of(janus[0], SpeculativeJacobi, None)
    assert [m.window for m in jacobi][:2] == ["auto", 8]


def test_a_small_budget_of_its_own_is_among_the_values():
    model, _ = examples.llama()
    assert [method.budget for method in settings_of(model, SelectKV, None)] == [0.05, 0.1, 0.2, 0.4]
    tiny = settings_of(model, SelectKV(budget=0.0008), None)
    assert [method.budget for method in tiny] == [0.0004, 0.0008, 0.0016, 0.0032]
    assert [method.budget for method in settings_of(model, CompressKV, None)] == [0.2, 0.35, 0.5, 0.7]


def test_what_a_budget_does_not_decide_is_not_varied_by_it(wan):
    """All its values would be one and the same run."""
    assert [m.interval for m in settings_of(wan[0], HeterogeneousSteps(interval=3), None)] == [1, 3, 6, 12]
    for method in (HeterogeneousSteps(interval=3, fraction=0.2), HeterogeneousSteps(policy="groups", interval=4)):
        assert len({m.budget for m in settings_of(wan[0], method, None)}) > 1, "partial steps are as many as it leaves"
    assert len({m.budget for m in settings_of(wan[0], TokenCache(interval=3), None)}) > 1
    for method, name in ((HeterogeneousSteps(steps=(0, 5)), "steps"), (TokenCache(fractions=(0.5, 0.5)), "fractions")):
        with pytest.raises(SettingError, match=rf"saves the same with every budget.*grid=\{{'{name}': \(\.\.\.\)\}}"):
            settings_of(wan[0], method, None)


def test_the_settings_that_may_be_the_main_one_are_told():
    names = f"the first of {', '.join(KNOBS[:-1])} and {KNOBS[-1]} that the method is given"
    assert names in " ".join(mmaccel.tune.__doc__.split())


def test_values_that_a_target_refuses_are_left_out_of_our_own_grid(janus):
    found = settings_of(janus[0], ZipAR(window=8), None)
    assert found and max(m.window for m in found) <= 16, "a row of the picture has no more columns"
    with pytest.raises(SettingError):
        mmaccel.tune(janus[0], ZipAR, grid={"window": (2, 99)}, target_speedup=1.1, **janus[1]())


def test_a_grid_is_all_combinations_or_methods(wan):
    found = settings_of(wan[0], HeterogeneousSteps, {"budget": (0.5, 0.7), "forecast": (0.0, 1.0)})
    assert [(m.budget, m.forecast) for m in found] == [(0.5, 0.0), (0.5, 1.0), (0.7, 0.0), (0.7, 1.0)]
    assert settings_of(wan[0], EasyCache, [EasyCache(), TeaCache()]) == [EasyCache(), TeaCache()]


@pytest.mark.parametrize(
    "method, grid, error, hint",
    [
        (HeterogeneousSteps, {"budgt": (0.5,)}, UnknownNameError, "did you mean 'budget'"),
        (HeterogeneousSteps, {"budget": 0.5}, SettingError, "give several values"),
        (HeterogeneousSteps, {"budget": ()}, SettingError, "grid is empty"),
        (HeterogeneousSteps, {"budget": (3,)}, SettingError, "budget"),
        (HeterogeneousSteps, [3], SettingError, "give methods"),
        (HeterogeneousSteps, 3, SettingError, "give methods"),
        (Auto, None, SettingError, "no setting that is known"),
        (str, None, TypeError, "not a method"),
    ],
)
def test_grids_that_cannot_be(wan, method, grid, error, hint):
    with pytest.raises(error, match=hint):
        settings_of(wan[0], method, grid)


def test_values_of_numpy_and_torch_are_numbers_in_a_plan(wan):
    for values in (np.array([0.5, 0.7]), torch.tensor([0.5, 0.7], dtype=torch.float64)):
        found = settings_of(wan[0], HeterogeneousSteps, {"budget": values})
        assert [str(m) for m in found] == ["video.HeterogeneousSteps()", "video.HeterogeneousSteps(budget=0.7)"]
    exact = HeterogeneousSteps(budget=np.float64(1.0))
    assert json.loads(json.dumps(point(exact, 1.0, "psnr", "PSNR", None)["exact"])) is True


def test_the_command_line_reads_values():
    assert grid_of(["budget=0.25,0.5", "tokens=hottest,random"]) == {
        "budget": [0.25, 0.5],
        "tokens": ["hottest", "random"],
    }
    for words in (["budget"], ["budget="], ["a=1", "a=2"]):
        with pytest.raises(SettingError, match="--setting"):
            grid_of(words)


# What is picked


def points(*pairs, metric="psnr", exact=False):
    method = SpeculativeJacobi() if exact else EasyCache()
    return [point(method, speedup, metric, metric, quality) for speedup, quality in pairs]


@pytest.mark.parametrize(
    "goal, picked",
    [
        (Goal(target_speedup=1.5), 1),
        (Goal(target_speedup=2.05), 2),
        (Goal(target_speedup=2.2), None),
        (Goal(floor=30), 1),
        (Goal(floor=20), 2),
        (Goal(floor=50), None),
        (Goal(target_speedup=1.5, floor=20), 2),
        (Goal(target_speedup=2.0, floor=30), None),
    ],
)
def test_the_best_that_reaches_the_goal(goal, picked):
    assert goal.pick(points((1.2, 40.0), (1.6, 35.0), (2.0, 25.0))) == picked


def test_a_metric_that_is_better_lower():
    curve = points((1.2, 3.0), (1.6, 4.0), (2.0, 6.0))
    assert Goal(floor=5, higher_is_better=False).pick(curve) == 1
    assert Goal(target_speedup=1.5, higher_is_better=False).pick(curve) == 1


def test_what_is_exact_keeps_every_floor():
    assert Goal(floor=99).pick(points((1.2, 40.0), (1.6, 35.0), exact=True)) == 1
    assert Goal(target_speedup=1.1).pick(points((1.2, 40.0), (1.6, 35.0), exact=True)) == 1


def test_the_worst_seed_keeps_the_floor():
    assert Goal(floor=30).pick([point(EasyCache(), 2.0, "psnr", "PSNR dB", 35.0, worst=20.0)]) is None


@pytest.mark.parametrize("values", [{"target_speedup": 1.0}, {"target_speedup": "fast"}, {"floor": float("nan")}])
def test_goals_are_checked(values):
    with pytest.raises(SettingError, match=next(iter(values))):
        Goal(**values)


# What is said of a measured curve


def made(methods, figures, metric=PSNR):
    """A comparison as if measured: speed-up and quality of each method, and its slowest and fastest round."""
    rows = [_row("plain", "plain", {}, True, (1.0, 100.0), metric)]
    for method, found in zip(methods, figures, strict=True):
        row = _row(method.name, "method", method.settings(), method.exact, found, metric)
        rows.append({**row, "label": str(method), "idle": "threshold never fell" if found[0] == 0.99 else None})
    rows.append(_row("fewer steps", "simple", {"steps": 4}, False, (1.9, 20.0), metric))
    header = {**results.result([])["header"], "model": "a model", "no_simple": ""}
    return Comparison({"header": header, "rows": rows}, [], (metric,))


def _row(name, kind, settings, exact, found, metric):
    speedup, quality, low, high = found if len(found) == 4 else (*found, found[0], found[0])
    more = {"wall_range": [1 / speedup] * 2, "speedup_range": [low, high], "quality_worst": quality, "warnings": []}
    more |= {
        "metrics": {metric.key: quality},
        "equal": False,
        "same_distribution": False,
        "peak_bytes": None,
        "idle": None,
    }
    return results.row(
        modality="video", model="a model", method=name, settings=settings, exact=exact, wall_seconds=1 / speedup,
        speedup=speedup, quality=quality, peak_extra_bytes=0, label=name, kind=kind, **more,
    )  # fmt: skip


@pytest.fixture
def measured(monkeypatch, wan):
    """Tunes HeterogeneousSteps over made-up measurements."""

    def tune(*figures, metric=PSNR, **goal):
        def compare(target, *methods, **_):
            return made(methods, figures, metric)

        monkeypatch.setattr(module, "compare", compare)
        budgets = [round(1 - 0.1 * i, 1) for i in range(1, len(figures) + 1)]
        return mmaccel.tune(wan[0], HeterogeneousSteps, grid={"budget": budgets}, prompt="x", **goal)

    return tune


def test_what_a_comparison_is_given_is_handed_on(monkeypatch, wan):
    given = []

    def compare(target, *methods, **more):
        given.append(more)
        return made(methods, [(1.2, 40.0)])

    monkeypatch.setattr(module, "compare", compare)
    more = {"seeds": (1, 2), "rounds": 5, "simple": False, "processor": object(), "ranks": True, "prompt": "x"}
    mmaccel.tune(wan[0], HeterogeneousSteps, grid={"budget": (0.9,)}, floor=1, **more)
    assert given == [more]


def test_the_plan_holds_the_curve(measured, tmp_path):
    found = measured((1.2, 40.0), (2.0, 25.0), (1.6, 35.0), target_speedup=1.5)
    assert found.plan.methods == (HeterogeneousSteps(budget=0.7),) and not found.notes
    assert [p["speedup"] for p in found.curve] == [1.2, 1.6, 2.0]
    assert "picked video.HeterogeneousSteps(budget=0.7): 1.60x, PSNR dB 35" in str(found)
    found.save(tmp_path / "plan.json")
    again = mmaccel.Plan.load(tmp_path / "plan.json")
    assert again == found.plan and again.measured == found.curve and again.versions == found.plan.versions
    assert "measured video.HeterogeneousSteps(budget=0.9): 1.20x, PSNR dB 40" in str(again)


def test_a_goal_out_of_reach_has_no_plan(measured, tmp_path):
    found = measured((1.2, 40.0), (1.6, 35.0), target_speedup=5)
    assert found.plan is None and found.picked is None
    (note,) = found.notes
    assert "no setting reached 5x: the closest is video.HeterogeneousSteps(budget=0.8), 1.60x" in note
    with pytest.raises(SettingError, match="no plan to save: no setting reached 5x"):
        found.save(tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())
    assert "closest is video.HeterogeneousSteps(budget=0.9)" in measured((1.2, 40.0), (1.6, 35.0), floor=60).notes[0]


def test_a_goal_below_what_was_observed(measured):
    found = measured((2.0, 40.0), (2.6, 35.0), target_speedup=1.2)
    assert found.plan.methods == (HeterogeneousSteps(budget=0.9),) and "a milder one" in found.notes[0]
    assert "one that saves more" in measured((2.0, 40.0), (2.6, 35.0), floor=10).notes[0]


def test_a_setting_that_did_nothing_is_no_candidate(measured):
    found = measured((0.99, 100.0), (1.5, 30.0), (2.0, 20.0), target_speedup=1.4)
    assert [p["speedup"] for p in found.curve] == [1.5, 2.0] and found.picked["psnr"] == 30.0
    assert "video.HeterogeneousSteps(budget=0.9) did nothing: threshold never fell" in str(found)
    nothing = measured((0.99, 100.0), target_speedup=1.4)
    assert nothing.plan is None and "no setting engaged" in nothing.notes[0]


def test_noise_is_said(measured):
    found = measured((1.5, 40.0, 1.1, 2.4), (1.7, 30.0, 1.6, 1.8), target_speedup=1.45)
    assert any("the timings are too noisy" in note for note in found.notes)
    assert any("its rounds gave 1.10x to 2.40x" in note for note in found.notes)
    assert not measured((1.2, 40.0, 1.2, 1.3), (2.0, 30.0, 1.9, 2.1), target_speedup=1.8).notes


def test_noise_goes_by_the_rounds_of_what_was_picked(measured):
    """The fastest stands first in the grid and last in the curve."""
    found = measured((2.0, 30.0, 1.9, 2.1), (1.2, 40.0, 1.2, 1.3), target_speedup=1.8)
    assert found.picked["speedup"] == 2.0 and not found.notes


def test_a_busy_machine_is_said():
    steady = module._noise(Goal(), [], None, {"wall_range": [1.0, 1.2]})
    assert not steady and "plain run took 8.7 to 58 s" in module._noise(Goal(), [], None, {"wall_range": [8.7, 58]})[0]


def test_a_simple_alternative_that_does_as_well_is_said(measured):
    (note,) = measured((1.2, 18.0), (1.85, 15.0), (1.86, 14.0), target_speedup=1.8).notes
    assert "fewer steps is no slower and no worse" in note and "1.90x, 20" in note
    assert not measured((1.2, 40.0), (1.85, 25.0), target_speedup=1.8).notes, "it is faster, and worse"


def test_something_must_be_asked_of_a_lossy_method(wan, janus):
    with pytest.raises(SettingError, match="set a goal: target_speedup=.* floor= [^-]*$"):
        mmaccel.tune(wan[0], HeterogeneousSteps, prompt="x")
    with pytest.raises(ConflictError, match="twice"):
        mmaccel.tune(janus[0], ZipAR, grid={"window": (2, 2)}, floor=5, **janus[1]())


def test_files(measured, tmp_path):
    found = measured((1.2, 40.0), (2.0, 25.0), (1.6, 35.0), target_speedup=1.5)
    found.save(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SettingError, match="end it with"):
        found.save(tmp_path / "curve.gif")
    from mmaccel.tuning.plot import plot

    def drawn_of(found, path):
        return plot(found.comparison, found.goal, found.picked, found.by_chance, path).axes[0]

    drawn = {text.get_text() for text in drawn_of(found, tmp_path / "x.png").texts}
    assert {"budget 0.9", "budget 0.7 (picked)", "fewer steps", "4", "asked for"} <= drawn
    lower = measured((1.2, 3.0), (2.0, 5.0), metric=SURPRISE, floor=4)
    axes = drawn_of(lower, tmp_path / "y.png")
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "better is up"


def test_what_misses_both_goals_is_told_with_its_worst_seed(measured):
    (note,) = measured((1.2, 40.0), (1.6, 35.0), target_speedup=5, floor=60).notes
    assert "reached 5x with PSNR dB 60" in note and "1.20x, PSNR dB 40 (worst seed 40)" in note


def test_where_a_quality_is_kept_no_milder_setting_is_advised(measured):
    assert not measured((2.0, 40.0), (2.6, 35.0), target_speedup=1.2, floor=38).notes


def test_an_exact_setting_has_nothing_to_fear_from_fewer_steps():
    rows = made([], []).rows
    (exact,), (lossy,) = (points((1.2, 18.0), exact=exact) for exact in (True, False))
    assert not module._simpler(Goal(), exact, rows) and module._simpler(Goal(), lossy, rows)


def test_quality_that_differs_by_chance_alone_is_said(measured):
    found = measured((1.2, 40.0), (1.6, 35.0), target_speedup=1.5)
    methods = [row for row in found.comparison.rows if row["kind"] == "method"]
    for row, said in zip(methods, (False, True), strict=True):
        row["same_distribution"] = True
        assert found.by_chance == said == ("quality differs by chance alone" in str(found))


def test_the_plot_is_given_the_goal_and_the_worst_seeds(measured, monkeypatch):
    plotting = importlib.import_module("mmaccel.tuning.plot")
    monkeypatch.setattr(plotting, "draw", lambda *given: given)
    found = measured((0.99, 50.0), (1.25, 40.0), (1.6, 35.0), target_speedup=1.25, floor=30)
    found.comparison.result["rows"][2]["quality_worst"] = 33.0
    (line, simple), around, path = plotting.plot(found.comparison, found.goal, found.picked, True, "x.png")
    assert (around.target, around.floor, path) == (0.8, 30, "x.png") and "by chance alone" in around.title
    assert [mark.worst for mark in line.marks] == [33.0, 35.0] and simple.kind == "simple"


def test_old_plans_are_still_read():
    assert describe({"speedup": 2.0, "psnr": 31.0}) == "2.00x, PSNR dB 31"


# For real


def test_a_pipeline_is_tuned(wan, tmp_path):
    pipe, call = wan
    before, state = snapshot(pipe.transformer), torch.get_rng_state()
    found = mmaccel.tune(
        pipe, HeterogeneousSteps, grid={"budget": (0.5, 0.75)}, floor=1, rounds=1, simple=False, **call
    )
    assert torch.equal(torch.get_rng_state(), state) and snapshot(pipe.transformer).keys() == before.keys()
    assert {p["settings"]["budget"] for p in found.curve} == {0.5, 0.75} and all(p["psnr"] > 1 for p in found.curve)
    assert found.picked == found.curve[-1], "the fastest that keeps so little"
    found.save(tmp_path / "page.html")
    assert "video.HeterogeneousSteps(budget=0.75)" in (tmp_path / "page.html").read_text()
    with mmaccel.accelerate(pipe, found.plan) as fast:
        fast(**call)
        assert fast.report.engaged


def test_an_exact_method_needs_no_goal(janus):
    model, arguments = janus
    found = mmaccel.tune(model, SpeculativeJacobi, grid={"window": (4, 8)}, rounds=1, **arguments())
    assert found.plan.exact and found.picked == found.curve[-1] and len(found.curve) == 2
    assert found.curve[0]["metric"] == "surprise" and not found.goal.higher_is_better


def test_answers_are_tuned(tmp_path):
    model, arguments = visual_examples.examples()[0].build(0)
    grid = {"keep": (0.5, 0.9)}
    found = mmaccel.tune(model, DyCoke, grid=grid, target_speedup=1.01, rounds=1, simple=False, **arguments())
    assert {p["metric"] for p in found.curve} == {"agreed"} and json.dumps(found.curve)


def test_the_command_line(tmp_path, capsys, monkeypatch, wan):
    monkeypatch.setattr(VideoCommand, "prepare", lambda _, arguments: (wan[0], {"prompt": arguments.prompt}))
    figures = [(1.2, 40.0), (2.0, 25.0)]
    monkeypatch.setattr(module, "compare", lambda target, *methods, **_: made(methods, figures))
    plan, plot = tmp_path / "plan.json", tmp_path / "curve.png"
    words = ["tune", "video", "x", "--method", "HeterogeneousSteps", "--setting", "budget=0.7,0.5", "-o", str(plan)]
    assert cli.main([*words, "--target-speedup", "1.8", "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert f"saved to {plan}" in out and f"wrote {plot}" in out and plot.is_file()
    assert mmaccel.Plan.load(plan).methods == (HeterogeneousSteps(budget=0.5),)
    plan.unlink()
    plot.unlink()
    assert cli.main([*words, "--target-speedup", "9", "--plot", str(plot)]) == 2
    out = capsys.readouterr()
    assert "no plan" in out.err and "closest" in out.err and plot.is_file() and not plan.exists()
    for more in (["-o", "plan.txt"], ["--plot", "x.svg"], ["--seeds", "0"], ["--setting", "x"], []):
        assert cli.main([*words, *more]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("option", "path", "says"),
    (
        ("--plot", "none/curve.png", "--plot"),
        ("--plot", "curve.svg", "end it with .png"),
        ("-o", "none/plan.json", "-o"),
        ("-o", "plan.txt", "end it with .json"),
    ),
)
def test_paths_are_checked_before_anything_is_measured(option, path, says, tmp_path, capsys, monkeypatch):
    loaded = []
    monkeypatch.setattr(VideoCommand, "prepare", lambda *_: loaded.append("a model"))
    words = ["tune", "video", "x", "--method", "HeterogeneousSteps", "--target-speedup", "1.8"]
    assert cli.main([*words, option, str(tmp_path / path)]) == 2
    assert says in capsys.readouterr().err and not loaded and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("more", "says"), ((["--setting", "budget"], "KEY=V1,V2"), (["--method", "Heterogenous"], "HeterogeneousSteps"))
)
def test_words_are_read_before_a_model_is_loaded(more, says, capsys, monkeypatch):
    monkeypatch.setattr(VideoCommand, "prepare", lambda *_: pytest.fail("a model was loaded"))
    words = ["tune", "video", "x", "--method", "HeterogeneousSteps", "--target-speedup", "1.8"]
    assert cli.main([*words, *more]) == 2 and says in capsys.readouterr().err


def test_a_curve_that_cannot_be_drawn_is_said_before_a_model_is_loaded(tmp_path, capsys, monkeypatch):
    def require():
        raise MissingExtraError("no matplotlib")

    monkeypatch.setattr("mmaccel.comparison.quality_plot.require_matplotlib", require)
    monkeypatch.setattr(VideoCommand, "prepare", lambda *_: pytest.fail("a model was loaded"))
    words = ["tune", "video", "x", "--method", "HeterogeneousSteps", "--target-speedup", "1.8"]
    assert cli.main([*words, "--plot", str(tmp_path / "curve.png")]) == 2
    assert "no matplotlib" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_methods_of_several_classes_have_a_line_each(monkeypatch, wan, tmp_path):
    figures = [(1.2, 40.0), (1.6, 35.0), (1.4, 30.0)]
    monkeypatch.setattr(module, "compare", lambda target, *methods, **_: made(methods, figures))
    grid = [EasyCache(0.05), EasyCache(0.1), TeaCache(0.1)]
    found = mmaccel.tune(wan[0], EasyCache, grid=grid, target_speedup=1.5, prompt="x")
    axes = plot.plot(found.comparison, found.goal, found.picked, found.by_chance, tmp_path / "x.png").axes[0]
    drawn = {text.get_text() for text in axes.texts}
    assert {"video.EasyCache", "threshold 0.05", "threshold 0.1 (picked)", "video.TeaCache()"} <= drawn
    assert axes.get_title() == "video.EasyCache, video.TeaCache on a model"


def test_endings_in_capitals_are_the_same(measured, tmp_path):
    found = measured((1.2, 40.0), (1.6, 35.0), target_speedup=1.5)
    found.save(tmp_path / "PLAN.JSON")
    assert mmaccel.Plan.load(tmp_path / "PLAN.JSON") == found.plan
    found.save(tmp_path / "CURVE.PNG")
    assert (tmp_path / "CURVE.PNG").read_bytes().startswith(b"\x89PNG")
    missed = measured((1.2, 40.0), target_speedup=5)
    with pytest.raises(SettingError, match="no plan to save"):
        missed.save(tmp_path / "MISSED.JSON")


@pytest.mark.parametrize("higher_is_better", (True, False))
def test_a_floor_is_kept_by_what_lies_on_it(higher_is_better):
    goal = Goal(floor=30.0, higher_is_better=higher_is_better)
    worse = 29.9 if higher_is_better else 30.1
    assert goal.is_good({"exact": False, "worst": 30.0}) and not goal.is_good({"exact": False, "worst": worse})


def test_multiples_of_a_default_are_each_measured_once(monkeypatch):
    monkeypatch.setattr("mmaccel.tuning.grid.plan", lambda target, method: None)
    assert [each.window for each in settings_of(None, ZipAR(window=1), None)] == [1, 2, 4]
    with pytest.raises(TypeError, match="3 is not a method"):
        settings_of(None, 3, None)
    with pytest.raises(SettingError, match="the grid is empty: give values, such as grid={'window'"):
        settings_of(None, ZipAR, [])
    with pytest.raises(SettingError, match="'window': 'ab'.*give several values"):
        settings_of(None, ZipAR, {"window": "ab"})


def test_what_limits_a_method_is_varied(monkeypatch):
    monkeypatch.setattr("mmaccel.tuning.grid.plan", lambda target, method: None)
    assert [each.tokens for each in settings_of(None, VidCom2(keep=None, tokens=64), None)] == [32, 64, 128, 256]
    several = PrefillDrop(keep=(0.3, 0.1))
    with pytest.raises(SettingError, match=r"keep=\(0.3, 0.1\)\) has no setting .* name one .* grid=\{'keep'"):
        settings_of(None, several, None)
    assert settings_of(None, several, {"keep": ((0.3, 0.2), 0.3)}) == [PrefillDrop(keep=(0.3, 0.2)), PrefillDrop()]


def test_the_best_of_several_is_the_fastest_and_then_the_better_one():
    def found(speedup, quality, exact=False):
        return {"speedup": speedup, "metric": "m", "m": quality, "worst": quality, "exact": exact}

    assert Goal(floor=1.0).pick([found(2.0, 1.0), found(2.0, 3.0), found(1.5, 9.0)]) == 1
    assert Goal(target_speedup=1.5).pick([found(2.0, 3.0), found(3.0, 3.0), found(1.6, 2.0)]) == 1
    assert Goal(target_speedup=1.5).pick([found(2.0, 3.0), found(1.6, 0.0, True)]) == 1, "exact is best"
    assert Goal(floor=1.0).pick([found(2.0, None), found(1.1, 1.0)]) == 1, "nobody knows whether it keeps the floor"
    surprise = Goal(target_speedup=1.5, higher_is_better=False)
    assert surprise.pick([found(2.0, None), found(1.6, 4.0)]) == 1, "what is unknown is no best"
    assert Goal(target_speedup=2.0).pick([found(1.94, 1.0)]) == 0
    assert Goal(target_speedup=2.0).pick([found(1.93, 1.0)]) is None
    assert Goal(floor=-2.0).floor == -2.0


def test_a_point_of_the_plot_is_labelled_with_what_varies_and_the_pick():
    rows = [{"method": "image.ZipAR", "settings": {"window": size, "verify": False}} for size in (2, 4)]
    pick = {"name": "image.ZipAR", "settings": rows[1]["settings"]}
    varied = plot._varied([row["settings"] for row in rows])
    assert varied == ["window"] and plot._varied([]) == []
    assert [plot._label(row, varied, pick) for row in rows] == ["window 2", "window 4 (picked)"]
    assert plot._label({**rows[1], "method": "image.Other"}, varied, pick) == "window 4"
    alone = {"method": "image.ZipAR", "settings": ZipAR(window=2).settings()}
    assert plot._label(alone, [], None) == "image.ZipAR(window=2)"
    mark = plot._mark({"speedup": 4.0, "quality": 3.0, "quality_worst": 1.0}, "x")
    assert vars(mark) == vars(plot.Mark(0.25, 3.0, "x", 1.0))
