"""Heterogeneous steps: what the contract does not see."""

import copy
import functools
import itertools

import diffusion_loop as loop
import pytest
import sampled_models
import torch
from accelerate import cpu_offload
from diffusers import (
    CogVideoXDDIMScheduler,
    CogVideoXDPMScheduler,
    DDIMScheduler,
    DEISMultistepScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMapEulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    HeliosScheduler,
    HeunDiscreteScheduler,
    KDPM2DiscreteScheduler,
    LMSDiscreteScheduler,
    LTXEulerAncestralRFScheduler,
    MiniMaxH3Scheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
    WanPipeline,
)

import mmaccel
from mmaccel.errors import MemoryLimitError, SettingError, UnsupportedTargetError
from mmaccel.stepping.forecast import Velocities
from mmaccel.stepping.layout import LatentLayout
from mmaccel.stepping.replay import Replay
from mmaccel.stepping.schedule import chosen, default_warmup, groups, refresh
from mmaccel.video import HeterogeneousSteps, examples, trace_of
from mmaccel.video.heterogeneous import heterogeneous_steps, partial
from mmaccel.video.heterogeneous import run as module
from mmaccel.video.heterogeneous.partial import pinned_tokens
from mmaccel.video.samplers import is_one_step, is_repeatable

ONLY_STEPS = {"fraction": 0.0}


def run(target, call, **more):
    return target(**{**call, **more})[0]


def distance(a, b):
    return float((a - b).square().mean().sqrt() / b.std())


@pytest.fixture
def wan():
    pipe, arguments = examples.wan_pipeline()
    return pipe, arguments(1, steps=24)


def test_a_run_too_short_for_its_ends_is_refused(wan):
    pipe, call = wan
    with mmaccel.accelerate(pipe, HeterogeneousSteps(warmup=6, cooldown=6)) as fast:
        with pytest.raises(SettingError, match="at least 12 steps"):
            fast(**{**call, "num_inference_steps": 10})
        assert run(fast, call, num_inference_steps=12).isfinite().all()


FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
SAMPLERS = {
    "Euler": lambda: FlowMatchEulerDiscreteScheduler(shift=3),
    "Heun": lambda: FlowMatchHeunDiscreteScheduler(shift=3),
    "UniPC": lambda: UniPCMultistepScheduler(**FLOW),
    "UniPC of third order": lambda: UniPCMultistepScheduler(**FLOW, solver_order=3),
    "DPM-Solver++": lambda: DPMSolverMultistepScheduler(**FLOW),
    "DEIS": lambda: DEISMultistepScheduler(**FLOW),
    "MiniMax-H3's": lambda: MiniMaxH3Scheduler(shift=3),
    "AnyFlow's": lambda: FlowMapEulerDiscreteScheduler(shift=3),
}
OF_NOISE = {
    "Euler of noise": lambda: EulerDiscreteScheduler(),
    "Heun of noise": lambda: HeunDiscreteScheduler(),
    "DPM-Solver++ of noise": lambda: DPMSolverMultistepScheduler(),
    "DDIM of noise": lambda: DDIMScheduler(steps_offset=1, clip_sample=False),
    "PNDM": lambda: PNDMScheduler(skip_prk_steps=True, steps_offset=1),
    "LMS": lambda: LMSDiscreteScheduler(),
    "KDPM2": lambda: KDPM2DiscreteScheduler(),
    "CogVideoX's": lambda: CogVideoXDDIMScheduler(prediction_type="v_prediction", rescale_betas_zero_snr=True),
}
DRAWING = {
    "SDE": lambda: DPMSolverMultistepScheduler(**FLOW, algorithm_type="sde-dpmsolver++"),
}


@pytest.mark.parametrize("sampler", (*SAMPLERS, "Euler of noise", "Heun of noise"))
@pytest.mark.parametrize("forecast", (0.0, 0.5))
@pytest.mark.parametrize("skipped", ({2: []}, {2: [], 3: [], 4: []}, {1: [], 5: [], 6: [], 8: []},
                                     {2: [], 3: [0], 4: [], 5: [1], 6: [0], 7: []}), ids=str)  # fmt: skip
def test_what_forecasts_missed_of_a_straight_slope_is_made_up_for(sampler, forecast, skipped):
    """Then a velocity is interpolated exactly between the steps that compute it, whatever was forecast meanwhile.

    Steps are skipped but for the tokens that are named, and the third. A multistep sampler gets there only if its
    history is put right too.
    """
    first, slope, x = torch.randn(3, 1, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain, scheduler = ({**SAMPLERS, **OF_NOISE}[sampler]() for _ in range(2))
    plain.set_timesteps(11)  # of which MiniMax-H3's makes 10
    scheduler.set_timesteps(11)
    wanted, velocities, replay, layout = x, Velocities(forecast), Replay(scheduler), LatentLayout(())
    for k, t in enumerate(plain.timesteps):
        level = float(plain.sigmas[k])
        true = first + level * slope
        wanted = plain.step(true, t, wanted)[0]
        before = None if k == 0 else velocities.level.clone()
        merged = velocities.step(level, true, torch.tensor([*skipped[k], 2]) if k in skipped else None)
        replay.arrive(x)
        if k:
            x = replay.correct(x, true, velocities, before, layout)
        if k not in skipped:
            replay.begin(x)

        def make(velocity, sample, t=t):
            return scheduler.step(velocity, t, sample)

        result = make(merged, x)
        replay.note((level, level), merged, make, result)
        x = result[0]
    torch.testing.assert_close(x, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_correction_is_worth_it(wan, sampler):
    pipe, call = wan
    pipe.scheduler = SAMPLERS[sampler]()
    plain, fewer = run(pipe, call), run(pipe, call, num_inference_steps=12)
    found = {}
    for correct in (True, False):
        with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5, correct=correct)) as fast:
            found[correct] = run(fast, call)
            assert not fast.report.warnings
    assert 0 < distance(found[True], plain) < min(distance(found[False], plain), distance(fewer, plain))


@pytest.mark.parametrize("sampler", OF_NOISE)
def test_correction_is_worth_it_where_noise_is_predicted(sampler):
    """With every step computed there is nothing to correct."""
    pipe, arguments = examples.unet_pipeline()
    pipe.scheduler = OF_NOISE[sampler]()
    call, found = arguments(1, steps=24), {}
    plain, fewer = run(pipe, call), run(pipe, call, num_inference_steps=12)
    for correct in (True, False):
        with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5, correct=correct)) as fast:
            found[correct] = run(fast, call)
            assert not fast.report.warnings
    assert 0 < distance(found[True], plain) < min(distance(found[False], plain), distance(fewer, plain))
    passes = range(len(pipe.scheduler.timesteps))
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5, steps=tuple(passes))) as fast:
        assert torch.equal(run(fast, call), plain)


def test_noise_of_a_step_that_is_made_again_is_drawn_once():
    """DDIM draws some with an `eta`, from the caller's generator."""
    pipe, arguments = examples.unet_pipeline()
    call, ends = arguments(1, steps=24, eta=0.5), []
    plain = run(pipe, call, generator=torch.Generator().manual_seed(0))
    for settings in ({"steps": tuple(range(24))}, {"budget": 0.5}):
        generator = torch.Generator().manual_seed(0)
        with mmaccel.accelerate(pipe, HeterogeneousSteps(**settings)) as fast:
            found = run(fast, call, generator=generator)
        ends.append(generator.get_state())
        assert ("steps" in settings) == torch.equal(found, plain) and distance(found, plain) < 0.5
    assert torch.equal(*ends)


@pytest.mark.parametrize("is_before", (True, False), ids=("before the session", "in the session"))
def test_steps_that_are_given_churn_are_not_corrected_and_that_is_said(is_before):
    """Euler's draw noise inside then, which is not told to anyone: made again, they would draw other noise."""
    pipe, arguments = examples.unet_pipeline()
    pipe.scheduler, found = EulerDiscreteScheduler(), []
    sampler = pipe.scheduler

    def churn():
        sampler.step = functools.partial(sampler.step, s_churn=5.0)

    cases = {"budget": 1.0}, {"correct": True}, {"correct": False}, {"tolerance": 1.0}
    for settings in cases:
        plain = sampler.step
        if is_before:
            churn()
        with mmaccel.accelerate(pipe, HeterogeneousSteps(**settings)) as fast:
            if not is_before:
                within, _ = sampler.step, churn()
            generator = torch.Generator().manual_seed(0)
            found.append((run(fast, arguments(1, steps=24), generator=generator), generator.get_state()))
            told = " ".join(fast.report.warnings)
            assert ("not corrected with s_churn of Euler" in told) == settings.get("correct", False)
            assert ("nothing tells whether tolerance= is kept" in told) == ("tolerance" in settings)
            assert fast.report.engaged == ("correct" in settings)
            if not is_before:
                sampler.step = within
        sampler.step = plain
    (whole, end), (corrected, other), (left, another), (watched, last) = found
    assert torch.equal(corrected, left) and all(torch.equal(end, state) for state in (other, another, last))
    assert not torch.equal(left, whole) and torch.equal(watched, whole)


def test_few_steps_that_are_all_computed_need_no_correction():
    pipe, arguments = examples.unet_pipeline()
    pipe.scheduler = EulerDiscreteScheduler()
    pipe.scheduler.step = functools.partial(pipe.scheduler.step, s_churn=5.0)
    with mmaccel.accelerate(pipe, HeterogeneousSteps()) as fast:
        run(fast, arguments(1, steps=6), generator=torch.Generator().manual_seed(0))
        assert len(fast.report.warnings) == 1 and "6 steps are too few" in fast.report.warnings[0]


@pytest.mark.parametrize("sampler", DRAWING)
def test_samplers_that_draw_are_not_corrected_and_that_is_said(wan, sampler):
    """Their steps cannot be made again: random numbers are the user's."""
    pipe, call = wan
    pipe.scheduler = DRAWING[sampler]()
    found = {}
    for correct in (True, False):
        with mmaccel.accelerate(pipe, HeterogeneousSteps(0.4, correct=correct)) as fast:
            torch.manual_seed(0)
            found[correct] = run(fast, call)
            warned = any("forecasts are not corrected" in text for text in fast.report.warnings)
            assert warned == correct
    assert torch.equal(found[True], found[False])


def test_tokens_that_go_different_ways_are_corrected():
    """LTX with given pictures steps every token from a timestep of its own."""
    found = {}
    for settings in ({"correct": True}, {"correct": False}, {"budget": 1.0}):
        pipe, arguments = examples.ltx_pipeline()
        with mmaccel.accelerate(pipe, HeterogeneousSteps(**{"budget": 0.5, **settings})) as fast:
            step = pipe.scheduler.step

            def by_token(output, timestep, latents, step=step, **more):
                return step(output, timestep, latents, per_token_timesteps=timestep.expand(latents.shape[:2]), **more)

            pipe.scheduler.step = by_token
            found[str(settings)] = run(fast, arguments(1, steps=12))
    corrected, left, plain = found.values()
    assert 0 < distance(corrected, plain) < distance(left, plain)


def test_what_a_pipeline_changes_after_a_step_stays(wan):
    """As pipelines that put a given picture back in every step."""
    pipe, call = wan

    def put_back(pipe, step, timestep, kwargs):
        latents = kwargs["latents"].clone()
        latents[:, :, 0] = 0.5
        return {"latents": latents}

    call = {**call, "callback_on_step_end": put_back}
    plain = run(pipe, call)
    for budget in (0.5, 0.8):
        with mmaccel.accelerate(pipe, HeterogeneousSteps(budget)) as fast:
            out = run(fast, call)
        assert torch.equal(out[:, :, 0], plain[:, :, 0]) and 0 < distance(out, plain) < 0.025


def test_what_is_changed_once_is_not_taken_back(wan):
    """Between a step that is forecast and one that corrects it."""
    pipe, call = wan
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5)) as fast:
        run(fast, call)
        shares = fast.report.details["steps"]
        place = next(k for k in range(8, 24) if shares[k] == 0 and shares[k + 1] == 1)

        def push(pipe, step, timestep, kwargs):
            return {"latents": kwargs["latents"] + (step == place)}

        moved = run(fast, {**call, "callback_on_step_end": push})
    plain = run(pipe, {**call, "callback_on_step_end": push})
    assert distance(moved, plain) < 0.1 < distance(run(pipe, call), plain)


def test_more_budget_is_nearer_to_the_baseline(wan):
    pipe, call = wan
    plain = run(pipe, call)
    found = []
    for budget in (0.25, 0.5, 0.9):
        with mmaccel.accelerate(pipe, HeterogeneousSteps(budget, **ONLY_STEPS)) as fast:
            found.append(distance(run(fast, call), plain))
            assert fast.report.work_ratio == pytest.approx(budget, abs=0.03)
    assert found[0] > found[1] > found[2] > 0


def test_all_tokens_in_every_step_is_the_baseline(wan):
    pipe, call = wan
    plain = run(pipe, call)
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.999, interval=3, fraction=1.0)) as fast:
        assert torch.equal(run(fast, call), plain)


@pytest.mark.parametrize("tokens", ("hottest", "random"))
def test_partial_steps_compute_the_tokens_they_say(wan, tokens):
    pipe, call = wan
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.9, interval=4, fraction=0.25, tokens=tokens)) as fast:
        run(fast, call)
        trace = trace_of(fast)
        shares = trace.shares()
        assert shares == fast.report.details["steps"] and set(shares) == {1.0, 0.25}
        assert trace.mask().float().mean(1).tolist() == pytest.approx(shares)
        assert trace.heat_map().shape == (4, 8, 8)
        first = run(fast, call)
        assert torch.equal(run(fast, call), first), "a session repeats itself"


@pytest.mark.parametrize("setting", ({"fraction": 0.0}, {"fraction": 0.2}))
def test_guidance_that_begins_in_the_middle(wan, setting):
    pipe, call = wan

    def begin(pipe, step, timestep, kwargs):
        pipe._guidance_scale = 1.0 if step < 10 else 5.0
        return {}

    call = {**call, "guidance_scale": 1.0, "callback_on_step_end": begin}
    plain = run(pipe, call)
    with mmaccel.accelerate(pipe, HeterogeneousSteps(**setting)) as fast:
        assert distance(run(fast, call), plain) < 0.2
        assert distance(run(fast, call), plain) < 0.2  # also where the schedule is known


@pytest.mark.parametrize("end", (9, 10, 11, 12))
def test_guidance_that_ends_in_the_middle(wan, end):
    """No slope leads from what it gave before to what comes after, and the first step that can be is computed."""
    pipe, call = wan

    def stop(pipe, step, timestep, kwargs):
        pipe._guidance_scale = 8.0 if step < end - 1 else 1.0
        return {}

    call = {**call, "guidance_scale": 8.0, "callback_on_step_end": stop}
    plain = run(pipe, call)
    with mmaccel.accelerate(pipe, HeterogeneousSteps()) as fast:
        error = distance(run(fast, call), plain)
        shares = fast.report.details["steps"]
    assert 1.0 in shares[end : end + 2] and sum(shares) <= len(shares) / 2 + 1
    assert error < 0.2


def test_guidance_branches_see_only_their_own_keys_and_values(wan):
    """With equal prompts both branches are one, so that guidance changes nothing; mixed-up states would show."""
    pipe, call = wan
    same = {**call, "negative_prompt_embeds": call["prompt_embeds"]}
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.6, interval=4, fraction=0.2)) as fast:
        one, other = run(fast, same, guidance_scale=1.5), run(fast, same, guidance_scale=6.0)
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
        alone = run(fast, same, guidance_scale=1.0)  # no second branch at all
        torch.testing.assert_close(one, alone, rtol=1e-3, atol=1e-3)


def test_runs_of_other_sizes_follow_each_other(wan):
    pipe, _ = wan
    _, arguments = examples.wan_pipeline()
    calls = [arguments(1, steps=20), arguments(3, steps=12), arguments(2, frames=6, steps=20), arguments(1, steps=20)]
    method = HeterogeneousSteps(0.6, interval=4, fraction=0.2)
    alone = []
    for call in calls:
        with mmaccel.accelerate(pipe, method) as fast:
            alone.append(run(fast, call))
    with mmaccel.accelerate(pipe, method) as fast:
        for call, expected in zip(calls, alone, strict=True):
            torch.testing.assert_close(run(fast, call), expected, rtol=1e-4, atol=1e-5)
            assert not fast.report.warnings


def test_the_second_of_two_transformers_begins_with_a_full_step():
    """As in Wan 2.2: high noise for one, low noise for the other."""
    pipe, arguments = loop.two_experts(0.6)
    call = arguments(1, steps=24)
    plain = run(pipe, call)
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.7, warmup=2, interval=5, fraction=0.2)) as fast:
        out = run(fast, call)
        shares = fast.report.details["steps"]
        levels = trace_of(fast).levels
    boundary = next(k for k, level in enumerate(levels) if level < 0.6)
    assert shares[boundary] == 1.0 and shares[boundary - 1] < 0.2
    assert 0 < distance(out, plain) < 0.3


@pytest.mark.parametrize("sampler", ("Euler", "UniPC"))
@pytest.mark.parametrize("settings", ({}, {"fraction": 0.2}, {"interval": 3}))
def test_two_transformers_share_one_budget(sampler, settings):
    """The full step with which the second begins is not on top."""
    pipe, arguments = loop.two_experts()
    pipe.scheduler = SAMPLERS[sampler]()
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5, **settings)) as fast:
        run(fast, arguments(1, steps=20))
        shares = fast.report.details["steps"]
        assert fast.report.work_ratio == pytest.approx(0.5, abs=0.1 if "interval" in settings else 0.04), shares
        boundary = next(k for k, level in enumerate(trace_of(fast).levels) if level < 0.8)
    assert shares[0] == shares[boundary] == shares[-1] == 1.0


def test_solved_steps_stay_where_a_second_transformer_takes_over():
    """And the step with which it begins is computed as well."""
    pipe, arguments = loop.two_experts()
    chosen = (0, 1, 4, 10, 11)
    with mmaccel.accelerate(pipe, HeterogeneousSteps(steps=chosen)) as fast:
        for _ in range(2):
            run(fast, arguments(1, steps=12))
            boundary = next(k for k, level in enumerate(trace_of(fast).levels) if level < 0.8)
            shares = fast.report.details["steps"]
            assert [k for k, share in enumerate(shares) if share] == sorted({*chosen, boundary}) != list(chosen)


def test_a_second_transformer_with_fewer_steps_than_the_warm_up_computes_them_all():
    pipe, arguments = loop.two_experts(0.3)
    with mmaccel.accelerate(pipe, HeterogeneousSteps(warmup=4)) as fast:
        run(fast, arguments(1, steps=12))
        boundary = next(k for k, level in enumerate(trace_of(fast).levels) if level < 0.3)
        assert boundary > 8 and fast.report.details["steps"][boundary:] == [1.0] * (12 - boundary)
        assert fast.report.engaged


def test_keys_and_values_are_let_go_after_each_run(wan, monkeypatch):
    pipe, call = wan
    made = []

    class Noted(partial.PartialForward):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(HeterogeneousSteps, "forward", Noted)
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5, fraction=0.2)) as fast:
        run(fast, call)
        assert fast.report.peak_extra_bytes > 0 and [part.cache.nbytes() for part in made] == [0]
        with pytest.raises(RuntimeError, match="stop"):
            run(fast, call, callback_on_step_end=stop)
        assert [part.cache.nbytes() for part in made] == [0], "of a run that broke off too"


def stop(pipe, step, timestep, kwargs):
    if step == 6:
        raise RuntimeError("stop")
    return kwargs


def test_a_few_steps_of_a_multistep_sampler_are_said(wan):
    pipe, call = wan
    for sampler, budget, few in (("UniPC", 0.25, True), ("UniPC", 0.5, False), ("Euler", 0.25, False)):
        pipe.scheduler = SAMPLERS[sampler]()
        with mmaccel.accelerate(pipe, HeterogeneousSteps(budget)) as fast:
            run(fast, call, num_inference_steps=24)
            warned = [text for text in fast.report.warnings if "num_inference_steps=6" in text]
            shares = fast.report.details["steps"]
        assert bool(warned) == few
        assert (0.0 not in shares[:5]) == (sampler == "UniPC" and not few), "full steps at the beginning"


def test_a_timestep_per_token_is_followed():
    """As in Wan 2.2 TI2V."""
    made, arguments = examples.wan_pipeline()
    parts = dict.fromkeys(("tokenizer", "text_encoder", "vae"))
    pipe = WanPipeline(
        **parts, scheduler=made.scheduler, transformer=made.transformer, boundary_ratio=None, expand_timesteps=True
    )
    pipe.set_progress_bar_config(disable=True)
    call = arguments(1, steps=24)
    plain = run(pipe, call)
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.7, interval=4, fraction=0.2)) as fast:
        assert 0 < distance(run(fast, call), plain) < 0.3


def test_tokens_of_a_given_picture_are_never_chosen():
    """Image-to-video of Wan 2.2 TI2V: timestep 0 for the first frame, whose latents are put back in every step."""
    pipe, arguments = examples.wan_pipeline()
    call = arguments(1, steps=20)
    given, seen = torch.zeros(1, 4, 1, 16, 16), []

    def pin(module, args, kwargs):
        timestep = kwargs["timestep"][:, None].repeat(1, 256)
        timestep[:, :64] = 0
        latents = torch.cat([given, kwargs["hidden_states"][:, :, 1:]], 2)
        seen.append(timestep)
        return args, {**kwargs, "timestep": timestep, "hidden_states": latents}

    handle = pipe.transformer.register_forward_pre_hook(pin, with_kwargs=True)
    try:
        with mmaccel.accelerate(pipe, HeterogeneousSteps(0.9, interval=4, fraction=0.25)) as fast:
            run(fast, call)
            computed = trace_of(fast).mask()
    finally:
        handle.remove()
    partial = computed.float().mean(1) < 1
    assert seen and partial.any()
    assert not computed[partial][:, :64].any() and computed[partial][:, 64:].any()


def test_keys_and_values_may_be_kept_elsewhere(wan):
    pipe, call = wan
    found = {}
    for kv in ("native", "fp8", "cpu"):
        with mmaccel.accelerate(pipe, HeterogeneousSteps(0.9, interval=4, fraction=0.2, kv=kv)) as fast:
            found[kv] = run(fast, call), fast.report.peak_extra_bytes, fast.report.details["estimated_bytes"]
    assert torch.equal(found["cpu"][0], found["native"][0])
    assert 0 < distance(found["fp8"][0], found["native"][0]) < 0.05
    assert found["fp8"][1] < 0.51 * found["native"][1]
    assert found["fp8"][1] == pytest.approx(found["fp8"][2], rel=0.1)


def test_memory_is_estimated_counted_and_refused(wan, monkeypatch):
    pipe, call = wan
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.6, interval=4, fraction=0.2)) as fast:
        run(fast, call)
        report = fast.report
        assert report.peak_extra_bytes == pytest.approx(report.details["estimated_bytes"], rel=0.1)
        monkeypatch.setattr(module, "require_memory", refuse)
        with pytest.raises(MemoryLimitError, match="HeterogeneousSteps"):
            run(fast, call)


def test_memory_counts_the_outputs_of_both_branches(wan, monkeypatch):
    pipe, call = wan
    monkeypatch.setattr(module, "count_bytes", lambda *outputs: 10**8 * len(outputs))
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5)) as fast:
        run(fast, call, num_inference_steps=10)
        assert 2 * 10**8 < fast.report.peak_extra_bytes < 3 * 10**8


def test_no_plain_run_has_fewer_than_one_step(wan):
    pipe, call = wan
    pipe.scheduler = SAMPLERS["UniPC"]()
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.1, warmup=1)) as fast:
        run(fast, call, num_inference_steps=4)
        assert "a plain run with num_inference_steps=1 may do as well" in str(fast.report)


def refuse(needed, device, what):
    raise MemoryLimitError(what)


@pytest.mark.parametrize("kv", ("native", "cpu"))
def test_memory_is_asked_for_where_keys_and_values_are_kept(wan, monkeypatch, kv):
    pipe, call = wan
    asked = []
    cpu_offload(pipe.transformer, execution_device=torch.device("cpu"))
    assert next(pipe.transformer.parameters()).is_meta, "where it waits"
    monkeypatch.setattr(module, "require_memory", lambda *given: asked.append(given))
    method = HeterogeneousSteps(0.6, interval=4, fraction=0.2, kv=kv)
    with mmaccel.accelerate(pipe, method) as fast:
        run(fast, call)
        needed, devices, whats = zip(*asked, strict=True)
        assert sum(needed) == fast.report.details["estimated_bytes"] and len(needed) == 2, "one for each branch"
    assert set(whats) == {str(method)}
    assert set(devices) == {"cpu" if kv == "cpu" else call["latents"].device}


@pytest.mark.parametrize("settings", ({}, {"fraction": 0.2}), ids=str)
def test_all_settings_of_the_schedule_are_kept(wan, settings):
    pipe, call = wan
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5, warmup=3, cooldown=2, interval=6, **settings)) as fast:
        run(fast, call)
        expected = refresh(24, 0.5, 3, 2, 6, **settings).fractions
        assert fast.report.details["steps"] == pytest.approx(expected, abs=0.01)


def test_groups_are_ranked_in_full_steps_only(wan):
    """Between two of them a smaller group is a part of every larger one."""
    pipe, call = wan
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.6, "groups", warmup=3, cooldown=2, interval=6)) as fast:
        run(fast, call)
        assert fast.report.details["steps"] == pytest.approx(groups(24, 0.6, 3, 2, 6).fractions, abs=0.01)
        rows, orders = trace_of(fast).mask(), []
    for row in rows:
        if row.all():
            orders.append([])
        else:
            orders[-1].append(row)
    between = [sorted(part, key=lambda row: row.sum()) for part in orders if len(part) > 1]
    assert between and all((b | a).equal(b) for part in between for a, b in itertools.pairwise(part))


def test_a_tolerance_is_refused_where_nothing_is_corrected(wan):
    """Nobody would look: no run would ever compute further steps, and none tells what its forecasts missed."""
    pipe, call = wan
    sampler = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "algorithm_type": "sde-dpmsolver++"}
    pipe.scheduler = DPMSolverMultistepScheduler(**sampler)
    told = r"not corrected with DPMSolverMultistepScheduler, .* tolerance=0\.1 is kept: leave tolerance= out"
    with pytest.raises(UnsupportedTargetError, match=told):
        mmaccel.plan(pipe, HeterogeneousSteps(0.4, tolerance=0.1))
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.4)) as fast:
        run(fast, call)
        assert fast.report.engaged and "missed" not in fast.report.details
    pipe.scheduler = DPMSolverMultistepScheduler(**{**sampler, "algorithm_type": "dpmsolver++"})
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.4, tolerance=1e-9)) as fast:
        run(fast, call)
        assert fast.report.details["missed"] > 0 and fast.report.work_ratio > 0.5


def test_the_forecast_goes_by_its_share_of_the_slope(wan):
    pipe, call = wan
    found = []
    for forecast in (0.0, 0.5, 1.0):
        with mmaccel.accelerate(pipe, HeterogeneousSteps(0.4, forecast=forecast, correct=False)) as fast:
            found.append(run(fast, call, num_inference_steps=12))
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(found, 2))


def test_copies_of_the_scheduler_are_plain(wan):
    """LTX-2 copies the scheduler for its sound."""
    pipe, call = wan
    with mmaccel.accelerate(pipe, HeterogeneousSteps()) as fast:
        copied = copy.deepcopy(pipe.scheduler)
        copied.set_timesteps(5)
        assert copied.step.__self__ is copied and len(copied.timesteps) == 5
        assert len(fast.scheduler.timesteps) != 5


def test_what_is_put_on_top_stays_when_the_session_goes(wan):
    """Offloading wraps `forward` too; taking the session off below it must not undo it."""
    pipe, call = wan
    plain = run(pipe, call)
    fast = mmaccel.accelerate(pipe, HeterogeneousSteps())
    ours, calls = pipe.transformer.forward, []

    def on_top(*args, **kwargs):
        calls.append(1)
        return ours(*args, **kwargs)

    pipe.transformer.forward = on_top
    fast.remove()
    assert torch.equal(run(pipe, call), plain) and len(calls) == 48


def test_short_budgets_warn(wan):
    pipe, call = wan
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.1, **ONLY_STEPS)) as fast:
        run(fast, call, num_inference_steps=12)
        assert any("too small for 12 steps" in text for text in fast.report.warnings)
    for ends in ({"warmup": 1}, {"cooldown": 1}, {"interval": 3}):
        with mmaccel.accelerate(pipe, HeterogeneousSteps(0.1, **ends)) as fast:
            run(fast, call, num_inference_steps=4)
            assert not fast.report.warnings, "asked for"


@pytest.mark.parametrize("steps", (1, 4, 9))
def test_few_steps_are_all_computed_and_it_is_said_once_what_helps(wan, steps):
    pipe, call = wan
    plain = run(pipe, call, num_inference_steps=steps)
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.25)) as fast:
        assert torch.equal(run(fast, call, num_inference_steps=steps), plain) and not fast.report.engaged
        (told,) = fast.report.warnings
        assert f"{steps} steps are too few" in told and "video.SparseAttention(budget=0.1) for long clips" in told
        run(fast, call, num_inference_steps=10)
        assert fast.report.engaged and not any("too few" in text for text in fast.report.warnings)


def test_half_of_the_steps_come_nearer_to_the_converged_clip_than_all(wan):
    pipe, call = wan
    plain, converged = run(pipe, call), run(pipe, call, num_inference_steps=240)
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5, target="converged")) as fast:
        found, report = run(fast, call), fast.report
        assert report.work_ratio == 0.5 and not report.warnings
    assert 0 < distance(found, converged) < distance(plain, converged)


@pytest.mark.parametrize("budget", (0.25, 0.5))
def test_the_converged_clip_is_sought_from_the_same_steps(wan, budget):
    pipe, call = wan
    found = []
    for target in ("plain", "converged"):
        with mmaccel.accelerate(pipe, HeterogeneousSteps(budget, target=target)) as fast:
            run(fast, call)
            found.append(fast.report.details["steps"])
    assert found[0] == found[1]


def test_the_converged_clip_is_the_same_with_every_sampler(wan):
    """Which has its noise levels."""
    pipe, call = wan
    found = {}
    for sampler in ("UniPC", "UniPC of third order"):
        pipe.scheduler = SAMPLERS[sampler]()
        with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5, target="converged")) as fast:
            found[sampler] = run(fast, call)
            assert pipe.scheduler.step_index == 24, "it keeps count"
    torch.testing.assert_close(*found.values())


def test_what_is_converged_is_known_of_flow_matching_only(wan):
    pipe, _ = wan
    for scheduler in (DRAWING["SDE"](), DDIMScheduler(), SAMPLERS["Heun"](), SAMPLERS["AnyFlow's"]()):
        pipe.scheduler = scheduler
        with pytest.raises(UnsupportedTargetError, match="no sampler of flow matching"):
            mmaccel.accelerate(pipe, HeterogeneousSteps(target="converged"))


def test_image_to_image_spends_its_budget_on_the_steps_that_it_makes():
    """It begins in the middle of its noise levels."""
    pipe, start, call = loop.pipeline("WanTransformer3DModel")
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5)) as fast:
        fast(start, call, steps=40, first=20)
        shares = fast.report.details["steps"]
    assert len(shares) == 20 and sum(shares) == 10 and shares[:4] == [1.0] * 4 and not fast.report.warnings
    assert trace_of(fast).levels == pipe.scheduler.sigmas[20:-1].tolist(), "those of the steps that were made"


def test_velocities_that_are_not_finite_are_said(wan):
    pipe, call = wan
    plain = run(pipe, call)
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5)) as fast:
        run(fast, call, callback_on_step_end=lambda pipe, step, t, kwargs: {"latents": kwargs["latents"] / (step < 9)})
        (told,) = fast.report.warnings
        assert "NaN or infinite" in told
        run(fast, call)
        assert not fast.report.warnings
    assert torch.equal(run(pipe, call), plain)


def test_a_transformer_without_its_pipeline_is_refused():
    model, _ = sampled_models.wan()
    with pytest.raises(UnsupportedTargetError, match=r"accelerate\(pipe"):
        mmaccel.accelerate(model, HeterogeneousSteps())


def test_which_samplers_can_be_repeated():
    """Those whose steps draw nothing; of one step are those that depend on nothing but where they start."""

    class Own(FlowMatchEulerDiscreteScheduler):
        pass

    helios = {"stages": 1, "stage_range": [0, 1]}
    for scheduler, repeatable, one_step in (
        (FlowMatchEulerDiscreteScheduler(), True, True),
        (Own(), True, True),
        (EulerDiscreteScheduler(), True, True),
        (HeunDiscreteScheduler(), True, True),
        (EulerAncestralDiscreteScheduler(), False, False),
        (UniPCMultistepScheduler(**FLOW), True, False),
        (UniPCMultistepScheduler(**FLOW, solver_order=1), True, True),
        (UniPCMultistepScheduler(**FLOW, solver_p=DPMSolverMultistepScheduler()), False, False),
        (HeliosScheduler(**helios), True, False),
        (HeliosScheduler(**helios, scheduler_type="dmd"), False, False),
        (FlowMatchEulerDiscreteScheduler(shift=3, stochastic_sampling=True), False, False),
        (DRAWING["SDE"](), False, False),
        (DDIMScheduler(), True, True),
        (CogVideoXDDIMScheduler(), True, True),
        (MiniMaxH3Scheduler(), True, True),
        (FlowMapEulerDiscreteScheduler(), True, True),
        (KDPM2DiscreteScheduler(), True, True),
        (LMSDiscreteScheduler(), True, False),
        (PNDMScheduler(skip_prk_steps=True), True, False),
        (PNDMScheduler(), False, False),
        (CogVideoXDPMScheduler(), False, False),
        (LTXEulerAncestralRFScheduler(), False, False),
    ):
        assert (is_repeatable(scheduler), is_one_step(scheduler)) == (repeatable, one_step), scheduler.config


def test_settings_that_a_sampler_keeps_of_the_one_before_it_are_not_its_own():
    """By `from_config`, as where UniPC of a checkpoint is replaced by Euler's."""
    drawing = DPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++", solver_order=2)
    for cls, before in (
        (FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler(**FLOW)),
        (EulerDiscreteScheduler, drawing),
        (DDIMScheduler, drawing),
        (FlowMatchHeunDiscreteScheduler, FlowMatchEulerDiscreteScheduler(stochastic_sampling=True)),
    ):
        found = cls.from_config(before.config)
        assert is_repeatable(found) and is_one_step(found), found.config
    pipe, _ = examples.wan_pipeline()
    pipe.scheduler = found
    assert "stochastic_sampling" in found.config
    mmaccel.plan(pipe, HeterogeneousSteps())


def test_tokens_that_are_held_have_a_timestep_of_their_own():
    """0 in all rows, where others' is not; at the end of a run it is 0 for all."""

    def pinned(*rows):
        found = pinned_tokens({"timestep": torch.tensor(rows)})
        return None if found is None else found.tolist()

    assert pinned([0, 5, 5], [0, 5, 5]) == [True, False, False]
    assert pinned([0, 5, 5], [0, 0, 5]) == [True, False, False], "in all rows"
    assert pinned([0, 0, 0]) is None and pinned([5, 5, 5]) is None and pinned_tokens({}) is None
    assert pinned_tokens({"timestep": torch.tensor([0, 5])}) is None, "one of each row"


def test_settings_that_choose_tokens():
    for settings, chooses in (
        ({"fraction": 0.2}, True),
        ({"policy": "groups"}, True),
        ({}, False),
        ({"fraction": 0}, False),
        ({"fraction": 0.2, "budget": 1.0}, False),
        ({"fraction": 0.2, "steps": (0, 3)}, False),
        ({"policy": "groups", "steps": (0, 3)}, False),
    ):
        assert HeterogeneousSteps(**settings).chooses_tokens is chooses, settings


def test_settings_reach_the_allocation_of_a_run(wan, monkeypatch):
    pipe, call = wan
    made, allocation = [], module.StepAllocation
    monkeypatch.setattr(
        module, "StepAllocation", lambda *given, **more: made.append((given, more)) or allocation(*given, **more)
    )
    for settings, schedule, rest in (
        ({"forecast": 0.3, "tokens": "random"}, refresh(24, 0.5, default_warmup(24, 0.5)), ("random", False)),
        ({"cooldown": 2, "warmup": 3}, refresh(24, 0.5, 3, 2), ("hottest", False)),
        ({"interval": 3}, refresh(24, 0.5, interval=3), ("hottest", False)),
        ({"fraction": 0.2, "warmup": 2}, refresh(24, 0.5, 2, fraction=0.2), ("hottest", False)),
        ({"policy": "groups", "warmup": 3, "cooldown": 2, "interval": 5}, groups(24, 0.5, 3, 2, 5), ("hottest", True)),
        ({"steps": (0, 5, 23)}, chosen(24, (0, 5, 23)), ("hottest", False)),
    ):
        made.clear()
        method = HeterogeneousSteps(**settings)
        with mmaccel.accelerate(pipe, method) as fast, pytest.raises(RuntimeError, match="stop"):
            run(fast, call, callback_on_step_end=stop)
        ((given, more),) = made
        levels, solved, forecast, correct, sampler, tokens = given
        assert solved == schedule and (tokens, more["by_groups"]) == rest, settings
        assert forecast == method.forecast and correct is True and sampler is pipe.scheduler
        assert len(levels) == 25


def test_the_long_warm_up_is_that_of_the_first_expert(wan, monkeypatch):
    """Where another goes on, the rest of the budget is spread as it is for any run."""
    pipe, call = wan
    made, make = [], heterogeneous_steps.HeterogeneousRun
    monkeypatch.setattr(heterogeneous_steps, "HeterogeneousRun", lambda *given: made.append(make(*given)) or made[-1])
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.5)) as fast, pytest.raises(RuntimeError, match="stop"):
        run(fast, call, callback_on_step_end=stop)
    assert made[0].allocation.schedule == refresh(24, 0.5, default_warmup(24, 0.5)) != refresh(24, 0.5)
    assert made[0].expert == 0 and made[0]._solve(24, 0.5) == refresh(24, 0.5)


@pytest.mark.parametrize("settings", (
    {"budget": 0}, {"budget": 1.1}, {"budget": "half"}, {"policy": "best"}, {"forecast": 2}, {"warmup": 0},
    {"cooldown": -1}, {"interval": 0}, {"fraction": 1.5}, {"tokens": "coldest"}, {"kv": "disk"},
    {"target": "fast"}, {"tolerance": -1}, {"tolerance": 0.1, "correct": False},
    {"steps": 20}, {"steps": (3, 2)}, {"steps": (2,)},
))  # fmt: skip
def test_settings_are_checked(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        HeterogeneousSteps(**settings)


@pytest.mark.parametrize("steps", (1, 3, 9))
def test_too_few_steps_are_the_plain_ones_whatever_the_target(wan, steps):
    pipe, call = wan
    plain, longer = (run(pipe, call, num_inference_steps=count) for count in (steps, 12))
    with mmaccel.accelerate(pipe, HeterogeneousSteps(target="converged")) as fast:
        assert torch.equal(run(fast, call, num_inference_steps=steps), plain) and not fast.report.engaged
        assert any("too few to forecast any" in text for text in fast.report.warnings)
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.99, target="converged")) as fast:
        assert not torch.equal(run(fast, call, num_inference_steps=12), longer)
        assert fast.report.engaged, "also where all steps are computed"


def test_few_steps_that_are_left_are_the_plain_ones_whatever_the_target():
    """As where image-to-image begins near the end of 20."""
    pipe, start, call = loop.pipeline("WanTransformer3DModel")
    plain = pipe(start, call, steps=20, first=14)
    with mmaccel.accelerate(pipe, HeterogeneousSteps(target="converged")) as fast:
        assert torch.equal(fast(start, call, steps=20, first=14), plain) and not fast.report.engaged
        assert any("6 steps are too few to forecast any" in text for text in fast.report.warnings)
