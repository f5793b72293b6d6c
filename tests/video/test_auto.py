"""The one knob."""

import math
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import diffusers
import numpy as np
import pytest
import sampled_models
import torch
from diffusers.pipelines.ltx2.pipeline_output import LTX2PipelineOutput

import mmaccel
from mmaccel.errors import ActiveSessionError, SettingError, UnsupportedTargetError
from mmaccel.testing.contract import Interrupted, broken_after
from mmaccel.tuning.curve import point
from mmaccel.video import EasyCache, HeterogeneousSteps, SparseAttention, auto, examples
from mmaccel.video.heterogeneous import auto as auto_module
from mmaccel.video.heterogeneous.auto import _Curve
from mmaccel.video.quality import as_tensor, tensor_psnr
from mmaccel.video.samplers import asked_steps
from mmaccel.video.trace import trace_of


@pytest.fixture
def wan():
    pipe, arguments = examples.wan_pipeline()
    return pipe, arguments(1, steps=24)


@pytest.fixture
def few_settings(monkeypatch):
    """One budget and one threshold are measured, for tests of what is around that."""
    monkeypatch.setattr(auto_module, "ROUNDS", 1)
    monkeypatch.setattr(auto_module, "THRESHOLDS", auto_module.THRESHOLDS[:1])


FEW = pytest.mark.usefixtures("few_settings")


def test_a_quality_is_kept(wan, tmp_path):
    pipe, call = wan
    plain = pipe(**call)[0]
    with mmaccel.accelerate(pipe, auto(min_psnr=25)) as fast:
        out = fast(**call)[0]
        assert tensor_psnr(plain, out) >= 25 and fast.report.engaged
        curve, picked = fast.plan.measured, fast.plan.methods[0]
        watched = [point for point in curve if point["name"] == "video.HeterogeneousSteps"]
        good = [point for point in watched if point["psnr"] >= 25]
        least = max(good, key=lambda point: point["speedup"])["settings"]
        spare = round(min(max(0.4, 1.5 * least["budget"]), (1 + least["budget"]) / 2), 3)
        assert picked.budget == spare and {**picked.settings(), "budget": least["budget"], "tolerance": None} == least
        assert fast.report.speedup is not None, "the plain run was measured"
        fast.plan.save(tmp_path / "plan.json")
    again = mmaccel.Plan.load(tmp_path / "plan.json")
    assert again.measured == curve and "dB" in str(again)
    with mmaccel.accelerate(pipe, again) as fast:
        assert fast.plan.methods == (picked,) and fast.plan.measured == curve
        fast(**call)  # its steps follow costs that are measured anew, so that on a busy machine the clip is another one
        assert fast.report.engaged


def test_a_run_that_forecasts_miss_more_computes_more(wan):
    """Than that which was measured."""
    pipe, call = wan
    plain = pipe(**call)[0]
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5, forecast=0.0)) as fast:
        free = fast(**call)[0]
        missed = fast.report.details["missed"]
    found = {}
    for share in (2.0, 0.5, 0.0):
        with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5, forecast=0.0, tolerance=share * missed)) as fast:
            found[share] = fast(**call)[0], fast.report.work_ratio
            told = [text for text in fast.report.warnings if "further astray than the tolerance" in text]
            assert bool(told) == (share < 1) == (fast.report.work_ratio > 0.5)
    assert torch.equal(found[2.0][0], free)
    assert tensor_psnr(plain, found[0.0][0]) > tensor_psnr(plain, found[0.5][0]) > tensor_psnr(plain, free)
    assert found[0.0][1] > found[0.5][1]


def test_a_floor_leaves_something_to_spare():
    """Without one, and where nothing is known of misses, the setting is the measured one."""
    steps, other = HeterogeneousSteps(0.3), EasyCache(0.1)
    kept = auto(min_psnr=30)._kept(steps, 0.002)
    assert (kept.budget, kept.tolerance) == (pytest.approx(0.45), pytest.approx(0.002))
    for budget, spare in ((0.1, 0.4), (0.5, 0.75), (0.8, 0.9)):
        assert auto(min_psnr=30)._kept(HeterogeneousSteps(budget), 0.002).budget == pytest.approx(spare)
    assert auto(2.0, min_psnr=30)._kept(steps, 0.002) == HeterogeneousSteps(0.3, tolerance=0.002)
    for method, missed, goal in ((steps, 0.0, {"min_psnr": 30}), (other, 1.0, {"min_psnr": 30}), (steps, 1.0, {})):
        assert auto(**goal)._kept(method, missed) is method


@pytest.mark.parametrize(
    "missed, floor, picked",
    (
        (0.01, {"min_psnr": 30}, HeterogeneousSteps),  # whose runs can be watched
        (0.0, {"min_psnr": 30}, EasyCache),  # a sampler whose steps cannot be made again
        (0.01, {"min_psnr": 60}, EasyCache),  # which alone keeps it
        (0.01, {"target_speedup": 1.5}, EasyCache),  # better at that speed
    ),
)
def test_a_floor_is_left_to_what_can_be_watched(missed, floor, picked):
    curve = object.__new__(_Curve)
    curve.methods, curve.missed = [HeterogeneousSteps(0.4), EasyCache(0.1)], [missed, 0.0]
    measured = zip(curve.methods, (1.8, 2.0), (40.0, 61.0), strict=True)
    curve.points = [point(method, speedup, "psnr", "PSNR dB", quality) for method, speedup, quality in measured]
    assert isinstance(auto(**floor)._pick(curve), picked)


def test_a_speed_up_is_picked_by_quality(wan):
    pipe, call = wan
    with mmaccel.accelerate(pipe, auto(target_speedup=1.2)) as fast:
        fast(**call)
        good = [point for point in fast.plan.measured if point["speedup"] >= 0.97 * 1.2]
        if good:  # of timings on a busy machine nothing is sure
            best = max(good, key=lambda point: (point["psnr"], point["speedup"]))  # two budgets may make the same clip
            assert fast.plan.methods[0].settings() == best["settings"]
        measured = list(fast.plan.measured)
        fast(**call)
        assert fast.plan.measured == measured, "measured once"


def test_a_quality_out_of_reach_runs_plainly(wan):
    pipe, call = wan
    plain = pipe(**call)[0]
    with mmaccel.accelerate(pipe, auto(min_psnr=1000)) as fast:
        assert torch.equal(fast(**call)[0], plain)
        best = max(point["psnr"] for point in fast.plan.measured)
        said = f"kept 1000 dB on the call that was measured, and the nearest to the plain output had {best:.1f} dB"
        assert not fast.report.engaged and said in str(fast.report)
        assert fast.plan.methods == (auto(min_psnr=1000),)
        passes = []
        hook = pipe.transformer.register_forward_hook(lambda *_: passes.append(1))
        fast(**call)
        hook.remove()
        assert len(passes) == 48, "measured once, also where nothing was found"
        assert said in str(fast.report)


@FEW
def test_a_saved_plan_that_found_nothing_is_not_measured_again(wan, tmp_path):
    pipe, call = wan
    call = {**call, "num_inference_steps": 10}
    with mmaccel.accelerate(pipe, auto(min_psnr=1000)) as first:
        plain, told = first(**call)[0], first.report.warnings
        first.plan.save(tmp_path / "plan.json")
    saved, passes = mmaccel.Plan.load(tmp_path / "plan.json"), []
    pipe.transformer.register_forward_hook(lambda *_: passes.append(1))
    with mmaccel.accelerate(pipe, saved) as fast:
        assert torch.equal(fast(**call)[0], plain) and len(passes) == 20
        assert fast.report.warnings == told != [] and fast.plan == saved and fast.plan.measured == saved.measured
        pipe(**call)
        assert fast.report.warnings == told, "also where the pipeline itself is called"


def test_a_curve_of_settings_of_this_method_is_none_of_its_own(wan, monkeypatch):
    """As `tune` makes one: it does not say what to run."""
    pipe, call = wan
    measured = []
    monkeypatch.setattr(auto_module.auto, "_measure", lambda *_: measured.append(1))
    found = point(auto(min_psnr=20), 1.5, "psnr", "PSNR dB", 25.0)
    with mmaccel.accelerate(pipe, replace(mmaccel.plan(pipe, auto(min_psnr=20)), measured=[found])) as fast:
        fast(**call)
    assert measured


@pytest.mark.parametrize("others", ((), (SparseAttention(min_length=64, always=True),)), ids=("alone", "beside others"))
@FEW
def test_a_call_of_the_pipeline_itself_is_told_to_be_plain(wan, others):
    """It measures nothing; of what is picked later it has its share."""
    pipe, call = wan
    call = {**call, "num_inference_steps": 10}
    with mmaccel.accelerate(pipe, auto(min_psnr=5), *others) as fast:
        pipe(**call)
        assert ["measures calls of the session alone" in text for text in fast.report.warnings] == [True]
        assert not fast.plan.measured
        for target in (fast, pipe):
            target(**call)
            assert fast.report.engaged and fast.report.work_ratio < 1
            assert not any("calls of the session alone" in text for text in fast.report.warnings)
    assert "set_timesteps" not in vars(pipe.scheduler)


@FEW
def test_a_call_too_short_to_measure_settles_nothing(wan):
    pipe, call = wan
    with mmaccel.accelerate(pipe, auto(target_speedup=1.2)) as fast:
        plain = fast(**{**call, "num_inference_steps": 2})[0]
        assert any("that makes more of them is measured" in text for text in fast.report.warnings)
        assert not fast.plan.measured
        fast(**call)
        assert fast.report.engaged and fast.plan.measured and not fast.report.warnings
    assert torch.equal(pipe(**{**call, "num_inference_steps": 2})[0], plain)


@FEW
def test_a_call_too_short_to_measure_is_measured_once(wan):
    """And leaves nothing behind; one of more steps is measured."""
    pipe, call = wan
    passes = []
    pipe.transformer.register_forward_hook(lambda *_: passes.append(1))
    with mmaccel.accelerate(pipe, auto(target_speedup=1.2)) as fast:
        around = len(fast.around)
        for steps in (3, 3, 2):
            passes.clear()
            fast(**{**call, "num_inference_steps": steps})
            assert any("changed nothing" in text for text in fast.report.warnings)
        assert len(passes) == 2 * 2 and len(fast.around) == around
        fast(**call)
        assert fast.report.engaged and fast.plan.measured


def test_a_number_of_steps_that_nothing_tells_is_measured_once_too(wan, monkeypatch):
    pipe, call = wan
    measured = []
    monkeypatch.setattr(auto_module, "asked_steps", lambda *_: math.inf)
    monkeypatch.setattr(_Curve, "measure", lambda self, method: measured.append(setattr(self, "plain_seconds", 1.0)))
    with mmaccel.accelerate(pipe, auto()) as fast:
        for _ in range(2):
            fast(**{**call, "num_inference_steps": 2})
        monkeypatch.setattr(auto_module, "asked_steps", lambda *_: 2)
        fast(**{**call, "num_inference_steps": 2})
    assert len(measured) == 2, "one of a known number is"


@FEW
def test_a_baseline_that_its_user_measured_before_comes_back(wan):
    pipe, call = wan
    with mmaccel.accelerate(pipe, auto(min_psnr=20)) as fast:
        with fast.baseline() as plain:
            plain(**call)
        before = fast.report.baseline_seconds
        fast(**call)
        assert fast.report.baseline_seconds != before, "the plain run of the measured call"
        for _ in range(2):
            fast(**call)
            assert fast.report.baseline_seconds == before


@FEW
def test_no_trace_is_of_a_measured_run(wan, monkeypatch):
    pipe, call = wan
    monkeypatch.setattr(auto_module.auto, "_pick", lambda self, curve: EasyCache(0.1))
    with mmaccel.accelerate(pipe, auto(min_psnr=20)) as fast:
        fast(**call)
        with pytest.raises(SettingError, match="keeps no trace"):
            trace_of(fast)
    monkeypatch.setattr(auto_module.auto, "_pick", lambda self, curve: None)
    with mmaccel.accelerate(pipe, auto(min_psnr=20)) as fast:
        fast(**call)
        with pytest.raises(SettingError, match="keeps no trace"):
            trace_of(fast)


@pytest.mark.parametrize(
    ("given", "steps"),
    (
        ({}, 50),
        ({"num_inference_steps": 4}, 4),
        ({"num_inference_steps": 8, "strength": 0.25}, 2),
        ({"timesteps": [900, 500, 100]}, 3),
        ({"num_inference_steps": None}, math.inf),
    ),
)
def test_the_steps_of_a_call_are_read_from_its_arguments(wan, given, steps):
    assert asked_steps(wan[0], ("rocket moves up",), given) == steps


@pytest.mark.parametrize(
    ("given", "steps"), (({"strength": [1.0, 0.8]}, 40), ({"strength": 0.5}, 40), ({"denoise_strength": 0.4}, 16))
)
def test_the_strength_of_ltxs_pictures_leaves_no_step_out(given, steps):
    """It says how firmly they are held; another one says how many steps are left."""
    assert asked_steps(diffusers.LTXConditionPipeline, (), {"num_inference_steps": 40, **given}) == steps


@FEW
def test_what_other_methods_save_is_no_point_of_the_curve(wan):
    """Nor settles a call of which no step can be left out."""
    pipe, call = wan
    other = SparseAttention(min_length=64, always=True)
    with mmaccel.accelerate(pipe, auto(target_speedup=1.2), other) as fast:
        fast(**{**call, "num_inference_steps": 2})
        assert not fast.plan.measured and fast.report.engaged
        assert any("changed nothing" in text for text in fast.report.warnings)
        fast(**call)
        assert fast.plan.measured and fast.plan.methods[1] == other


@FEW
def test_other_methods_of_the_plan_stay_and_are_measured_with_it(wan):
    pipe, call = wan
    other = SparseAttention(min_length=64, always=True)
    with mmaccel.accelerate(pipe, other) as fast:
        alone = fast(**call)[0]
        keys, plain_keys = fast.report.keys, fast.report.plain_keys
    with mmaccel.accelerate(pipe, auto(target_speedup=1.2), other) as fast:
        fast(**call)
        picked = fast.plan.methods[0]
        assert fast.plan.methods == (picked, other) and not isinstance(picked, type(auto()))
        assert 0 < fast.report.keys <= keys and fast.report.keys / fast.report.plain_keys == keys / plain_keys
        best = tensor_psnr(pipe_output(pipe, fast, call), alone)
        assert all(point["psnr"] <= best for point in fast.plan.measured), "none is nearer than the other method alone"


def pipe_output(pipe, fast, call):
    with fast.baseline():
        return pipe(**call)[0]


@FEW
def test_what_another_session_picked_is_taken_over(wan):
    """As `mmaccel.compare` and `tune` give each run what the runs before it learned, after the session began."""
    pipe, call = wan
    with mmaccel.accelerate(pipe, auto(target_speedup=1.2)) as first:
        out = first(**call)[0]
        memory, plan = dict(first.memory), first.plan
    with mmaccel.accelerate(pipe, auto(target_speedup=1.2)) as fast:
        fast.memory.update(memory)
        again = fast(**call)[0]
        assert fast.report.engaged and fast.plan == plan and fast.plan.measured == plan.measured
    nothing = {"chosen": None, "measured": plan.measured, "unpicked": "nothing kept it"}
    with mmaccel.accelerate(pipe, auto(min_psnr=1000)) as fast:
        fast.memory.update(nothing)
        fast(**call)
        assert fast.plan.measured == plan.measured and fast.report.warnings == ["nothing kept it"]
    with mmaccel.accelerate(pipe, plan) as fast:
        assert out.shape == again.shape and fast.plan == plan


def test_a_removed_session_measures_nothing(wan):
    pipe, call = wan
    passes = []
    pipe.transformer.register_forward_hook(lambda *_: passes.append(1))
    fast = mmaccel.accelerate(pipe, auto(target_speedup=1.2))
    fast.remove()
    fast(**call)
    assert len(passes) == 48 and not fast.plan.measured


def test_the_baseline_is_one_plain_run(wan):
    """Not the time of all that was measured to choose."""
    pipe, call = wan
    began = time.perf_counter()
    with mmaccel.accelerate(pipe, auto(min_psnr=20)) as fast:
        fast(**call)
        assert 0 < fast.report.baseline_seconds < (time.perf_counter() - began) / 2


@FEW
def test_no_call_is_compared_with_the_plain_run_of_another(wan):
    pipe, call = wan
    with mmaccel.accelerate(pipe, auto(min_psnr=20)) as fast:
        fast(**call)
        assert fast.report.speedup is not None
        fast(**{**call, "num_inference_steps": 12})
        assert fast.report.speedup is fast.report.baseline_seconds is None
        with fast.baseline() as plain:
            plain(**call)
        for _ in range(2):
            fast(**call)
            assert fast.report.speedup is not None, "which its user chose"


@FEW
def test_generators_and_the_global_state_are_left_as_one_run_leaves_them(wan):
    pipe, call = wan
    call = {name: value for name, value in call.items() if name != "latents"}
    generator = torch.Generator().manual_seed(3)
    pipe(**call, generator=generator)
    after = generator.get_state()
    generator.manual_seed(3)
    state = torch.get_rng_state()
    with mmaccel.accelerate(pipe, auto(min_psnr=20)) as fast:
        fast(**call, generator=generator)
        assert all(point["psnr"] > 15 for point in fast.plan.measured), "all from the same noise"
    assert torch.equal(generator.get_state(), after)
    assert torch.equal(torch.get_rng_state(), state)


@FEW
def test_what_a_pipeline_draws_from_the_global_state_is_the_same_in_every_run(wan):
    """Without a generator, noise comes from the global state: measured from one state, which then is as before."""
    pipe, call = wan
    del call["latents"]
    torch.manual_seed(5)
    plain = pipe(**call)[0]
    torch.manual_seed(5)
    with mmaccel.accelerate(pipe, auto(min_psnr=1000)) as fast:
        assert torch.equal(fast(**call)[0], plain), "measuring drew nothing that the call itself then lacks"
        assert all(point["psnr"] > 15 for point in fast.plan.measured), "all from the same noise"


@FEW
def test_the_noise_of_an_apple_gpu_is_the_same_in_every_run(wan, monkeypatch):
    """Its random state, here a counter, begins each run where the call itself will."""
    pipe, call = wan
    state, begun = [torch.tensor(3)], []
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    monkeypatch.setattr("torch.mps.synchronize", lambda: None)
    monkeypatch.setattr("torch.mps.get_rng_state", lambda device: state[-1])
    monkeypatch.setattr("torch.mps.set_rng_state", lambda value, device: state.append(value))

    def drawn(*_):
        begun.append(state[-1].item())
        state.append(state[-1] + 1)

    handle = pipe.transformer.register_forward_pre_hook(drawn)
    with mmaccel.accelerate(pipe, auto(min_psnr=20)) as fast:
        fast(**call)
        assert begun.count(3) > 2 + len(fast.plan.measured)
    handle.remove()


def test_outputs_of_every_kind_are_compared():
    from PIL import Image

    picture = Image.new("RGB", (4, 4), (255, 0, 0))
    assert as_tensor(([[picture, picture]],)).sum() == 2 * 16
    heard = LTX2PipelineOutput(frames=[[picture]], audio=torch.empty(9, device="meta"))
    assert torch.equal(as_tensor(heard), as_tensor([picture])), "sound is not compared, wherever it is"
    found = as_tensor(([np.array([[1, 2]]), (torch.tensor([3.0]).half(), None), [picture]],))
    assert found.dtype == torch.float32 and found.tolist() == [1, 2, 3, *[1, 0, 0] * 16]
    several = as_tensor({"images": [picture], "latents": torch.full((9,), 4.0)})
    assert torch.equal(several, as_tensor([picture])), "the first of several names, as compare has it"
    assert tensor_psnr(torch.zeros(4), torch.full((4,), 0.1)) == pytest.approx(20.0)
    assert tensor_psnr(torch.tensor([-1.0, 1.0]), torch.tensor([-0.8, 1.2])) == pytest.approx(20.0)


@FEW
def test_measuring_that_breaks_off_is_begun_again(wan, monkeypatch):
    """With the generators as they were, several too; nothing is picked, and nothing stays on the pipeline."""
    pipe, call = wan
    del call["latents"]
    generators = [torch.Generator().manual_seed(seed) for seed in (3, 4)]
    states = [generator.get_state() for generator in generators]
    call = {**arguments_of_two(call), "generator": generators, "num_inference_steps": 10}
    with mmaccel.accelerate(pipe, auto(min_psnr=20)) as fast:
        with broken_after(pipe.transformer.blocks[0].ffn, 30), pytest.raises(Interrupted):
            fast(**call)
        assert all(torch.equal(g.get_state(), s) for g, s in zip(generators, states, strict=True))
        assert fast.plan.methods == (auto(min_psnr=20),) and "forward" not in vars(pipe.transformer)
        fast(**call)
        assert fast.plan.methods != (auto(min_psnr=20),) and fast.plan.measured
    assert "forward" not in vars(pipe.transformer)


@FEW
def test_measuring_that_is_interrupted_settles_nothing(wan):
    """As diffusers interrupts a pipeline: the call returns, with an output that is half made."""
    pipe, call = wan
    interrupted = []

    def interrupt(pipe, step, timestep, tensors):
        if step == 3 and not interrupted:
            interrupted.append(step)
            pipe._interrupt = True
        return tensors

    with mmaccel.accelerate(pipe, auto(target_speedup=1.5)) as fast:
        fast(**call, callback_on_step_end=interrupt)
        assert fast.plan.methods == (auto(target_speedup=1.5),) and not fast.plan.measured
        assert ["interrupted while it measured" in text for text in fast.report.warnings] == [True]
        assert fast.report.speedup is None, "the plain run was not whole"
        fast(**call)
        assert fast.plan.measured and not any("interrupted" in text for text in fast.report.warnings)


@FEW
def test_another_thread_is_refused_while_the_first_call_is_measured(wan):
    pipe, call = wan
    said = []

    def second():
        try:
            fast(**call)
            said.append("it ran")
        except ActiveSessionError as error:
            said.append(str(error))

    def meanwhile(pipe, step, timestep, kwargs):
        if not said:
            other = threading.Thread(target=second)
            other.start()
            other.join()
        return kwargs

    with mmaccel.accelerate(pipe, auto(target_speedup=1.2)) as fast:
        fast(**{**call, "num_inference_steps": 10}, callback_on_step_end=meanwhile)
        assert fast.plan.measured
    assert len(said) == 1 and "in the middle of another call" in said[0]


def arguments_of_two(call):
    """The same for two clips."""
    return {k: torch.cat([v, v]) if isinstance(v, torch.Tensor) else v for k, v in call.items()}


def searched(method, measured):
    """The settings that are tried, where `measured(method)` is the speed-up and the quality of each; and the pick."""
    curve = object.__new__(_Curve)
    curve.points, curve.methods, curve.missed = [], [], []
    for candidate in curve._candidates(method):
        speedup, quality = measured(candidate)
        curve.methods.append(candidate)
        curve.missed.append(0.0)
        curve.points.append(point(candidate, speedup, "psnr", "PSNR dB", quality))
    return curve.methods, method._pick(curve)


def test_budgets_are_halved_towards_the_goal():
    def linear(method):
        budget = getattr(method, "budget", 0.9)
        return 1 / budget, 50 * budget

    for method, expected in (
        (auto(), [0.5, 0.75, 0.625, 0.562]),
        (auto(target_speedup=4.0), [0.25, 0.625, 0.438, 0.344]),
        (auto(target_speedup=1.25), [0.8, 0.9, 0.85, 0.825]),
        (auto(min_psnr=20.0), [0.5, 0.3, 0.4, 0.35]),
        (auto(min_psnr=40.0), [0.5, 0.75, 0.875, 0.812]),
    ):
        tried, picked = searched(method, linear)
        assert [m.budget for m in tried[:4]] == expected, method
        assert [m.threshold for m in tried[4:]] == [0.05, 0.1, 0.2]
        assert picked


def test_what_is_picked_where_the_goal_is_out_of_reach():
    def slow(method):
        return (1.5, 10.0) if method == HeterogeneousSteps(0.25) else (1.1, 30.0)

    assert searched(auto(target_speedup=4.0), slow)[1] == HeterogeneousSteps(0.25), "the fastest"
    assert searched(auto(), lambda method: (1.5 + method.threshold if hasattr(method, "threshold") else 1.0, 9.0))[
        1
    ] == EasyCache(0.2)
    assert searched(auto(min_psnr=40), slow)[1] is None
    speedups = {0.1: (2.2, 20.0), 0.2: (5.0, 1.0)}
    found = searched(auto(), lambda method: speedups.get(getattr(method, "threshold", 0), (1.0, 9.0)))[1]
    assert found == EasyCache(0.1), "twice as fast, and not more, if nothing is asked for"
    assert searched(auto(target_speedup=1.4, min_psnr=20), slow)[1] is None, "both"


@pytest.mark.parametrize(
    "settings", ({"target_speedup": 1.0}, {"min_psnr": 0}, {"target_speedup": "fast"}, {"min_psnr": -3.0})
)
def test_settings_are_checked(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        auto(**settings)


def test_a_transformer_without_its_pipeline_is_refused_at_once():
    model, _ = sampled_models.wan()
    with pytest.raises(UnsupportedTargetError, match="needs the steps of a pipeline"):
        mmaccel.plan(model, auto())


def test_settings_that_did_not_engage_are_no_points_of_the_curve(wan, monkeypatch):
    """Whatever the clock says of them; the first plain run is the slower one of a process, and not the baseline."""
    pipe, call = wan
    times = iter([0.0, 9.0, 10.0, 12.0, *(20.0 + k / 2 for k in range(99))])
    monkeypatch.setattr(auto_module, "THRESHOLDS", (1e-9,))
    monkeypatch.setattr(auto_module, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    with mmaccel.accelerate(pipe, auto(target_speedup=1.5)) as fast:
        fast(**{**call, "num_inference_steps": 10})
        assert fast.report.baseline_seconds == 2.0
        assert {point["name"] for point in fast.plan.measured} == {"video.HeterogeneousSteps"}
        assert {point["speedup"] for point in fast.plan.measured} == {4.0}


def test_the_accelerator_is_waited_for_before_each_look_at_the_clock(monkeypatch):
    order, curve = [], object.__new__(_Curve)
    monkeypatch.setattr(auto_module, "time", SimpleNamespace(perf_counter=lambda: order.append("look") or 0.0))
    monkeypatch.setattr(auto_module, "synchronize", lambda: order.append("wait"))
    curve.generators, curve.states, curve.args, curve.kwargs = [], [], ("run",), {}
    curve.session = SimpleNamespace(target=order.append, run=nullcontext)
    curve._run()
    assert order == ["wait", "look", "run", "wait", "look"]
