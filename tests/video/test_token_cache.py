"""TokenCache: what the contract does not see."""

import itertools
from types import SimpleNamespace

import diffusion_loop as loop
import pytest
import torch
from diffusers.models.transformers import transformer_wan
from diffusers.models.transformers.transformer_flux import FluxIPAdapterAttnProcessor

import mmaccel
from mmaccel import video
from mmaccel.errors import ConflictError, SettingError, UnsupportedTargetError
from mmaccel.testing.contract import Interrupted, broken_after, snapshot
from mmaccel.video import examples
from mmaccel.video.blocks import token_cache
from mmaccel.video.families.families import FAMILIES, find_family

WAN = "WanTransformer3DModel"
DIVISIBLE = [name for name in loop.BUILD if FAMILIES[name].is_divisible]
ENDS = {"warmup": 1, "cooldown": 0}
MIXED = video.TokenCache(fractions=(0.0, 0.25, 1.0), interval=3, **ENDS)  # steps 0 and 3 of 6 are full


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.001, 1), (0.26, 17), (1.0, 64)])
def test_a_layer_with_a_share_computes_at_least_a_token(share, count):
    stepper = SimpleNamespace(share=lambda layer: share)
    assert token_cache._Stepper.count(stepper, 0, 64) == count


def computed(session):
    return session.report.details["computed"]


@pytest.mark.parametrize("name", DIVISIBLE)
def test_every_divisible_family(name):
    """Where latents and time stand still, tokens that are reused are those that would be computed."""
    pipe, start, call = loop.pipeline(name)
    plain = {batched: pipe(start, call, batched=batched, return_dict=batched) for batched in (False, True)}
    still, before = pipe(start, call, still=True), snapshot(pipe)
    layers = len(find_family(pipe.transformer).block_list(pipe.transformer))
    mixed = tuple(itertools.islice(itertools.cycle((0.5, 0.0, 0.25)), layers))
    for fractions in (None, mixed):
        with mmaccel.accelerate(pipe, video.TokenCache(0.6, 3, fractions, **ENDS)) as fast:
            for batched in (False, True):
                out = fast(start, call, batched=batched, return_dict=batched)
                assert fast.report.engaged and fast.report.peak_extra_bytes > 0 and fast.report.work_ratio < 0.8
                assert out.isfinite().all() and not torch.equal(out, plain[batched])
            torch.testing.assert_close(fast(start, call, still=True), still, rtol=1e-3, atol=1e-4)
        assert snapshot(pipe) == before
    assert torch.equal(pipe(start, call, batched=True, return_dict=True), plain[True])


@pytest.mark.parametrize("name", [name for name in loop.BUILD if name not in DIVISIBLE])
def test_other_families_are_refused(name):
    pipe, _, _ = loop.pipeline(name)
    with pytest.raises(UnsupportedTargetError, match="only those of Allegro.*Wan.*BlockCache"):
        mmaccel.accelerate(pipe, video.TokenCache())
    assert "forward" not in vars(pipe.transformer)


def test_a_first_frame_that_blocks_find_by_its_place_is_refused():
    """In HunyuanVideo's image-to-video the first tokens of whatever a block is given have a time of their own."""
    pipe, _, _ = loop.pipeline("HunyuanVideoTransformer3DModel")
    other = type(pipe.transformer).from_config(pipe.transformer.config, image_condition_type="token_replace")
    replaced = loop.Loop(other, pipe.scheduler)
    for method in (video.TokenCache(), video.HeterogeneousSteps(fraction=0.5)):
        mmaccel.plan(pipe, method)
        with pytest.raises(UnsupportedTargetError, match="apart, since its blocks find the first frame by its place: "):
            mmaccel.plan(replaced, method)


def test_tokens_of_given_pictures_are_modulated_by_their_own_time():
    """In Qwen-Image-Edit, which finds them by an index of rows and tokens."""
    pipe, start, call = loop.pipeline("QwenImageTransformer2DModel")
    other = type(pipe.transformer).from_config(pipe.transformer.config, zero_cond_t=True).eval()
    other.load_state_dict(pipe.transformer.state_dict())
    edit, shapes = loop.Loop(other, pipe.scheduler), [(1, 2, 4), (1, 2, 4)]

    def edited(branch):
        return {**call(branch), "img_shapes": [shapes] * (1 + (branch is None))}

    still = edit(start, edited, still=True)
    for method in (video.TokenCache(0.6, 3, **ENDS), video.HeterogeneousSteps(0.6, interval=3, fraction=0.3)):
        with mmaccel.accelerate(edit, method) as fast:
            assert fast(start, edited, batched=True).isfinite().all() and fast.report.engaged
            out = fast(start, edited, still=True)
            if isinstance(method, video.TokenCache):
                torch.testing.assert_close(out, still, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", (video.TokenCache(0.8), video.HeterogeneousSteps(fraction=0.5, warmup=1)), ids=str)
def test_tokens_are_not_chosen_where_attention_has_a_second_part(method):
    """As with an IP-Adapter, whose keys and values are others."""
    pipe, start, call = loop.pipeline("FluxTransformer2DModel")
    for block in pipe.transformer.transformer_blocks:
        block.attn.set_processor(FluxIPAdapterAttnProcessor(24, 16))
    picture = {"joint_attention_kwargs": {"ip_hidden_states": [loop.noise(1, 4, 16)]}}

    def prompted(branch):
        return {**call(branch), **picture}

    assert pipe(start, prompted).isfinite().all()
    with (
        mmaccel.accelerate(pipe, method) as fast,
        pytest.raises(UnsupportedTargetError, match="attention has a second part, as with an IP-Adapter.*: leave it"),
    ):
        fast(start, prompted)


@pytest.mark.parametrize("name", DIVISIBLE)
def test_whole_shares_are_the_baseline(name):
    """Bit for bit: by the settings, which bypasses all of it, and by rounding, which goes through all of it."""
    pipe, start, call = loop.pipeline(name)
    plain = pipe(start, call)
    layers = len(find_family(pipe.transformer).block_list(pipe.transformer))
    for share, exact in ((1.0, True), (0.9999, False)):
        method = video.TokenCache(fractions=(share,) * layers, **ENDS)
        assert method.exact is exact
        with mmaccel.accelerate(pipe, method) as fast:
            assert torch.equal(fast(start, call), plain)
            assert set(computed(fast)) == {1.0}


def test_layers_compute_their_shares():
    pipe, start, call = loop.pipeline(WAN)
    seen = [[], [], []]
    with mmaccel.accelerate(pipe, MIXED) as fast:
        handles = [
            block.ffn.register_forward_hook(lambda module, args, output, at=at: at.append(args[0].shape[1]))
            for block, at in zip(pipe.transformer.blocks, seen, strict=True)
        ]
        fast(start, call)
        for handle in handles:
            handle.remove()
        full, partial = [1.0, 1.0], [round(1.25 / 3, 4)] * 4
        assert computed(fast) == [*full, *partial, *full, *partial]
    assert seen == [[32] * 4, [32, 32, 8, 8, 8, 8] * 2, [32] * 12]


def test_the_tokens_that_changed_most_are_computed_and_others_keep_their_residual():
    pipe, start, call = loop.pipeline(WAN)
    block, calls, inner = pipe.transformer.blocks[1], [], []
    with mmaccel.accelerate(pipe, MIXED) as fast:
        handles = [
            block.register_forward_hook(lambda module, args, output: calls.append((args[0].clone(), output.clone()))),
            block.norm1.register_forward_pre_hook(lambda module, args: inner.append(args[0].clone())),
        ]
        fast(start, call, branches=lambda step: (1,))
        for handle in handles:
            handle.remove()
    seen, added = calls[0][0].clone(), calls[0][1] - calls[0][0]
    for (before, after), some in zip(calls[1:3], inner[1:3], strict=True):
        tokens = (before - seen).square().sum((0, 2)).topk(8).indices.sort().values
        assert torch.equal(some, before[:, tokens])
        others = torch.ones(32, dtype=torch.bool).index_fill(0, tokens, False)
        torch.testing.assert_close(after[:, others], (before + added)[:, others])
        assert not torch.allclose(after[:, tokens], (before + added)[:, tokens])
        seen[:, tokens], added[:, tokens] = before[:, tokens], (after - before)[:, tokens]


@pytest.mark.parametrize("method", (MIXED, video.TokenCache(0.5, **ENDS)), ids=str)
def test_branches_do_not_mix(method):
    """The prompt's predictions are the same, whatever the other branch is and whether there is one."""
    pipe, start, call = loop.pipeline(WAN)
    alone, beside = [], []

    def moved(module, args, kwargs):
        return args, {**kwargs, "hidden_states": loop.noise(1, 4, 2, 8, 8, seed=pipe.scheduler.step_index or 0)}

    with mmaccel.accelerate(pipe, method) as fast:
        for seen, branches in ((alone, (1,)), (beside, (1, 0))):
            handles = [
                pipe.transformer.register_forward_pre_hook(moved, with_kwargs=True),
                pipe.transformer.register_forward_hook(lambda *call, at=seen: at.append(call[-1][0].clone())),
            ]
            fast(start, call, still=True, branches=lambda step, b=branches: b)
            for handle in handles:
                handle.remove()
    assert all(torch.equal(a, b) for a, b in zip(alone, beside[::2], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(beside[::2], beside[1::2], strict=True))
    assert not any(torch.allclose(a, b) for a, b in itertools.pairwise(alone))


def test_branches_compute_the_same_tokens():
    pipe, start, call = loop.pipeline(WAN)
    places = []
    with mmaccel.accelerate(pipe, MIXED) as fast:
        block = pipe.transformer.blocks[1]
        handles = [
            block.register_forward_pre_hook(lambda module, args: places.append([args[0].clone()])),
            block.norm1.register_forward_pre_hook(lambda module, args: places[-1].append(args[0].clone())),
        ]
        fast(start, call)
        for handle in handles:
            handle.remove()
    tokens = [[(row == whole[0]).all(1).nonzero().item() for row in some[0]] for whole, some in places]
    assert tokens[::2] == tokens[1::2] and len({tuple(x) for x in tokens}) > 2


def test_a_branch_that_was_away_in_a_full_step_is_computed():
    """And all of the step after it, so that guidance does not go on with predictions of two steps."""
    pipe, start, call = loop.pipeline(WAN)
    with mmaccel.accelerate(pipe, MIXED) as fast:
        fast(start, call, steps=8, branches=lambda step: (1,) if step == 3 else (1, 0))
        found = [share == 1 for share in computed(fast)[6:]]
        assert found == [True, False, True, True, True, *[False] * 4]  # steps 3, 4, 5, 6 and 7


def test_a_run_that_starts_further_down():
    pipe, start, call = loop.pipeline(WAN)
    with mmaccel.accelerate(pipe, MIXED) as fast:
        fast(start, call, steps=9, first=4)
        assert [share == 1 for share in computed(fast)[::2]] == [True, False, False, True, False]


def test_a_second_expert_starts_anew_and_the_first_is_forgotten():
    """Wan 2.2: nothing crosses from one transformer to the other."""
    pipe, arguments = loop.two_experts()
    method = video.TokenCache(0.4, 5, **ENDS)
    with mmaccel.accelerate(examples.wan_pipeline()[0], method) as fast:
        fast(**arguments(steps=10))
        alone = fast.report.peak_extra_bytes
    with mmaccel.accelerate(pipe, method) as fast:
        fast(**arguments(steps=10))
        high = int((pipe.scheduler.timesteps >= 800).sum())
        full = [step for step, share in enumerate(computed(fast)[::2]) if share == 1]
        assert 0 < high < 10 and full == [0, *range(5, high, 5), *range(high, 10, 5)]
        assert fast.report.peak_extra_bytes == alone


@pytest.mark.parametrize("build", (examples.wan_pipeline, examples.flux_pipeline))
def test_after_a_broken_run_another_size(build):
    pipe, arguments = build()
    blocks = find_family(pipe.transformer).block_list(pipe.transformer)
    wide, method = arguments(batch=2, width=12, steps=6), video.TokenCache(0.5, fractions=(0.25, 0.75), **ENDS)
    with mmaccel.accelerate(pipe, method) as fast:
        expected = fast(**wide)[0]
        before = snapshot(pipe.transformer)
        for attention in (blocks[0].attn1 if hasattr(blocks[0], "attn1") else blocks[0].attn, blocks[1]):
            with broken_after(attention, 5), pytest.raises(Interrupted):
                fast(**arguments())
            assert torch.equal(fast(**wide)[0], expected)
        assert snapshot(pipe.transformer).keys() == before.keys()
    assert "forward" not in vars(pipe.transformer) and "forward" not in vars(blocks[0])


def test_memory_is_what_is_kept():
    """A skipped layer keeps its residual, a whole one nothing, one in between its keys and values and inputs too."""
    pipe, start, call = loop.pipeline(WAN)
    tokens = 4 * 32 * 24
    with mmaccel.accelerate(pipe, MIXED) as fast:
        fast(start, call)
        assert fast.report.peak_extra_bytes == tokens * (2 * (1 + 3) + 1)  # two branches, of which one ranks
        fast(start, call, branches=lambda step: (1,))
        assert fast.report.peak_extra_bytes == tokens * 5


def test_budget_is_kept_or_the_report_says_why_not():
    pipe, start, call = loop.pipeline(WAN)
    for budget in (0.4, 0.6, 0.8):
        with mmaccel.accelerate(pipe, video.TokenCache(budget, **ENDS)) as fast:
            fast(start, call, steps=16)
            assert fast.report.work_ratio == pytest.approx(budget, abs=0.02) and not fast.report.warnings
    with mmaccel.accelerate(pipe, video.TokenCache(0.5)) as fast:
        fast(start, call, steps=6)
        assert "67% of the work is computed instead of 50%: take a longer interval" in str(fast.report)
        fast(start, call, steps=4)
        assert "reused nothing: warmup and cooldown take 4 steps and the run has 4" in str(fast.report)
        fast(start, call, steps=24, first=18)
        assert "67% of the work" in str(fast.report) and "smaller fractions" not in str(fast.report), (
            "of the steps it makes"
        )
    with mmaccel.accelerate(pipe, video.TokenCache(0.5, fractions=(0.9, 0.5, 0.9), **ENDS)) as fast:
        fast(start, call, steps=16)
        assert "82% of the work is computed instead of 50%" in str(fast.report)
        assert "or smaller fractions" in str(fast.report)


@pytest.mark.parametrize(("budget", "warns"), [(0.6, False), (0.58, True)])
def test_half_a_step_above_the_budget_is_no_warning(budget, warns):
    """Four of six steps are full."""
    pipe, start, call = loop.pipeline(WAN)
    with mmaccel.accelerate(pipe, video.TokenCache(budget)) as fast:
        fast(start, call, steps=6)
        assert bool(fast.report.warnings) is warns and computed(fast)[::2].count(1.0) == 4


def test_there_are_as_many_fractions_as_layers():
    pipe, _, _ = loop.pipeline(WAN)
    with pytest.raises(SettingError, match="fractions for 2 layers, and WanTransformer3DModel has 3"):
        mmaccel.accelerate(pipe, video.TokenCache(fractions=(0.5, 0.5)))
    assert "forward" not in vars(pipe.transformer)


def test_one_cache_at_a_time_and_no_compiled_blocks():
    pipe, _, _ = loop.pipeline(WAN)
    with pytest.raises(ConflictError, match="TokenCache"):
        mmaccel.plan(pipe, video.TokenCache(), video.EasyCache())
    pipe.transformer.blocks[0].compile()
    with pytest.raises(UnsupportedTargetError, match="is compiled.*BlockCache"):
        mmaccel.accelerate(pipe, video.TokenCache())


@pytest.mark.parametrize("method", (MIXED, video.HeterogeneousSteps(0.5, fraction=0.25, warmup=1)), ids=str)
def test_attention_of_another_kernel_is_refused_before_a_token_is_chosen(method, monkeypatch):
    """It would attend to the chosen tokens alone."""
    pipe, start, call = loop.pipeline(WAN)
    monkeypatch.setattr(transformer_wan, "dispatch_attention_fn", lambda query, *given, **more: query)
    with mmaccel.accelerate(pipe, method) as fast:
        with pytest.raises(UnsupportedTargetError, match='set_attention_backend."native".'):
            fast(start, call)
        monkeypatch.undo()
        assert fast(start, call).isfinite().all()


BAD = ({"budget": 0}, {"budget": 1.1}, {"interval": 0}, {"interval": 2.5}, {"warmup": 0}, {"cooldown": -1})


@pytest.mark.parametrize("settings", (*BAD, {"fractions": ()}, {"fractions": (0.5, 2)}, {"fractions": 0.5}), ids=str)
def test_bad_settings(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        video.TokenCache(**settings)


def test_fractions_make_the_round_trip():
    method = video.TokenCache(fractions=[0, 0.5])
    assert method.fractions == (0.0, 0.5) and video.TokenCache.from_settings(method.settings()) == method
