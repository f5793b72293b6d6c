"""diffusers' own caches, made safe: branches apart, nothing stale, nothing left behind."""

import inspect
import itertools
import math
import re
from pkgutil import iter_modules
from types import SimpleNamespace

import diffusers
import diffusion_loop as loop
import pytest
import torch
from diffusers import hooks
from diffusers.configuration_utils import FrozenDict

import mmaccel
from mmaccel import video
from mmaccel.demos.families.models import build
from mmaccel.errors import ConflictError, SettingError, UnsupportedTargetError
from mmaccel.stepping.run import SamplerRun
from mmaccel.testing.contract import Interrupted, broken_after
from mmaccel.video import examples, private
from mmaccel.video.samplers import levels_of, timestep_of

WAN, FLUX = "WanTransformer3DModel", "FluxTransformer2DModel"
METHODS = (
    video.FirstBlockCache(threshold=1e6),
    video.TaylorSeer(interval=3, warmup=2),
    video.MagCache(ratios=(1.0, 1.0), warmup=1),
    video.PyramidAttentionBroadcast(timesteps=(0, 1000), cross=2),
    video.FasterCache(timesteps=(-1, 1000)),
)
each = pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)


def predictions(pipe, run):
    seen = []
    hook = pipe.transformer.register_forward_hook(lambda module, args, output: seen.append(output[0].clone()))
    run()
    hook.remove()
    return seen


def batch_sizes(pipe):
    """Rows of every call of the first block, in a list that grows."""
    sizes = []
    pipe.transformer.transformer_blocks[0].register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(len(kwargs["hidden_states"])), with_kwargs=True
    )
    return sizes


@each
def test_branches_do_not_mix(method):
    """The prompt's predictions are the same, whatever the other branch is and whether there is one."""
    pipe, start, call = loop.pipeline(WAN)
    with mmaccel.accelerate(pipe, method) as fast:
        alone = predictions(pipe, lambda: fast(start, call, still=True, branches=lambda step: (1,)))
        beside = predictions(pipe, lambda: fast(start, call, still=True))
    assert all(torch.equal(a, b) for a, b in zip(alone, beside[::2], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(beside[::2], beside[1::2], strict=True))


def test_diffusers_own_broadcast_mixes_them():
    """The negative control of the test above."""
    pipe, start, call = loop.pipeline(WAN)
    plain = predictions(pipe, lambda: pipe(start, call, still=True))
    settings = {"spatial_attention_block_skip_range": 2, "spatial_attention_timestep_skip_range": (0, 1000)}
    config = hooks.PyramidAttentionBroadcastConfig(**settings, current_timestep_callback=lambda: 500)
    pipe.transformer.enable_cache(config)
    mixed = predictions(pipe, lambda: pipe(start, call, still=True))
    assert torch.equal(mixed[0], plain[0]) and not torch.allclose(mixed[1], plain[1], rtol=1e-3)


@each
def test_a_branch_that_was_away_starts_anew(method):
    pipe, start, call = loop.pipeline(WAN)
    with mmaccel.accelerate(pipe, method) as fast:
        fast(start, call, steps=8, branches=lambda step: (1,) if step in (3, 4) else (1, 0))
        done = fast.report.details.get("computed") or fast.report.details["attention"]
        assert done[9] == 1  # the other branch of step 5: six passes, two prompts alone, one prompt


@each
def test_nothing_is_left_on_a_pipeline_that_never_ran(method):
    pipe, arguments = examples.wan_pipeline()
    names = {module: set(vars(module)) for module in pipe.transformer.modules()}
    call = arguments(steps=5)
    with mmaccel.accelerate(pipe, method) as fast:
        expected = fast(**call)[0]
        with broken_after(pipe.transformer.blocks[0].ffn, 2), pytest.raises(Interrupted):
            fast(**call)
        hooked = [m for m in pipe.transformer.modules() if m is not pipe.transformer and private.has_registry(m)]
        assert not hooked, "a broken run leaves no hooks"
        assert torch.equal(fast(**call)[0], expected)
    assert names == {module: set(vars(module)) for module in pipe.transformer.modules()}


def test_hooks_of_others_stay():
    """Layerwise casting, offloading and such use the same registries."""
    pipe, start, call = loop.pipeline(WAN)
    other, seen = hooks.ModelHook(), []
    other.pre_forward = lambda module, *args, **kwargs: (seen.append(1), (args, kwargs))[1]
    block = pipe.transformer.blocks[0]
    hooks.HookRegistry.check_if_exists_or_initialize(block).register_hook(other, "other")
    forward = vars(block)["forward"]
    for method in METHODS:
        seen.clear()
        with mmaccel.accelerate(pipe, method) as fast:
            fast(start, call)
            assert seen
        assert vars(block)["forward"] is forward and list(block._diffusers_hook.hooks) == ["other"]


@each
def test_a_cache_that_is_on_already_is_refused(method):
    pipe, _, _ = loop.pipeline(WAN)
    pipe.transformer.enable_cache(hooks.FirstBlockCacheConfig())
    with pytest.raises(ConflictError, match=r"FirstBlockCacheConfig enabled already: call .disable_cache\(\)"):
        mmaccel.accelerate(pipe, method)


def put_easy_cache_on(denoiser):
    hooks.HookRegistry.check_if_exists_or_initialize(denoiser).register_hook(video.EasyCacheHook(6), "easy_cache")


CACHES = {
    "enabled": lambda denoiser: denoiser.enable_cache(
        hooks.MagCacheConfig(mag_ratios=[1.0] * 6, num_inference_steps=6)
    ),
    "applied": lambda denoiser: hooks.apply_first_block_cache(denoiser, hooks.FirstBlockCacheConfig(threshold=0.2)),
    "our own": put_easy_cache_on,
}


@pytest.mark.parametrize("put_on", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize(
    "method", (video.HeterogeneousSteps(), *METHODS[::2]), ids=lambda method: type(method).__name__
)
def test_a_cache_is_refused_however_and_whenever_it_came(method, put_on):
    pipe, start, call = loop.pipeline(WAN)
    with mmaccel.accelerate(pipe, method) as fast:
        fast(start, call)
        put_on(pipe.transformer)
        before = [list(private.diffusers_hooks(module).items()) for module in pipe.transformer.modules()]
        with pytest.raises(ConflictError, match="already: call"):
            fast(start, call)
    with pytest.raises(ConflictError, match="already: call"):
        mmaccel.accelerate(pipe, method)
    assert before == [list(private.diffusers_hooks(module).items()) for module in pipe.transformer.modules()]


def test_hooks_are_taken_off_as_the_refusal_says():
    pipe, start, call = loop.pipeline(WAN)
    CACHES["applied"](pipe.transformer)
    with pytest.raises(ConflictError) as error:
        mmaccel.accelerate(pipe, video.EasyCache())
    registry = hooks.HookRegistry.check_if_exists_or_initialize(pipe.transformer)
    for name in re.search("for each of (.*), HookRegistry", str(error.value)).group(1).split(", "):
        registry.remove_hook(name)
    with mmaccel.accelerate(pipe, video.EasyCache()) as fast:
        assert fast(start, call).isfinite().all()


@each
def test_warmup_and_cooldown_are_computed(method):
    pipe, start, call = loop.pipeline(WAN)
    settings = {**method.settings(), "warmup": 4, "cooldown": 2}
    with mmaccel.accelerate(pipe, type(method)(**settings)) as fast:
        fast(start, call, steps=10)
        done = (fast.report.details.get("computed") or fast.report.details["attention"])[::2]
    assert done[:4] == [1.0] * 4 and done[-2:] == [1.0] * 2 and min(done) < 1, done


def test_nothing_reused_is_said():
    pipe, start, call = loop.pipeline(WAN)
    with mmaccel.accelerate(pipe, video.PyramidAttentionBroadcast(timesteps=(0, 1))) as fast:
        fast(start, call)
        assert "PyramidAttentionBroadcast reused nothing: raise its threshold or interval" in str(fast.report)
    with mmaccel.accelerate(pipe, video.FirstBlockCache(1e6, warmup=4, cooldown=2)) as fast:
        fast(start, call)
        assert "warmup and cooldown take 6 steps and the run has 6" in str(fast.report)


@pytest.mark.parametrize("method", (METHODS[1], METHODS[3]), ids=lambda method: type(method).__name__)
def test_a_run_too_short_to_reuse_anything_is_not_said_of_a_call_that_did(method):
    """As of FreeInit, whose first runs are short."""

    class Twice(loop.Loop):
        def __call__(self, start, call):
            super().__call__(start, call, steps=2)
            return super().__call__(start, call, steps=9)

    made, start, call = loop.pipeline(WAN)
    pipe = Twice(made.transformer, made.scheduler)
    with mmaccel.accelerate(pipe, type(method)(**{**method.settings(), "warmup": 2})) as fast:
        fast(start, call)
        assert min(fast.report.details["attention"]) < 1 and not fast.report.warnings


def test_mag_cache_measures_the_ratios_that_diffusers_prints(capsys):
    pipe, start, call = loop.pipeline(WAN)
    settings = {"steps": 7, "branches": lambda step: (1,)}
    plain = pipe(start, call, **settings)
    method = video.calibrate_mag_cache(pipe, start=start, call=call, **settings)
    assert torch.equal(pipe(start, call, **settings), plain)
    pipe.transformer.enable_cache(hooks.MagCacheConfig(calibrate=True, num_inference_steps=7))
    pipe(start, call, **settings)
    printed = [float(x) for x in re.search(r"\[([\d., ]+)\]\n", capsys.readouterr().out).group(1).split(",")]
    assert method.ratios == pytest.approx(printed, rel=1e-4)


def test_a_calibrated_mag_cache_has_the_threshold_that_was_asked_for():
    pipe, start, call = loop.pipeline(WAN)
    assert video.calibrate_mag_cache(pipe, threshold=0.2, start=start, call=call).threshold == 0.2


def test_mag_cache_learns_in_the_first_run():
    pipe, start, call = loop.pipeline(WAN)
    plain = pipe(start, call)
    with mmaccel.accelerate(pipe, video.MagCache(threshold=1e6, warmup=1)) as fast:
        assert torch.equal(fast(start, call), plain)
        assert not fast.report.engaged and "measured its ratios in this run" in str(fast.report)
        assert not torch.equal(fast(start, call), plain) and fast.report.engaged
        assert fast(start, call, steps=9).shape == plain.shape


def test_mag_cache_learns_nothing_from_a_run_too_short_for_it():
    """As the call of a server that warms up; the next run that is long enough measures."""
    pipe, start, call = loop.pipeline(WAN)
    plain = pipe(start, call, steps=12)
    with mmaccel.accelerate(pipe, video.MagCache(threshold=1e6)) as fast:
        for steps in (1, 4, 5):
            fast(start, call, steps=steps)
            told = f"measured no ratios: warmup and cooldown take 5 steps and the run has {steps}: lower them, or let"
            assert told in str(fast.report)
        assert torch.equal(fast(start, call, steps=12), plain)
        assert "measured its ratios in this run" in str(fast.report)
        fast(start, call, steps=12)
        assert fast.report.engaged and not fast.report.warnings
    with pytest.raises(SettingError, match="a run had fewer than 2 steps or ended early"):
        video.calibrate_mag_cache(pipe, start=start, call=call, steps=1)
    assert len(video.calibrate_mag_cache(pipe, start=start, call=call, steps=2).ratios) == 2


def test_mag_cache_reuses_nothing_that_its_first_run_left_out():
    """As image-to-image does, which begins further down."""
    pipe, start, call = loop.pipeline(WAN)
    with mmaccel.accelerate(pipe, video.MagCache(threshold=0.9, max_skips=20, warmup=1)) as fast:
        fast(start, call, steps=12, first=6)
        assert "measured its ratios in this run" in str(fast.report)
        fast(start, call, steps=12)
        assert fast.report.details["computed"][: 2 * 7] == [1.0] * 14 and fast.report.engaged


def test_mag_cache_goes_by_the_ratios_of_the_first_run():
    pipe, start, call = loop.pipeline(WAN)
    measured = video.calibrate_mag_cache(pipe, start=start, call=call, steps=9).ratios
    settings = {"threshold": 2.5 * sum(abs(r - 1) for r in measured) / 9, "max_skips": 20, "warmup": 1}
    found = {}
    for ratios in (None, measured, (1.0, 1.0)):
        with mmaccel.accelerate(pipe, video.MagCache(ratios=ratios, **settings)) as fast:
            for _ in range(2):
                fast(start, call, steps=9)
            found[ratios] = fast.report.details["computed"]
    assert found[None] == found[measured] != found[1.0, 1.0]


def test_mag_cache_measures_the_ratios_of_the_prompts_branch():
    pipe, start, call = loop.pipeline(WAN)
    method, entered, left = video.calibrate_mag_cache(pipe, start=start, call=call), [], []
    first, last = pipe.transformer.blocks[0], pipe.transformer.blocks[-1]
    handles = [
        first.register_forward_pre_hook(lambda module, args: entered.append(args[0].clone())),
        last.register_forward_hook(lambda module, args, output: left.append(output.clone())),
    ]
    pipe(start, call)
    for handle in handles:
        handle.remove()
    added = [(b - a).norm(dim=-1) for a, b in zip(entered[::2], left[::2], strict=True)]
    expected = [1.0, *(float((b / a).mean()) for a, b in zip(added, added[1:], strict=False))]
    assert method.ratios == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "computed"),
    [
        ({"threshold": 0.15, "max_skips": 20}, [0, 2, 4, 6, 8]),
        ({"threshold": 0.5, "max_skips": 20}, [0, 3, 6]),
        ({"threshold": 9.0, "max_skips": 2}, [0, 3, 6]),
    ],
    ids=str,
)
def test_mag_cache_adds_up_to_its_threshold_and_its_most_skips(settings, computed):
    """With ratios of 1.1 errors are 0.1, 0.21 and 0.33, added up."""
    pipe, start, call = loop.pipeline(WAN)
    with mmaccel.accelerate(pipe, video.MagCache(ratios=(1.1,) * 9, warmup=1, **settings)) as fast:
        fast(start, call, steps=9)
        assert [k for k, done in enumerate(fast.report.details["computed"][::2]) if done == 1] == computed


def test_mag_cache_stretches_its_ratios(monkeypatch):
    pipe, place = loop.pipeline(WAN)[0], "mag_cache.apply_mag_cache"
    method = video.MagCache(ratios=(1.0, 1.1, 1.2))
    for run, ratios in (
        (SamplerRun(5, []), [1.0, 1.0, 1.1, 1.2, 1.2]),
        (SamplerRun(5, [], step=2), [1.0, 1.0, 1.1, 1.2, 1.2]),
        (SamplerRun(1, []), [1.0]),
    ):
        config = given_to(monkeypatch, place, method, pipe, run=run)
        assert torch.as_tensor(config.mag_ratios).tolist() == pytest.approx([*ratios, 1.0])


def test_taylor_seer_of_diffusers_finds_no_attention_in_wan():
    """Why the wrapper names the modules itself."""
    pipe, _, _ = loop.pipeline(WAN)
    pipe.transformer.enable_cache(hooks.TaylorSeerCacheConfig())
    assert not any(private.has_registry(block.attn1) for block in pipe.transformer.blocks)


@pytest.mark.parametrize("order", (0, 1))
def test_first_order_forecast_continues_a_line(order):
    """An attention that grows by the same amount in every step is forecast without error, by order 0 as it was."""
    pipe, start, call = loop.pipeline(WAN)
    attention = pipe.transformer.blocks[1].attn1
    line = loop.noise(1, 32, 24)
    made = []

    def straight(hidden_states, *args, **kwargs):
        return line * int(pipe.scheduler.step_index or 0)

    with mmaccel.accelerate(pipe, video.TaylorSeer(interval=4, order=order, warmup=2, cooldown=0)) as fast:
        attention.forward = straight
        hook = attention.register_forward_hook(lambda module, args, output: made.append(output.clone()))
        fast(start, call, branches=lambda step: (1,))
        hook.remove()
        assert fast.report.engaged
    del attention.forward
    for output, last in zip(made, range(6) if order else (0, 1, 1, 3, 3, 3), strict=True):
        torch.testing.assert_close(output, line * last)


def test_faster_cache_estimates_the_second_branch_in_one_batch():
    pipe, start, call = loop.pipeline("CogVideoXTransformer3DModel")
    sizes = batch_sizes(pipe)
    with mmaccel.accelerate(pipe, video.FasterCache(unconditional=3)) as fast:
        fast(start, call, batched=True, steps=8)
        assert fast.report.engaged
    assert set(sizes) == {1, 2} and sizes[0] == 2


def test_timesteps_of_a_sampler_that_counts_from_0_to_1_are_those_of_its_levels():
    """MiniMax-H3's, in which 1 is clean."""
    scheduler = diffusers.MiniMaxH3Scheduler()
    scheduler.set_timesteps(5)
    run = SamplerRun(4, levels_of(scheduler), step=1)
    assert timestep_of(scheduler, run) == pytest.approx(1000 * float(scheduler.sigmas[1]))


def stable_audio(steps):
    """Its sampler, as far as levels go; diffusers has it where torchsde is installed."""
    sigmas = torch.cat([torch.logspace(math.log10(500), math.log10(0.3), steps), torch.zeros(1)])
    config = FrozenDict(num_train_timesteps=1000, prediction_type="v_prediction")
    return SimpleNamespace(config=config, sigmas=sigmas, timesteps=sigmas[:-1].atan() / math.pi * 2)


def flow(sigmas, sizes=None, **settings):
    """A sampler of flow matching whose pipeline gives the noise levels."""
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(**settings)
    scheduler.register_to_config(**sizes or {})
    scheduler.set_timesteps(sigmas=sigmas)
    times = {"sigmas": scheduler.sigmas, "timesteps": scheduler.timesteps}
    return SimpleNamespace(config=scheduler.config, scale_noise=None, **times)


MOCHI = diffusers.FlowMatchEulerDiscreteScheduler(invert_sigmas=True)


@pytest.mark.parametrize(
    "sampler",
    (
        flow(torch.linspace(1, 1 / 30, 30).tolist(), num_train_timesteps=1),  # ACE-Step's
        flow(torch.linspace(0, 1, 30), {"sigma_max": 80.0, "sigma_min": 0.002}, use_karras_sigmas=True),  # Cosmos 2's
        diffusers.FlowMatchEulerDiscreteScheduler(shift=3),
        diffusers.FlowMatchEulerDiscreteScheduler(shift=1.32),  # in float32 its first level is a little above 1
        MOCHI,
        diffusers.FlowMapEulerDiscreteScheduler.from_config(MOCHI.config),  # which keeps that setting and has none
        diffusers.DDIMScheduler(),
        diffusers.EDMEulerScheduler(),
        diffusers.EulerDiscreteScheduler(timestep_type="continuous", prediction_type="v_prediction"),
        stable_audio(30),
    ),
)
def test_ranges_of_timesteps_are_those_of_falling_noise_whatever_a_sampler_counts(sampler):
    """In Mochi it counts up, and where time is a function of the noise it does not count at all."""
    if hasattr(sampler, "set_timesteps"):
        sampler.set_timesteps(30)
    run, times = SamplerRun(30, levels_of(sampler)), []
    for run.step in range(30):
        times.append(timestep_of(sampler, run))
    assert times == sorted(times, reverse=True) and 1000 >= times[0] > 930 and 0 <= times[-1] < 300
    assert min(times[:9]) > video.FasterCache().timesteps[1], "the first third is computed"
    low, high = video.PyramidAttentionBroadcast().timesteps
    assert any(low < time < high for time in times)


def test_the_private_names_are_there():
    """Of the installed version; `mmaccel.video.private` uses no others."""
    from diffusers.hooks.hooks import CacheContext, StateManager
    from diffusers.hooks.mag_cache import MagCacheState
    from diffusers.hooks.pyramid_attention_broadcast import PyramidAttentionBroadcastHook

    pipe, _, _ = loop.pipeline(WAN)
    model = pipe.transformer
    assert private.CONFIG in vars(diffusers.models.cache_utils.CacheMixin) and hasattr(hooks, private.EXACT)
    model.enable_cache(hooks.FirstBlockCacheConfig())
    registry = vars(model.blocks[0])[private.REGISTRY]
    (hook,) = registry.hooks.values()
    assert callable(hook.new_forward) and hasattr(hook.fn_ref, "original_forward")
    assert vars(model)[private.REGISTRY]._get_child_registries() and private.CHILDREN in vars(model._diffusers_hook)
    manager = StateManager(MagCacheState)
    manager.set_context(CacheContext("one"))
    assert manager.get_state() is manager._state_cache["one"]
    broadcast = PyramidAttentionBroadcastHook((0, 1), 2, lambda: 0)
    broadcast.initialize_hook(model)
    assert "state" in vars(broadcast) and type(broadcast.state)().cache is None
    assert private.execution_device(pipe) == torch.device("cpu")
    reusing = {name for _, name, _ in iter_modules(hooks.__path__) if re.search("cache|broadcast", name)}
    assert {*private.CACHES, "text_kv_cache"} == {*reusing, video.EasyCacheHook.__module__.rpartition(".")[2]}


@pytest.mark.parametrize("first", (0, 3))
@pytest.mark.parametrize("warmup", (1, 3))
@pytest.mark.parametrize("jump", (5, 8))
def test_mag_cache_computes_at_the_ratio_that_jumps(jump, warmup, first):
    """And at no other, wherever the warm-up ends and the run begins."""
    pipe, start, call = loop.pipeline(WAN)
    ratios = [1.0] * 11
    ratios[jump] = 2.0
    method = video.MagCache(threshold=0.5, ratios=tuple(ratios), max_skips=20, warmup=warmup, cooldown=1)
    with mmaccel.accelerate(pipe, method) as fast:
        fast(start, call, steps=11, first=first)
        computed = [first + k for k, done in enumerate(fast.report.details["computed"][::2]) if done == 1]
    assert computed == sorted({*range(first, first + warmup), *({jump} - set(range(first))), 10})


def test_mag_cache_goes_by_the_steps_of_the_run_where_a_branch_begins_late():
    """As guidance for a part of the steps: diffusers' hook counts the passes of each branch, from its own first."""
    pipe, start, call = loop.pipeline(WAN)
    ratios = [1.0] * 8 + [2.0] + [1.0] * 2
    method = video.MagCache(threshold=0.5, ratios=tuple(ratios), max_skips=20, warmup=1)
    with mmaccel.accelerate(pipe, method) as fast:
        fast(start, call, steps=11, branches=lambda step: (1,) if step < 4 else (1, 0))
        passes = iter(done == 1 for done in fast.report.details["computed"])
        computed = [[next(passes) for _ in range(1 if step < 4 else 2)] for step in range(11)]
    assert [step for step, done in enumerate(computed) if done[0]] == [0, 8]
    assert [step for step, done in enumerate(computed) if len(done) == 2 and done[1]] == [4, 8]


def attention_runs(pipe, run):
    """The steps of the prompt's branch in which each kind of attention of the last block ran."""
    found = {"attn1": [], "attn2": []}
    handles = [
        getattr(pipe.transformer.blocks[-1], name).to_q.register_forward_hook(
            lambda *_, steps=steps: steps.append(int(pipe.scheduler.step_index or 0))
        )
        for name, steps in found.items()
    ]
    run()
    for handle in handles:
        handle.remove()
    return tuple(found.values())


ALL = list(range(9))
EVERY_THIRD = [0, 3, 6]


@pytest.mark.parametrize(
    ("method", "own", "cross"),
    [
        (video.PyramidAttentionBroadcast(3, timesteps=(0, 1000)), EVERY_THIRD, ALL),
        (video.PyramidAttentionBroadcast(1, cross=3, timesteps=(0, 1000)), ALL, EVERY_THIRD),
        (video.PyramidAttentionBroadcast(3, timesteps=(0, 700)), [0, 1, 2, 3, 4, 6], ALL),
        (video.TaylorSeer(3, warmup=2, cooldown=2), [0, 1, 3, 6, 7, 8], [0, 1, 3, 6, 7, 8]),
        (video.TaylorSeer(4, order=0, warmup=1, cooldown=0), [0, 2, 6], [0, 2, 6]),
        (video.FasterCache(3, timesteps=(-1, 1000)), EVERY_THIRD, ALL),
        (video.FasterCache(3, timesteps=(-1, 700)), [0, 1, 2, 3, 4, 6], ALL),
    ],
    ids=str,
)
def test_attention_runs_when_the_settings_say(method, own, cross):
    pipe, start, call = loop.pipeline(WAN)
    with mmaccel.accelerate(pipe, method) as fast:
        found = attention_runs(pipe, lambda: fast(start, call, steps=9, branches=lambda step: (1,)))
    assert found == (own, cross)


def test_order_and_weight_change_what_is_forecast():
    pipe, start, call = loop.pipeline(WAN)
    outputs = []
    for method in (
        video.TaylorSeer(3, order=0, warmup=2),
        video.TaylorSeer(3, order=1, warmup=2),
        video.FasterCache(weight=0.0, timesteps=(-1, 1000)),
        video.FasterCache(timesteps=(-1, 1000)),
        video.FasterCache(weight=1.0, timesteps=(-1, 1000)),
    ):
        with mmaccel.accelerate(pipe, method) as fast:
            outputs.append(fast(start, call))
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(outputs, 2))


@pytest.mark.parametrize("distance", (2, 4))
def test_faster_cache_computes_the_second_branch_so_often(distance):
    pipe, start, call = loop.pipeline("CogVideoXTransformer3DModel")
    sizes = batch_sizes(pipe)
    with mmaccel.accelerate(pipe, video.FasterCache(unconditional=distance)) as fast:
        fast(start, call, batched=True, steps=24)
    first = sizes.index(1)
    assert [k for k in range(first, 24) if sizes[k] == 2] == [k for k in range(first, 24) if k % distance == 0]


def test_memory_is_what_the_hooks_keep():
    pipe, start, call = loop.pipeline(WAN)
    tokens = 4 * 32 * 24
    with mmaccel.accelerate(pipe, video.PyramidAttentionBroadcast(timesteps=(0, 1000))) as fast:
        fast(start, call)
        assert fast.report.peak_extra_bytes == 2 * 6 * tokens, "two branches, of six attentions"
        fast(start, call, branches=lambda step: (1,))
        assert fast.report.peak_extra_bytes == 6 * tokens


def test_hooks_that_cannot_be_put_on_leave_nothing():
    pipe, _, _ = loop.pipeline(WAN)
    names = {module: set(vars(module)) for module in pipe.transformer.modules()}

    def apply(denoiser):
        hooks.HookRegistry.check_if_exists_or_initialize(denoiser.blocks[0]).register_hook(hooks.ModelHook(), "one")
        raise ValueError("no such block")

    with pytest.raises(ValueError, match="no such block"):
        private.Hooks(pipe.transformer, apply)
    assert names == {module: set(vars(module)) for module in pipe.transformer.modules()}


def test_halves_of_a_batch_are_counted():
    """Where the second guidance branch is estimated, half of the attention runs."""
    pipe, start, call = loop.pipeline("CogVideoXTransformer3DModel")
    sizes = batch_sizes(pipe)
    with mmaccel.accelerate(pipe, video.FasterCache(spatial=1, unconditional=3)) as fast:
        fast(start, call, batched=True, steps=8)
        assert fast.report.details["attention"] == [size / 2 for size in sizes] and set(sizes) == {1, 2}


def test_only_settings_that_reuse_nothing_are_exact():
    for spatial, unconditional in itertools.product((1, 2), repeat=2):
        assert video.FasterCache(spatial, unconditional).exact is (spatial == unconditional == 1)
    for distances in itertools.product((1, 2), repeat=3):
        assert video.PyramidAttentionBroadcast(*distances).exact is (distances == (1, 1, 1))
    assert video.TaylorSeer(interval=1).exact and not video.TaylorSeer(interval=2).exact
    assert video.MagCache(threshold=0).exact and not video.MagCache(threshold=1e-9).exact


def test_an_exact_mag_cache_measures_nothing():
    pipe, start, call = loop.pipeline(WAN)
    with mmaccel.accelerate(pipe, video.MagCache(threshold=0)) as fast:
        fast(start, call, steps=2)
        assert not fast.report.warnings and not fast.memory


def given_to(monkeypatch, place, method, pipe, **stepper):
    """The configuration with which diffusers puts a cache on the pipeline's transformer."""
    found = []
    monkeypatch.setattr(f"diffusers.hooks.{place}", lambda denoiser, config: found.append(config))
    session = SimpleNamespace(target=pipe, memory={})
    method.put_on(pipe.transformer, SimpleNamespace(session=session, **stepper))
    return found[0]


def test_faster_cache_estimates_branches_only_where_they_are_halves_of_a_batch(monkeypatch):
    """In a family whose arguments are known to be split, and where the pipeline says that it guides."""
    place = "faster_cache.apply_faster_cache"
    for name, said, estimates in (
        ("CogVideoXTransformer3DModel", {"do_classifier_free_guidance": True}, True),
        ("CogVideoXTransformer3DModel", {"do_classifier_free_guidance": False, "guidance_scale": 6.0}, False),
        ("CogVideoXTransformer3DModel", {"guidance_scale": 6.0}, True),  # all that CogVideoX's pipelines tell
        ("CogVideoXTransformer3DModel", {"guidance_scale": 1.0}, False),
        ("CogVideoXTransformer3DModel", {}, False),
        (WAN, {"do_classifier_free_guidance": True}, False),
    ):
        pipe, _, _ = loop.pipeline(name)
        vars(pipe).update(said)
        config = given_to(monkeypatch, place, video.FasterCache(), pipe, is_first=False, timestep=300.0)
        assert config.is_guidance_distilled is not estimates
        assert config.tensor_format == ("BCFHW" if name == WAN else "BFCHW")


def test_faster_cache_gets_all_settings(monkeypatch):
    pipe, _, _ = loop.pipeline(WAN)
    method = video.FasterCache(3, 4, weight=0.3, timesteps=[5, 700])
    place = "faster_cache.apply_faster_cache"
    config = given_to(monkeypatch, place, method, pipe, is_first=False, timestep=300.0)
    assert config.spatial_attention_block_skip_range == 3 and config.unconditional_batch_skip_range == 4
    assert config.spatial_attention_timestep_skip_range == method.timesteps == (5, 700)
    assert config.attention_weight_callback(None) == 0.3 and config.tensor_format == "BCFHW"
    assert config.current_timestep_callback() == 300.0
    first = given_to(monkeypatch, place, method, pipe, is_first=True, timestep=300.0)
    assert first.current_timestep_callback() > 1e6, "outside of any range"


def halved(transformer):
    """As Wan is loaded in half precision, which is not for all of it."""
    transformer.to(torch.bfloat16)
    transformer.scale_shift_table.data = transformer.scale_shift_table.data.float()
    return torch.bfloat16


def cast(transformer):
    transformer.enable_layerwise_casting(torch.float8_e4m3fn, torch.float32)
    return torch.float32


def packed(transformer):
    """As weights of four bits are, two in a byte."""
    first = transformer.time_text_embed.timestep_embedder.linear_1
    first.weight = torch.nn.Parameter(torch.ones(4, dtype=torch.uint8), requires_grad=False)
    return torch.float32


@pytest.mark.parametrize(("family", "load"), ((WAN, halved), (FLUX, cast), (FLUX, packed)))
def test_forecasts_are_kept_in_the_precision_in_which_the_model_computes(family, load, monkeypatch):
    pipe, _, _ = loop.pipeline(family)
    computed = load(pipe.transformer)
    config = given_to(monkeypatch, "taylorseer_cache.apply_taylorseer_cache", video.TaylorSeer(4, 2), pipe)
    assert config.taylor_factors_dtype == computed != next(pipe.transformer.parameters()).dtype
    assert (config.cache_interval, config.max_order, config.disable_cache_before_step) == (4, 2, 3)


@pytest.mark.parametrize("family", ("Kandinsky5Transformer3DModel", "Cosmos3OmniTransformer", "PRXTransformer2DModel"))
def test_no_norm_is_forecast_for_its_name(family):
    """Such as that between attention and the MLP, whose input would be extrapolated too."""
    model, _ = build(family)
    video.TaylorSeer().put_on(model, None)
    hooked = [name for name, module in model.named_modules() if private.has_registry(module)]
    assert hooked and not any("norm" in name for name in hooked)


def test_a_refusal_names_the_reason_and_what_works():
    pipe, _, _ = loop.pipeline("LTX2VideoTransformer3DModel")
    with pytest.raises(UnsupportedTargetError, match=r"diffusers does not list its blocks\. Use video\.BlockCache"):
        mmaccel.accelerate(pipe, video.MagCache())
    assert mmaccel.plan(pipe, video.BlockCache())


@each
def test_compiled_blocks_are_refused(method):
    pipe, _, _ = loop.pipeline(WAN)
    pipe.transformer.compile()
    with pytest.raises(UnsupportedTargetError, match=r"is compiled.*compile_repeated_blocks\(\)"):
        mmaccel.accelerate(pipe, method)


def test_what_is_calibrated_has_the_defaults_of_its_method():
    for calibrate, cls, names in (
        (video.calibrate_mag_cache, video.MagCache, ("threshold",)),
        (video.calibrate_tea_cache, video.TeaCache, ("threshold",)),
        (video.calibrate_steps, video.HeterogeneousSteps, ("budget",)),
    ):
        given = inspect.signature(calibrate).parameters
        assert {name: given[name].default for name in names} == {name: getattr(cls, name) for name in names}
