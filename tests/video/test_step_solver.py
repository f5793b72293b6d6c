"""Steps solved from plain runs, and what all calibrations have in common."""

import weakref

import diffusion_loop as loop
import numpy as np
import pytest
import sampled_models
import torch

import mmaccel
from mmaccel import video
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.stepping import best_steps
from mmaccel.stepping.schedule import chosen
from mmaccel.testing.contract import Interrupted, broken_after
from mmaccel.video import HeterogeneousSteps, calibrate_steps, examples
from mmaccel.video.heterogeneous import step_solver
from mmaccel.video.heterogeneous.step_solver import record_products

PROMPTS = ("a fox", "three hens")


class Prompted(loop.Loop):
    """Starts from other noise for every prompt."""

    def __call__(self, prompt, call, output_type=None, **more):
        self.asked = [*getattr(self, "asked", ()), (prompt, output_type)]
        return super().__call__([loop.noise(1, 4, 2, 8, 8, seed=len(prompt))], call, **more)


class OffLoaded(Prompted):
    model_cpu_offload_seq = "transformer"

    def __call__(self, *args, **kwargs):
        result = super().__call__(*args, **kwargs)
        self.maybe_free_model_hooks()  # as the calls of diffusers' pipelines end
        return result


def prompted(kind=Prompted):
    made, _, call = loop.pipeline("WanTransformer3DModel")
    return kind(made.transformer, made.scheduler), call


@pytest.mark.parametrize(
    "calibrate",
    (calibrate_steps, video.calibrate_mag_cache, video.calibrate_tea_cache),
)
def test_a_calibration_first_checks_the_pipeline(calibrate):
    model, arguments = sampled_models.wan()
    with pytest.raises(UnsupportedTargetError, match="needs the steps of a pipeline"):
        calibrate(model, **arguments())


def test_mag_cache_is_not_calibrated_where_it_does_not_work():
    pipe, start, call = loop.pipeline("LTX2VideoTransformer3DModel")
    with pytest.raises(UnsupportedTargetError, match="diffusers does not list its blocks"):
        video.calibrate_mag_cache(pipe, start=start, call=call)


def test_steps_are_solved_for_all_prompts(monkeypatch):
    pipe, call = prompted()
    taken = []
    monkeypatch.setattr(step_solver, "best_steps", lambda *given: taken.append(given) or (0, 5))
    method = calibrate_steps(pipe, PROMPTS, 0.5, call=call)
    assert method == HeterogeneousSteps(0.5, steps=(0, 5))
    assert pipe.asked == [(prompt, "latent") for prompt in PROMPTS], "nothing is decoded"
    runs = record_products(pipe, PROMPTS, {"call": call, "output_type": "pt"})
    assert pipe.asked[2:] == [(prompt, "pt") for prompt in PROMPTS], "unless it is asked for"
    one, two = (products for products, *_ in runs)
    ((products, levels, count),) = taken
    assert np.allclose(products, one + two) and not np.allclose(one, two)
    assert levels == runs[0][1] and count == 3


def test_prompts_come_before_one_among_the_arguments():
    """In their order; without any it is the one, in a single run, and a string is one of them."""
    pipe, call = prompted()
    more = {"call": call, "prompt": "a single one", "steps": 2}
    assert len(record_products(pipe, PROMPTS, more)) == 2
    assert len(record_products(pipe, [], more)) == len(record_products(pipe, None, more)) == 1
    assert len(record_products(pipe, "a fox", more)) == 1
    assert [prompt for prompt, _ in pipe.asked] == [*PROMPTS, "a single one", "a single one", "a fox"]


def test_a_calibration_that_breaks_off_leaves_nothing():
    pipe, call = prompted()
    with broken_after(pipe.transformer.blocks[0].ffn, 5), pytest.raises(Interrupted):
        calibrate_steps(pipe, PROMPTS, call=call, steps=2)
    assert len(pipe.asked) == 2, "in the run of the second prompt"
    assert not {"forward", "step", "set_timesteps"} & {*vars(pipe.transformer), *vars(pipe.scheduler)}
    mmaccel.accelerate(pipe, HeterogeneousSteps()).remove()


@pytest.mark.parametrize(
    ("calibrate", "settings"),
    (
        (calibrate_steps, {"budget": 20}),
        (video.calibrate_tea_cache, {"threshold": "0.2"}),
        (video.calibrate_mag_cache, {"threshold": -1}),
    ),
)
def test_a_setting_is_refused_before_anything_runs(calibrate, settings):
    pipe, call = prompted()
    with pytest.raises(SettingError, match=next(iter(settings))):
        calibrate(pipe, PROMPTS, **settings, call=call)
    assert "asked" not in vars(pipe)


def test_rounded_levels_may_be_equal():
    """As timesteps of many Karras or Lu levels are."""
    velocities = np.arange(6.0)[:, None] ** 2
    found = best_steps(velocities @ velocities.T, [1, 0.5, 0.1, 0.1, 0.1, 0.1, 0], 4)
    assert len(found) == 4 and (found[0], found[-1]) == (0, 5)


def test_ratios_are_the_mean_of_all_prompts():
    pipe, call = prompted()
    one, two, both = (video.calibrate_mag_cache(pipe, p, call=call).ratios for p in (PROMPTS[:1], PROMPTS[1:], PROMPTS))
    assert one != two and both == pytest.approx([(a + b) / 2 for a, b in zip(one, two, strict=True)])


def test_all_prompts_of_an_off_loaded_pipeline_are_measured():
    (pipe, call), calibrate = prompted(OffLoaded), video.calibrate_mag_cache
    expected = calibrate(pipe, PROMPTS, call=call)
    pipe.enable_model_cpu_offload(device="cpu")
    assert calibrate(pipe, PROMPTS, call=call) == expected != calibrate(pipe, PROMPTS[:1], call=call)


def test_calibrated_steps_run_and_leave_no_trace():
    pipe, arguments = examples.wan_pipeline()
    call = arguments(1, steps=20)
    plain = pipe(**call)[0]
    before = mmaccel.testing.contract.snapshot(pipe)
    method = calibrate_steps(pipe, budget=0.4, **call)
    assert (
        isinstance(method, HeterogeneousSteps)
        and method.budget == 0.4
        and len(method.steps) == 8
        and method.steps[0] == 0
        and method.steps[-1] == 19
    )
    assert mmaccel.testing.contract.snapshot(pipe) == before
    with mmaccel.accelerate(pipe, method) as fast:
        out = fast(**call)[0]
        assert [k for k, share in enumerate(fast.report.details["steps"]) if share == 1] == list(method.steps)
        with pytest.raises(SettingError, match="calibrate with 10"):
            fast(**{**call, "num_inference_steps": 10})
        with pytest.raises(SettingError, match="step 19 is the last to be computed, and the run has 50.*with 50"):
            fast(**{**call, "num_inference_steps": 50})
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.4, fraction=0)) as fast:
        spread = fast(**call)[0]
    assert (out - plain).square().mean() < 1.5 * (spread - plain).square().mean()


def test_steps_of_a_run_that_starts_further_down_are_solved_among_those_it_makes():
    pipe, call = prompted()
    later = {"prompt": PROMPTS[0], "call": call, "steps": 12, "first": 6}
    _, levels, first = record_products(pipe, None, later)[0]
    assert first == 6 and levels == pipe.scheduler.sigmas[6:].tolist()
    method = calibrate_steps(pipe, budget=0.5, **later)
    assert len(method.steps) == 3 and method.steps[0] == 6 and method.steps[-1] == 11
    with mmaccel.accelerate(pipe, method) as fast:
        fast(**later)
        shares = fast.report.details["steps"]
        assert [step for step, share in enumerate(shares, 6) if share == 1] == list(method.steps)


def test_steps_of_a_run_that_starts_further_down_are_none_of_a_whole_one():
    pipe, call = prompted()
    more = {"prompt": PROMPTS[0], "call": call, "steps": 12}
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5, steps=(6, 8, 11))) as fast:
        with pytest.raises(SettingError, match="step 6 is the first to be computed, and the run begins with step 0"):
            fast(**more)
        fast(**more, first=3)  # as far from it as any two of them


def test_steps_may_leave_out_as_many_at_the_end_as_between():
    assert chosen(9, (0, 1, 5)).fractions == (1, 1, 0, 0, 0, 1, 0, 0, 0)
    assert chosen(10, (0, 1, 5)) and chosen(4, (0, 1, 2))
    for steps, computed in ((11, (0, 1, 5)), (5, (0, 1, 2))):
        with pytest.raises(SettingError, match=f"the run has {steps} steps"):
            chosen(steps, computed)


def test_velocities_are_those_after_guidance():
    pipe, arguments = examples.wan_pipeline()
    products, levels, _ = record_products(pipe, None, arguments(1, steps=6))[0]
    assert products.shape == (6, 6) and len(levels) == 7 and levels[-1] == 0
    other, *_ = record_products(pipe, None, arguments(1, steps=6, guidance_scale=1.0))[0]
    assert not np.allclose(products[0], other[0])


def test_velocities_of_one_prompt_at_a_time_are_kept(monkeypatch):
    pipe, call = prompted()
    multiply, seen, alive = step_solver._products, [], []

    def noted(velocities):
        alive.append(sum(velocity() is not None for velocity in seen))
        seen.extend(map(weakref.ref, velocities))
        return multiply(velocities)

    monkeypatch.setattr(step_solver, "_products", noted)
    record_products(pipe, PROMPTS, {"call": call})
    assert len(seen) == 2 * loop.STEPS and alive == [0, 0]


def test_products_are_no_coarser_under_autocast():
    velocities = list(torch.randn(5, 64, generator=torch.Generator().manual_seed(0)))
    expected = step_solver._products(velocities)
    with torch.autocast("cpu", torch.bfloat16):
        assert np.array_equal(step_solver._products(velocities), expected)


def test_a_budget_of_less_than_two_steps_says_which_is_enough():
    pipe, call = prompted()
    with pytest.raises(
        SettingError, match=r"budget=0\.2 of 6 steps is 1, and at least 2 are computed: try budget=0\.33"
    ):
        calibrate_steps(pipe, PROMPTS[:1], 0.2, call=call)
    assert len(calibrate_steps(pipe, PROMPTS[:1], 0.33, call=call).steps) == 2


def test_steps_are_checked():
    for steps in ((1,), (3, 2), (0, 0, 1), (-1, 2)):
        with pytest.raises(SettingError, match="steps"):
            HeterogeneousSteps(steps=steps)
    assert HeterogeneousSteps.from_settings({"steps": [0, 1, 5]}).steps == (0, 1, 5)
