"""EasyCache as a hook that diffusers puts on a transformer, beside the session that does the same."""

import diffusion_loop as loop
import pytest
import torch
from diffusers.hooks import HookRegistry

import mmaccel
from mmaccel.errors import ConflictError, SettingError
from mmaccel.video import EasyCache, EasyCacheHook, examples

SETTINGS = {"threshold": 0.4, "warmup": 3, "cooldown": 1}


@pytest.mark.parametrize("build", (examples.wan_pipeline, examples.flux_pipeline))
def test_the_outputs_are_those_of_a_session(build):
    pipe, arguments = build()
    given = {**arguments(), "num_inference_steps": 12}
    plain = pipe(**given)[0]
    with mmaccel.accelerate(pipe, EasyCache(**SETTINGS)) as fast:
        expected, computed = fast(**given)[0], fast.report.details["computed"]
    hook = EasyCacheHook(12, **SETTINGS)
    registry = HookRegistry.check_if_exists_or_initialize(pipe.transformer)
    registry.register_hook(hook, "easy_cache")
    for _ in range(2):
        assert torch.equal(pipe(**given)[0], expected)
        assert hook.computed == [done > 0 for done in computed] and False in hook.computed
    registry.remove_hook("easy_cache")
    assert torch.equal(pipe(**given)[0], plain) and not torch.equal(expected, plain)


def test_a_timestep_by_another_name():
    """Z-Image calls it `t`, and takes its latents in a list."""
    more = {**SETTINGS, "threshold": 1e6}
    pipe, start, call = loop.pipeline("ZImageTransformer2DModel")
    with mmaccel.accelerate(pipe, EasyCache(**more)) as fast:
        expected, computed = fast(start, call, steps=12), fast.report.details["computed"]
    hook = EasyCacheHook(12, **more)
    HookRegistry.check_if_exists_or_initialize(pipe.transformer).register_hook(hook, "easy_cache")
    assert torch.equal(pipe(start, call, steps=12), expected)
    assert hook.computed == [done > 0 for done in computed] and False in hook.computed


def test_off_loading_comes_after_it():
    """The hooks of `enable_model_cpu_offload` go after each call and come back, without what was put on top of them."""
    pipe, arguments = examples.wan_pipeline()
    call, hook = {**arguments(), "num_inference_steps": 12}, EasyCacheHook(12, **SETTINGS)
    pipe.enable_model_cpu_offload(device="cpu")
    registry = HookRegistry.check_if_exists_or_initialize(pipe.transformer)
    with pytest.raises(ConflictError, match="WanTransformer3DModel is off-loaded .* put EasyCacheHook on first"):
        registry.register_hook(hook, "easy_cache")
    assert not registry.hooks
    pipe.remove_all_hooks()
    registry.register_hook(hook, "easy_cache")
    expected, computed = pipe(**call)[0], hook.computed.copy()
    pipe.enable_model_cpu_offload(device="cpu")
    for _ in range(2):
        hook.computed.clear()
        assert torch.equal(pipe(**call)[0], expected) and hook.computed == computed


def hooked(hook, calls):
    """A model that notes when it is called."""

    class Denoiser(torch.nn.Module):
        def forward(self, x, timestep):
            calls.append(timestep)
            return 2 * x

    model = Denoiser()
    HookRegistry.check_if_exists_or_initialize(model).register_hook(hook, "easy_cache")
    return model


def test_an_output_is_reused_as_it_is():
    hook, calls = EasyCacheHook(4, threshold=1e6, warmup=2, cooldown=0), []
    model = hooked(hook, calls)
    outputs = [model(torch.full((1, 2), x), timestep) for x, timestep in ((1.0, 4), (2.0, 3), (3.0, 2), (4.0, 1))]
    assert calls == [4, 3] and [float(output[0, 0]) for output in outputs] == [2, 4, 4, 4]


def test_time_may_run_either_way():
    """Lumina 2 and Ideogram 4 tell how much of a run is done; where that turns back a run begins."""
    hook, calls = EasyCacheHook(4, threshold=1e6, warmup=2, cooldown=0), []
    model = hooked(hook, calls)
    for _ in range(2):
        calls.clear()
        for done in (0.0, 0.25, 0.5, 0.75):
            model(torch.full((1, 2), 1 + done), done)
        assert calls == [0.0, 0.25] and hook.computed == [True, True, False, False]


def test_a_first_frame_that_is_held_says_nothing_of_the_step():
    """Its own timestep stays where it is, which is 0 in most models."""
    hook, calls = EasyCacheHook(4, threshold=1e6, warmup=2, cooldown=0), []
    model = hooked(hook, calls)
    for level in (4.0, 3.0, 2.0, 1.0):
        model(torch.full((1, 2), level), torch.tensor([[0.0, level]]))
    assert len(calls) == 2 and hook.computed == [True, True, False, False]


def test_runs_of_one_step_are_runs_of_their_own():
    hook, calls = EasyCacheHook(1), []
    model = hooked(hook, calls)
    for _ in range(3):
        model(torch.ones(1, 2), 999)
    assert calls == [999] * 3 and hook.computed == [True]


def test_what_cannot_be_is_said():
    with pytest.raises(SettingError, match=r"steps=0: it must be an integer"):
        EasyCacheHook(0)
    with pytest.raises(SettingError, match="threshold"):
        EasyCacheHook(10, threshold=-1)
    model = torch.nn.Linear(2, 2)
    HookRegistry.check_if_exists_or_initialize(model).register_hook(EasyCacheHook(4), "easy_cache")
    with pytest.raises(SettingError, match="Linear is not told the timestep"):
        model(torch.ones(1, 2))
