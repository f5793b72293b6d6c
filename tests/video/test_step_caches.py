"""EasyCache, TeaCache and BlockCache: what the contract does not see."""

import math
from types import SimpleNamespace

import diffusers
import diffusion_loop as loop
import numpy
import pytest
import sampled_models
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import mmaccel
from mmaccel import video
from mmaccel.demos.families.models import build
from mmaccel.errors import ConflictError, SettingError, UnsupportedTargetError
from mmaccel.stepping.tensors import plus, relative_change
from mmaccel.testing.contract import Interrupted, broken_after
from mmaccel.video import examples
from mmaccel.video.blocks import block_cache
from mmaccel.video.caches import tea_cache

OWN = (video.EasyCache, video.TeaCache, video.BlockCache)
WAN = "WanTransformer3DModel"


def computed(session):
    return session.report.details["computed"]


@pytest.mark.parametrize("method", OWN)
def test_a_huge_threshold_computes_warmup_and_cooldown_only(method):
    pipe, start, call = loop.pipeline(WAN)
    for warmup, cooldown in ((2, 0), (2, 1), (4, 3)):
        with mmaccel.accelerate(pipe, method(threshold=1e6, warmup=warmup, cooldown=cooldown)) as fast:
            fast(start, call, steps=10)
            left = 1 / 3 if method is video.BlockCache else 0  # one of three blocks always runs
            done = [1.0] * warmup + [left] * (10 - warmup - cooldown) + [1.0] * cooldown
            assert computed(fast) == pytest.approx([x for step in done for x in (step, step)], abs=1e-3)
            assert fast.report.forwards == pytest.approx(2 * sum(done), abs=1e-2)


@pytest.mark.parametrize("method", OWN)
def test_fidelity_and_work_fall_with_the_threshold(method):
    pipe, start, call = loop.pipeline(WAN)
    plain = pipe(start, call, steps=12)
    errors, work = [0.0], [24.0]
    for threshold in (0.01, 0.03, 0.1, 0.3, 1e6):
        with mmaccel.accelerate(pipe, method(threshold=threshold, warmup=2)) as fast:
            errors.append(float((fast(start, call, steps=12) - plain).square().mean()))
            work.append(fast.report.forwards)
    assert errors == sorted(errors) and work == sorted(work, reverse=True), (errors, work)
    assert errors[-1] > errors[0] and len(set(work)) > 2, (errors, work)


def test_easy_cache_gives_the_last_computed_output():
    pipe, start, call = loop.pipeline(WAN)
    seen = []

    def note(module, args, kwargs, output):
        seen.append(output[0].clone())

    with mmaccel.accelerate(pipe, video.EasyCache(threshold=1e6, warmup=2)) as fast:
        pipe.transformer.register_forward_hook(note, with_kwargs=True)
        fast(start, call)
    pipe.transformer._forward_hooks.clear()
    for branch in (0, 1):
        first, last, *later = seen[branch::2][:-1]
        assert len(later) == 3 and not torch.equal(first, last)
        assert all(torch.equal(reused, last) for reused in later)


def test_easy_cache_follows_its_formula():
    """The decisions of a run, from the inputs and outputs of the plain one as long as both agree."""
    pipe, start, call = loop.pipeline(WAN)
    xs, outs = [], []

    def note(module, args, kwargs, output):
        xs.append(kwargs["hidden_states"].clone())
        outs.append(output[0].clone())

    handle = pipe.transformer.register_forward_hook(note, with_kwargs=True)
    pipe(start, call, steps=8)
    handle.remove()
    xs, outs = xs[::2], outs[::2]
    ratio = (outs[1] - outs[0]).abs().mean() / (xs[1] - xs[0]).abs().mean()
    error = float(ratio * (xs[2] - xs[1]).abs().mean() / outs[1].abs().mean())
    for threshold, reused in ((1.001 * error, True), (0.999 * error, False)):
        with mmaccel.accelerate(pipe, video.EasyCache(threshold=threshold, warmup=2)) as fast:
            fast(start, call, steps=8)
            assert (computed(fast)[4] == 0) is reused


def prompts_passes(pipe, run):
    """Inputs and outputs of the prompt's branch, and inputs of its first self-attention; also of reused steps."""
    xs, outs, modulated = [], [], []

    def note(module, args, kwargs, output):
        xs.append(kwargs["hidden_states"].clone())
        outs.append(output[0].clone())

    attention = pipe.transformer.blocks[0].attn1
    hooks = [
        pipe.transformer.register_forward_hook(note, with_kwargs=True),
        attention.register_forward_pre_hook(lambda module, args: modulated.append(args[0].clone())),
    ]
    run()
    for hook in hooks:
        hook.remove()
    return xs[::2], outs[::2], modulated


def mean(x):
    return float(x.abs().mean())


@pytest.mark.parametrize("threshold", (0.15, 0.4))
def test_easy_cache_adds_up_what_it_predicts(threshold):
    """All decisions of a run, by the formula: errors add up over reused steps, and computed ones start anew."""
    pipe, start, call = loop.pipeline(WAN)
    with mmaccel.accelerate(pipe, video.EasyCache(threshold=threshold, warmup=3)) as fast:
        xs, outs, _ = prompts_passes(pipe, lambda: fast(start, call, steps=24))
        done = computed(fast)[::2]
    expected, last, ratio, error = [], None, None, 0.0
    for k, (x, out) in enumerate(zip(xs, outs, strict=True)):
        if ratio is not None and 3 <= k < 23:
            error += ratio * mean(x - xs[k - 1]) / mean(outs[last])
        if 3 <= k < 23 and error < threshold:
            expected.append(0.0)
            continue
        if last is not None:
            ratio = mean(out - outs[last]) / mean(x - xs[last])
        expected.append(1.0)
        last, error = k, 0.0
    assert done == expected
    text = "".join("#" if share else "." for share in done)
    assert ".." in text and text[3:-1].count("#") > 1, text


@pytest.mark.parametrize(("threshold", "coefficients"), [(0.1, None), (0.2, (2.0, 0.0)), (0.04, (0.5, -0.004))])
def test_tea_cache_adds_up_what_it_estimates(threshold, coefficients):
    pipe, start, call = loop.pipeline(WAN)
    method = video.TeaCache(threshold, coefficients, warmup=2)
    seen = []
    with mmaccel.accelerate(pipe, method) as fast:
        attention = pipe.transformer.blocks[0].attn1
        hook = attention.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
        fast(start, call, steps=24, branches=lambda step: (1,))
        hook.remove()
        done = computed(fast)
    expected, error = [], 0.0
    for k, x in enumerate(seen):
        reused = False
        if 2 <= k < 23:
            error += method.rescaled(mean(x - seen[k - 1]) / mean(seen[k - 1]))
            reused = error < threshold
        error = error if reused else 0.0
        expected.append(0.0 if reused else 1.0)
    assert done == expected
    text = "".join("#" if share else "." for share in done)
    assert ".." in text and text[2:-1].count("#") > 1, text


def test_block_cache_compares_with_the_last_computed_step():
    """Not with the step before: its change does not add up, it is measured from where the residual was made."""
    pipe, start, call = loop.pipeline(WAN)
    first, seen = pipe.transformer.blocks[0], []
    with mmaccel.accelerate(pipe, video.BlockCache(threshold=0.04, warmup=2)) as fast:
        hook = first.register_forward_hook(lambda module, args, output: seen.append((output - args[0]).clone()))
        fast(start, call, steps=24, branches=lambda step: (1,))
        hook.remove()
        done = computed(fast)
    expected, last = [], None
    for k, added in enumerate(seen):
        reused = 2 <= k < 23 and mean(added - last) / mean(last) < 0.04
        last = last if reused else added
        expected.append(not reused)
    assert [share == 1 for share in done] == expected
    assert 3 < sum(expected) < 20, expected


@pytest.mark.parametrize("method", OWN)
def test_branches_do_not_mix(method):
    """The prompt's predictions are the same, whatever the other branch is and whether there is one."""
    pipe, start, call = loop.pipeline(WAN)
    alone, beside = [], []
    with mmaccel.accelerate(pipe, method(threshold=1e6, warmup=2)) as fast:
        hook = pipe.transformer.register_forward_hook(lambda module, args, output: alone.append(output[0].clone()))
        fast(start, call, still=True, branches=lambda step: (1,))
        hook.remove()
        hook = pipe.transformer.register_forward_hook(lambda module, args, output: beside.append(output[0].clone()))
        fast(start, call, still=True)
        hook.remove()
    assert all(torch.equal(a, b) for a, b in zip(alone, beside[::2], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(beside[::2], beside[1::2], strict=True))


@pytest.mark.parametrize("method", OWN)
def test_a_branch_that_was_away_is_computed(method):
    """Guidance for a part of the steps: the other branch remembers an older step than the prompt's.

    The step after it is computed in both, so that guidance does not go on with predictions of two steps.
    """
    pipe, start, call = loop.pipeline(WAN)
    away = (3, 4)
    with mmaccel.accelerate(pipe, method(threshold=1e6, warmup=4)) as fast:
        fast(start, call, steps=10, branches=lambda step: (1,) if step in away else (1, 0))
        rest = 1 / 3 if method is video.BlockCache else 0
        assert computed(fast)[:7] == [1.0] * 7 and computed(fast)[7] == pytest.approx(rest, abs=1e-3)  # step 4
        assert computed(fast)[8:12] == pytest.approx([rest, 1.0, 1.0, 1.0], abs=1e-3)  # steps 5 and 6
        assert computed(fast)[12:16] == pytest.approx([rest] * 4, abs=1e-3)  # steps 7 and 8


@pytest.mark.parametrize("method", OWN)
def test_a_run_that_starts_further_down(method):
    """Image to image: the warm-up counts from the first step that is made."""
    pipe, start, call = loop.pipeline(WAN)
    with mmaccel.accelerate(pipe, method(threshold=1e6, warmup=2)) as fast:
        fast(start, call, steps=9, first=4)
        assert [x == 1 for x in computed(fast)[::2]] == [True, True, False, False, True]


@pytest.mark.parametrize("method", OWN)
def test_after_a_broken_run_another_size(method):
    pipe, arguments = examples.wan_pipeline()
    wide = arguments(batch=2, width=12, steps=6)
    with mmaccel.accelerate(pipe, method(threshold=1e6, warmup=2)) as fast:
        expected = fast(**wide)[0]
    with mmaccel.accelerate(pipe, method(threshold=1e6, warmup=2)) as fast:
        with broken_after(pipe.transformer.blocks[0].ffn, 5), pytest.raises(Interrupted):
            fast(**arguments())
        assert torch.equal(fast(**wide)[0], expected) and not fast.report.warnings
        with pytest.raises(RuntimeError, match="stop"):  # between two forward passes
            fast(**arguments(), callback_on_step_end=stop)
        assert torch.equal(fast(**wide)[0], expected)


def stop(pipe, step, timestep, kwargs):
    if step == 3:
        raise RuntimeError("stop")
    return kwargs


@pytest.mark.parametrize("method", OWN)
def test_a_second_expert_starts_anew(method):
    """Wan 2.2: nothing crosses from one transformer to the other."""
    pipe, arguments = loop.two_experts()
    with mmaccel.accelerate(pipe, method(threshold=1e6, warmup=2, cooldown=0)) as fast:
        fast(**arguments(steps=10))
        high = int((pipe.scheduler.timesteps >= 800).sum())
        first = [i for i, x in enumerate(computed(fast)[::2]) if x == 1]
    later = [high, high + 1] if method is video.EasyCache else [high]  # its ratio takes two steps
    assert first == [0, 1, *later]


@pytest.mark.parametrize("method", OWN)
def test_a_branch_with_a_transformer_of_its_own_follows_the_prompts(method):
    """As in Ideogram 4: guidance mixes no computed prediction with a remembered one."""

    class Apart(diffusers.DiffusionPipeline):
        def __init__(self, transformer, unconditional_transformer, scheduler):
            super().__init__()
            self.register_modules(
                transformer=transformer, unconditional_transformer=unconditional_transformer, scheduler=scheduler
            )

        def __call__(self, x, text, steps=8):
            self.scheduler.set_timesteps(steps)
            for t in self.scheduler.timesteps:
                prompt = self.transformer(x, t.expand(1), text, return_dict=False)[0]
                other = self.unconditional_transformer(x, t.expand(1), text, return_dict=False)[0]
                x = self.scheduler.step(other + 3 * (prompt - other), t, x, return_dict=False)[0]
            return x

    one, start, call = loop.pipeline(WAN)
    two, _, _ = loop.pipeline(WAN)
    pipe = Apart(one.transformer, two.transformer, one.scheduler)
    with mmaccel.accelerate(pipe, method(threshold=1e6, warmup=2)) as fast:
        fast(start[0], call(1)["encoder_hidden_states"])
        assert computed(fast)[::2] == computed(fast)[1::2]
        assert [x == 1 for x in computed(fast)[::2]] == [True, True, *[False] * 5, True]


@pytest.mark.parametrize("method", OWN)
def test_advice_can_be_followed(method):
    pipe, start, call = loop.pipeline(WAN)
    with mmaccel.accelerate(pipe, method(threshold=1e-9, warmup=2)) as fast:
        fast(start, call)
        text = str(fast.report)
    threshold = float(text.split("try threshold=")[1].split()[0])
    with mmaccel.accelerate(pipe, method(threshold=threshold, warmup=2)) as fast:
        fast(start, call)
        assert fast.report.engaged and not fast.report.warnings
    with mmaccel.accelerate(pipe, method(warmup=5, cooldown=1)) as fast:
        fast(start, call, steps=6)
        assert "warmup and cooldown take 6 steps and the run has 6" in str(fast.report)
        fast(start, call, steps=9, first=4)
        assert "warmup and cooldown take 6 steps and the run has 5" in str(fast.report)
    with mmaccel.accelerate(pipe, method(threshold=0)) as fast:
        fast(start, call)
        assert not fast.report.warnings, "as asked for"


def test_memory_is_what_is_kept():
    pipe, start, call = loop.pipeline(WAN)
    size = 4 * start[0].numel()
    with mmaccel.accelerate(pipe, video.EasyCache(threshold=1e6, warmup=2)) as fast:
        fast(start, call)
        # a residual per branch; in the first the last input, and input and output of the last computed step
        assert 4 * size <= fast.report.peak_extra_bytes <= 5 * size
    tokens = 4 * 2 * 4 * 4 * 24
    with mmaccel.accelerate(pipe, video.TeaCache(threshold=1e6)) as fast:
        fast(start, call)
        assert fast.report.peak_extra_bytes == 3 * tokens  # two residuals and a modulated input


def test_advice_goes_by_the_smallest_change():
    pipe, start, call = loop.pipeline(WAN)
    seen = []
    with mmaccel.accelerate(pipe, video.BlockCache(threshold=1e-9, warmup=2)) as fast:
        pipe.transformer.blocks[0].register_forward_hook(
            lambda module, args, output: seen.append((output - args[0]).clone())
        )
        fast(start, call, steps=9, branches=lambda step: (1,))
        smallest = min(mean(b - a) / mean(a) for a, b in zip(seen[1:-2], seen[2:-1], strict=True))
        assert f"the smallest change was {smallest:.2g}: try threshold={1.2 * smallest:.2g}" in str(fast.report)


def test_memory_is_the_most_that_was_kept(monkeypatch):
    from mmaccel.video.caches import easy_cache

    pipe, start, call = loop.pipeline(WAN)
    sizes = iter(range(12, 0, -1))
    monkeypatch.setattr(easy_cache._Stepper, "held_bytes", lambda self: next(sizes))
    with mmaccel.accelerate(pipe, video.EasyCache(1e6, warmup=2)) as fast:
        fast(start, call)
        assert fast.report.peak_extra_bytes == 12


@pytest.mark.parametrize(("first", "last"), [(1, 0), (1, 1), (1, 2), (2, 1)])
def test_block_cache_runs_the_blocks_at_both_ends(first, last):
    pipe, start, call = loop.pipeline("FluxTransformer2DModel")  # two double and two single blocks
    blocks = [*pipe.transformer.transformer_blocks, *pipe.transformer.single_transformer_blocks]
    runs = [0] * 4

    def count(index):
        def add(*_):
            runs[index] += 1

        return add

    with mmaccel.accelerate(pipe, video.BlockCache(1e6, first=first, last=last, warmup=2, cooldown=1)) as fast:
        hooks = [block.attn.register_forward_pre_hook(count(i)) for i, block in enumerate(blocks)]
        fast(start, call)
        for hook in hooks:
            hook.remove()
    ends = [i < first or i >= 4 - last for i in range(4)]
    assert runs == [2 * loop.STEPS if at_end else 2 * 3 for at_end in ends]


@pytest.mark.parametrize("last", (0, 1))
def test_block_cache_at_any_depth(last):
    pipe, start, call = loop.pipeline("FluxTransformer2DModel")  # two double and two single blocks
    plain = pipe(start, call, still=True)
    for first in range(1, 4 - last):
        with mmaccel.accelerate(pipe, video.BlockCache(1e6, first=first, last=last, warmup=1)) as fast:
            out = fast(start, call, still=True)
            assert computed(fast)[2] == (first + last) / 4
            torch.testing.assert_close(out, plain, rtol=1e-3, atol=1e-4)
    with pytest.raises(SettingError, match="fewer than the 4 blocks of FluxTransformer2DModel"):
        mmaccel.accelerate(pipe, video.BlockCache(first=4 - last, last=last))


def test_block_cache_runs_the_blocks_whose_output_the_last_ones_read():
    """Else a block that is left out would hand on, as its own output, what came in."""
    small, _ = build("HunyuanDiT2DModel")
    pipe = loop.Loop(type(small).from_config(small.config, num_layers=8), diffusers.FlowMatchEulerDiscreteScheduler())
    for first, last in ((1, 0), (1, 1), (2, 2), (3, 4)):
        mmaccel.plan(pipe, video.BlockCache(first=first, last=last))
    with pytest.raises(SettingError, match="last blocks of HunyuanDiT2DModel read what its first 2 made: pass first=2"):
        mmaccel.plan(pipe, video.BlockCache(first=1, last=2))


def test_block_cache_compares_where_the_first_block_is_on_another_device():
    stepper, compared = object.__new__(block_cache._Stepper), []
    stepper.cache = SimpleNamespace(leads=True, skips=False, compare=compared.extend)
    with FakeTensorMode():
        stepper.start = torch.ones(1, 2, 3, device="cuda:0")
        stepper.before({"hidden_states": torch.ones(1, 2, 3)}, SimpleNamespace(hidden="hidden_states"))
    assert [x.device.type for x in compared] == ["cpu"]


def test_control_net_residuals_between_the_blocks_are_not_added_twice():
    pipe, start, call = loop.pipeline("FluxTransformer2DModel")
    extra = [loop.noise(1, 16, 24, seed=seed) for seed in (7, 8)]

    def controlled(branch):
        return {**call(branch), "controlnet_block_samples": extra, "controlnet_single_block_samples": extra}

    plain = pipe(start, controlled, still=True)
    assert not torch.allclose(plain, pipe(start, call, still=True))
    for method in (video.TeaCache(1e6), video.BlockCache(1e6, warmup=1), video.BlockCache(1e6, first=2, warmup=1)):
        with mmaccel.accelerate(pipe, method) as fast:
            torch.testing.assert_close(fast(start, controlled, still=True), plain, rtol=1e-3, atol=1e-4)
    for method in (video.FirstBlockCache(1e6), video.MagCache(), video.MagCache(ratios=(1.0, 1.0))):
        with (
            mmaccel.accelerate(pipe, method) as fast,
            pytest.raises(UnsupportedTargetError, match=f"^{method.name} would add .* twice: use video.BlockCache"),
        ):
            fast(start, controlled)


@pytest.mark.parametrize("skipped", ([0], [1], [2], [0, 1]))
@pytest.mark.parametrize("method", (video.TeaCache(1e6), video.BlockCache(1e6, warmup=2)), ids=str)
def test_passes_without_some_blocks_are_computed(method, skipped):
    """SD3 can guide by a third pass that leaves out layers."""
    pipe, start, call = loop.pipeline("SD3Transformer2DModel")

    def guided(branch):
        return {**call(branch), "skip_layers": skipped if branch == 0 else None}

    plain = pipe(start, guided, still=True)
    with mmaccel.accelerate(pipe, method) as fast:
        torch.testing.assert_close(fast(start, guided, still=True), plain, rtol=1e-3, atol=1e-4)
        shares = computed(fast)
        assert min(shares[::2]) < 1 and set(shares[1::2]) == {1.0}, "every second pass is one without them"


def test_calibration_fits_the_changes_of_the_run():
    pipe, start, call = loop.pipeline(WAN)
    plain = pipe(start, call, steps=12)
    method = video.calibrate_tea_cache(pipe, threshold=0.2, start=start, call=call, steps=12)
    assert torch.equal(pipe(start, call, steps=12), plain)
    assert method.threshold == 0.2 and len(method.coefficients) == 5
    inputs, outputs = [], []
    hooks = [
        pipe.transformer.blocks[0].attn1.register_forward_pre_hook(lambda module, args: inputs.append(args[0].clone())),
        pipe.transformer.register_forward_hook(lambda module, args, output: outputs.append(output[0].clone())),
    ]
    pipe(start, call, steps=12)
    for hook in hooks:
        hook.remove()
    x, y = ([relative_change([b], [a]) for a, b in zip(v[:-2:2], v[2::2], strict=True)] for v in (inputs, outputs))
    expected = numpy.polyval(numpy.polyfit(x, y, 4), x)
    assert numpy.allclose(numpy.polyval(method.coefficients, x), expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(SettingError, match="take more steps"):
        video.calibrate_tea_cache(pipe, start=start, call=call, steps=4)


def test_calibration_takes_the_changes_of_every_prompt(monkeypatch):
    pipe, arguments = examples.wan_pipeline()
    call = {name: value for name, value in arguments(1, steps=6).items() if name not in ("prompt", "prompt_embeds")}
    embeds = arguments(1, steps=6)["prompt_embeds"]
    scales = iter((1.0, 2.0))
    monkeypatch.setattr(pipe, "check_inputs", lambda *args, **kwargs: None)
    monkeypatch.setattr(
        pipe, "encode_prompt", lambda **kwargs: (next(scales) * embeds, kwargs.get("negative_prompt_embeds"))
    )
    taken = []
    fit = numpy.polyfit
    monkeypatch.setattr(numpy, "polyfit", lambda x, y, degree: taken.append(len(x)) or fit(x, y, degree))
    video.calibrate_tea_cache(pipe, ["a fox", "a hen"], **call)
    assert taken == [2 * 5], "five changes between the six steps of each prompt"


def test_calibration_leaves_out_where_a_second_expert_begins():
    """There is no change since its last step, for it had none."""
    pipe, arguments = loop.two_experts()
    assert numpy.isfinite(video.calibrate_tea_cache(pipe, **arguments(1, steps=12)).coefficients).all()


def test_tea_cache_polynomial():
    assert video.TeaCache(coefficients=[1, 0, 0]).rescaled(0.5) == 0.25
    assert video.TeaCache(coefficients=(-1.0, 0.0)).rescaled(0.5) == 0.5
    wan = video.TeaCache(coefficients=(-5784.54975374, 5449.50911966, -1811.16591783, 256.27178429, -13.02252404))
    assert wan.rescaled(0.02) > 8, "of another input: nothing is reused for an estimate below 0"
    assert video.TeaCache().rescaled(0.3) == 0.3
    assert video.TeaCache(coefficients=(-1.0, 3.0)).rescaled(math.inf) == math.inf, "of other tokens than before"
    assert video.TeaCache.from_settings(video.TeaCache(coefficients=(1, 2)).settings()).coefficients == (1.0, 2.0)


def test_plus():
    """Conditions behind the latents, and a variance behind the prediction."""
    out, base = torch.ones(1, 4, 2), torch.ones(1, 6, 2)
    assert torch.equal(plus(out, base), 2 * out) and torch.equal(plus(base, out, -1)[:, 4:], base[:, 4:])
    assert not plus(base, out, -1)[:, :4].any()
    assert torch.equal(plus(out, torch.ones(3)), out)


def test_easy_cache_needs_no_row_in_the_table():
    class Unknown(diffusers.ModelMixin, diffusers.ConfigMixin):
        def __init__(self):
            super().__init__()
            self.mix = torch.nn.Linear(4, 4)

        def forward(self, sample, timestep):
            return {"sample": torch.tanh(self.mix(sample)) + timestep / 1000}

    class Bare(diffusers.DiffusionPipeline):
        def __init__(self, transformer, scheduler):
            super().__init__()
            self.register_modules(transformer=transformer, scheduler=scheduler)

        @torch.no_grad()
        def __call__(self, x):
            self.scheduler.set_timesteps(6)
            for t in self.scheduler.timesteps:
                x = self.scheduler.step(self.transformer(x, t)["sample"], t, x, return_dict=False)[0]
            return x

    pipe = Bare(Unknown(), diffusers.FlowMatchEulerDiscreteScheduler())
    x = loop.noise(2, 4)
    plain = pipe(x)
    with mmaccel.accelerate(pipe, video.EasyCache(threshold=1e6, warmup=2)) as fast:
        assert not torch.equal(fast(x), plain) and computed(fast) == [1, 1, 0, 0, 0, 1]
    assert torch.equal(pipe(x), plain)
    for method in (video.TeaCache(), video.BlockCache(), video.FirstBlockCache()):
        with pytest.raises(UnsupportedTargetError, match="Unknown has no list of equal blocks.*video.EasyCache"):
            mmaccel.accelerate(pipe, method)


@pytest.mark.parametrize("method", OWN)
def test_a_transformer_alone_has_no_steps(method):
    model, _ = sampled_models.wan()
    with pytest.raises(UnsupportedTargetError, match=r"accelerate\(pipe"):
        mmaccel.accelerate(model, method())
    assert "forward" not in vars(model)


def test_one_cache_at_a_time():
    pipe, _, _ = loop.pipeline(WAN)
    with pytest.raises(ConflictError, match="EasyCache.*TeaCache|TeaCache.*EasyCache"):
        mmaccel.accelerate(pipe, video.EasyCache(), video.TeaCache())
    with pytest.raises(ConflictError):
        mmaccel.accelerate(pipe, video.MagCache(), video.BlockCache())


BAD = (
    (video.EasyCache, {"threshold": -0.1}),
    (video.EasyCache, {"threshold": float("nan")}),
    (video.EasyCache, {"warmup": 0}),
    (video.TeaCache, {"cooldown": -1}),
    (video.TeaCache, {"coefficients": ()}),
    (video.TeaCache, {"coefficients": (1.0, "x")}),
    (video.TeaCache, {"coefficients": 3.0}),
    (video.BlockCache, {"first": 0}),
    (video.BlockCache, {"last": -1}),
    (video.BlockCache, {"warmup": 1.5}),
    (video.TaylorSeer, {"interval": 0}),
    (video.TaylorSeer, {"order": 5}),
    (video.TaylorSeer, {"order": 3}),
    (video.MagCache, {"ratios": (1.0,)}),
    (video.MagCache, {"ratios": 1.0}),
    (video.MagCache, {"max_skips": 0}),
    (video.TaylorSeer, {"order": -1}),
    (video.TaylorSeer, {"cooldown": -1}),
    (video.MagCache, {"ratios": (1.0, -0.1)}),
    (video.PyramidAttentionBroadcast, {"cross": 0}),
    (video.PyramidAttentionBroadcast, {"spatial": 0}),
    (video.PyramidAttentionBroadcast, {"temporal": 0}),
    (video.PyramidAttentionBroadcast, {"timesteps": (5, 5)}),
    (video.PyramidAttentionBroadcast, {"timesteps": (0, 5, 9)}),
    (video.PyramidAttentionBroadcast, {"warmup": 0}),
    (video.FasterCache, {"spatial": 0}),
    (video.FasterCache, {"weight": -0.1}),
    (video.FasterCache, {"timesteps": ("a", 5)}),
    (video.FasterCache, {"warmup": 0}),
    (video.PyramidAttentionBroadcast, {"timesteps": (800, 100)}),
    (video.PyramidAttentionBroadcast, {"timesteps": 5}),
    (video.FasterCache, {"weight": 1.5}),
    (video.FasterCache, {"unconditional": 0}),
    (video.FirstBlockCache, {"threshold": "low"}),
)


@pytest.mark.parametrize(("method", "settings"), BAD)
def test_bad_settings(method, settings):
    with pytest.raises(SettingError, match=method.__name__):
        method(**settings)


def test_settings_at_their_limits_are_taken():
    assert video.TaylorSeer(order=4, warmup=5, cooldown=0).lead == 5 and video.TaylorSeer(order=0, warmup=1).lead == 1
    assert [video.FasterCache(weight=weight).weight for weight in (0, 1)] == [0, 1]
    assert video.FasterCache(timesteps=[-1e9, 0]).timesteps == (-1e9, 0)
    assert video.MagCache(ratios=[0, 1], max_skips=1).ratios == (0.0, 1.0)
    assert video.TeaCache(coefficients=[3]).rescaled(0.5) == 3.0
    assert video.BlockCache(first=1, last=0, warmup=1, cooldown=0).first == 1


def test_as_many_different_changes_as_a_quartic_needs(monkeypatch):
    """Of all prompts; the same change twice tells nothing new."""

    def fitted(*changes):
        pairs = [(x, 2 * x) for x in changes]
        monkeypatch.setattr(tea_cache, "plain_runs", lambda *_: iter([{"changes": pairs[:2]}, {"changes": pairs}]))
        return video.calibrate_tea_cache(None, threshold=0.3)

    method = fitted(0.1, 0.2, 0.3, 0.4, 0.5)
    assert method.threshold == 0.3 and method.rescaled(0.25) == pytest.approx(0.5)
    for changes in ((0.1, 0.2, 0.3, 0.4, 0.4, 0.1), (), (0.1, 0.2, 0.3, 0.4)):
        with pytest.raises(SettingError, match=f"^{len(changes)} changes.*polynomial of degree 4: take more steps"):
            fitted(*changes)
