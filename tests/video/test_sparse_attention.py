"""Sparse attention in diffusion transformers: what the contract does not see."""

import copy
import functools
import itertools
from types import SimpleNamespace

import diffusers
import diffusion_loop as loop
import pytest
import sampled_models
import torch
import torch.nn.functional as F
from diffusers.models.transformers import transformer_wan

import mmaccel
from mmaccel.demos.families.models import build
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.kernels import policies
from mmaccel.report import Report
from mmaccel.video import EasyCache, SparseAttention, auto, examples
from mmaccel.video.blocks import sparse_attention as module
from mmaccel.video.blocks.sparse_attention import _radial, _sliding_tile

POLICIES = ("pooled_top_k", "pooled_top_p", "sparge", "radial", "sliding_tile")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("build", (sampled_models.wan, sampled_models.ltx))
def test_every_policy_saves_what_it_says(policy, build):
    model, arguments = build()
    call = arguments(2, frames=16)
    plain = model(**call)
    with mmaccel.accelerate(model, SparseAttention(policy, budget=0.5, min_length=64, always=True)) as fast:
        out = fast(**call)
        assert 0.1 < fast.report.work_ratio <= 0.55
        # two self-attentions of two heads, two rows; cross-attention is not counted
        assert fast.report.plain_keys == 2 * 2 * 2 * (16 * 8 * 8) ** 2
    assert not torch.equal(out, plain)
    assert torch.equal(model(**call), plain)


@pytest.mark.parametrize("policy", POLICIES)
def test_all_blocks_are_dense_attention(policy):
    """The whole path, permutation included, with nothing left out."""
    model, arguments = sampled_models.wan()
    call = arguments(1)
    almost = SparseAttention(policy, budget=0.9999, min_length=64, always=True)
    everything = torch.ones(1, 1, 4, 4, dtype=torch.bool)

    def whole(*_, **__):
        return mmaccel.kernels.BlockPlan.from_mask(everything, q_len=256, kv_len=256)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("radial", "sliding_tile"):
            patch.setattr(policies, name, whole)
        patch.setitem(policies.PREFILL, policy, whole)
        _radial.cache_clear()
        _sliding_tile.cache_clear()
        with mmaccel.accelerate(model, almost) as fast:
            out = fast(**call)
    _radial.cache_clear()
    _sliding_tile.cache_clear()
    torch.testing.assert_close(out, model(**call), rtol=1e-4, atol=1e-5)


def test_tiles_come_back_to_their_places(monkeypatch):
    """On a grid of four tiles, whose order is not its own inverse."""
    model, arguments = sampled_models.wan()
    call = arguments(1, frames=2, height=16, width=24)
    order = policies.tile_order((2, 16, 24), (2, 8, 8), device="cpu")
    assert not torch.equal(order, order.argsort())
    everything = torch.ones(1, 1, 12, 12, dtype=torch.bool)
    plan = mmaccel.kernels.BlockPlan.from_mask(everything, q_len=768, kv_len=768)
    monkeypatch.setattr(module, "_sliding_tile", lambda *_: (torch.stack([order, order.argsort()]), plan))
    with mmaccel.accelerate(model, SparseAttention("sliding_tile", min_length=64, always=True)) as fast:
        out = fast(**call)
    torch.testing.assert_close(out, model(**call), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("least", "engages"), [(256, True), (257, False)])
def test_shorter_sequences_stay_dense(least, engages):
    model, arguments = sampled_models.wan()
    with mmaccel.accelerate(model, SparseAttention(min_length=least, always=True)) as fast:
        fast(**arguments(1))
        assert fast.report.engaged == engages


def test_places_follow_the_grid():
    order, plan = _sliding_tile((4, 16, 16), 0.3, "cpu")
    assert sorted(order[0].tolist()) == list(range(4 * 16 * 16)) and plan.density <= 0.3
    assert torch.equal(order[0][order[1]], torch.arange(4 * 16 * 16))
    _, narrow = _radial((16, 8, 8), 0.4, "cpu")
    _, wide = _radial((16, 8, 8), 0.8, "cpu")
    assert narrow.density <= 0.4 < wide.density <= 0.8


@pytest.mark.parametrize("budget", (0.02, 0.3, 0.6, 1.0))
@pytest.mark.parametrize("grid", ((4, 16, 16), (3, 10, 14), (5, 8, 22), (5, 22, 8)), ids=str)
def test_windows_are_the_largest_of_all_that_the_budget_allows(grid, budget):
    """Of every window, as a search through all of them finds it."""
    tile = tuple(max(d for d in range(1, most + 1) if n % d == 0) for n, most in zip(grid, (4, 8, 8), strict=True))
    sizes = [[*range(1, n // t + 2, 2)] for n, t in zip(grid, tile, strict=True)]
    plans = [policies.sliding_tile(grid, tile, window) for window in itertools.product(*sizes)]
    fitting = [plan.density for plan in plans if plan.density <= budget]
    assert _sliding_tile(grid, budget, "cpu")[1].density == (max(fitting) if fitting else plans[0].density)


@pytest.mark.parametrize(("grid", "most"), (((4, 8, 211), 12), ((4, 211, 8), 12), ((9, 53, 10), 30)), ids=str)
def test_an_axis_of_many_tiles_takes_few_tries(grid, most, monkeypatch):
    """As a prime number of tokens has, 848 pixels by Wan: each of these plans would be made of all its windows."""
    asked, original = [], policies.sliding_tile

    def plan(*given, **more):
        asked.append(given)
        return original(*given, **more)

    monkeypatch.setattr(policies, "sliding_tile", plan)
    _sliding_tile(grid, 0.3, "cpu")
    assert len(asked) < most


def test_short_sequences_stay_dense_and_say_so():
    model, arguments = sampled_models.wan()
    with mmaccel.accelerate(model, SparseAttention(min_length=257)) as fast:
        out = fast(**arguments(1))
        assert not fast.report.engaged and "did not engage" in str(fast.report)
    assert torch.equal(out, model(**arguments(1)))


def test_attention_that_stays_dense_leaves_what_the_method_beside_it_did():
    pipe, arguments = examples.wan_pipeline()
    with mmaccel.accelerate(pipe, EasyCache(1e6, warmup=2), SparseAttention(min_length=257)) as fast:
        fast(**arguments(steps=6))
        assert fast.report.plain_keys and not fast.report.warnings


def test_other_models_and_threads_do_not_notice():
    model, arguments = sampled_models.wan()
    other, _ = sampled_models.wan(seed=1)
    expected = other(**arguments(1))
    query = torch.randn(1, 2, 256, 24)
    dense = F.scaled_dot_product_attention(query, query, query)
    with mmaccel.accelerate(model, SparseAttention(min_length=64, always=True)) as fast:
        seen = []
        handle = model.blocks[1].register_forward_hook(lambda *_: seen.append(other(**arguments(1))))
        try:
            fast(**arguments(1))
        finally:
            handle.remove()
        assert torch.equal(other(**arguments(1)), expected)
        assert torch.equal(F.scaled_dot_product_attention(query, query, query), dense)


def test_an_exception_leaves_the_function_alone():
    model, arguments = sampled_models.wan()
    query = torch.randn(1, 2, 256, 24)
    dense = F.scaled_dot_product_attention(query, query, query)
    with mmaccel.accelerate(model, SparseAttention(min_length=64, always=True)) as fast:
        with (
            mmaccel.testing.contract.broken_after(model.blocks[1], 0),
            pytest.raises(mmaccel.testing.contract.Interrupted),
        ):
            fast(**arguments(1))
        assert torch.equal(F.scaled_dot_product_attention(query, query, query), dense)
        fast(**arguments(1))
        assert fast.report.engaged


def test_a_pipeline_is_accelerated_through_its_transformer():
    from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanPipeline

    model, _ = sampled_models.wan()
    model._forward_hooks.clear()
    vae = AutoencoderKLWan(
        base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, latents_mean=[0.0] * 4, latents_std=[1.0] * 4
    )
    scheduler = FlowMatchEulerDiscreteScheduler()
    pipe = WanPipeline(tokenizer=None, text_encoder=None, vae=vae.eval(), scheduler=scheduler, transformer=model)
    pipe.set_progress_bar_config(disable=True)
    embeds = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0))

    def draw(target):
        generator = torch.Generator().manual_seed(0)
        common = {"num_frames": 9, "height": 128, "width": 128, "num_inference_steps": 2, "guidance_scale": 3.0}
        return target(
            prompt_embeds=embeds, negative_prompt_embeds=0 * embeds, generator=generator, output_type="pt", **common
        ).frames

    plain = draw(pipe)
    with mmaccel.accelerate(pipe, SparseAttention(min_length=64, always=True)) as fast:
        frames = draw(fast)
        assert fast.report.engaged and fast.report.wall_seconds > 0
        assert frames.shape == plain.shape and not torch.equal(frames, plain)
    assert torch.equal(draw(pipe), plain)


def test_where_dense_is_faster_it_runs_and_the_report_says_so(monkeypatch):
    model, arguments = sampled_models.wan()
    monkeypatch.setattr("mmaccel.kernels.should_use_sparse", lambda *_, **__: False)
    with mmaccel.accelerate(model, SparseAttention(min_length=64)) as fast:
        out = fast(**arguments(1))
        assert not fast.report.engaged and fast.report.work_ratio == 1
        assert "faster on this machine: the policy kept 25% of the blocks of 256" in str(fast.report)
    assert torch.equal(out, model(**arguments(1)))


def attention_of(**settings):
    """The attention of a session, and the report that it counts in."""
    method = SparseAttention(**{"min_length": 64, "always": True, "budget": 0.5, **settings})
    session = SimpleNamespace(report=Report([str(method)], False))
    return module._Attention(method, session, module._Runs(session)), session.report


@pytest.mark.parametrize(
    "more",
    (
        {"attn_mask": torch.ones(256, 256, dtype=torch.bool)},
        {"dropout_p": 0.5},
        {"is_causal": True},
    ),
    ids=lambda more: next(iter(more)),
)
def test_what_is_not_plain_self_attention_is_left_to_the_model(more):
    attention, report = attention_of()
    query, given = torch.randn(1, 2, 256, 24), {}

    def original(*tensors, **arguments):
        given.update(arguments)
        return tensors[0]

    assert attention(original, query, query, query, **more, scale=0.3, enable_gqa=True) is query
    plain = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False}
    assert given == {**plain, **more, "scale": 0.3, "enable_gqa": True}
    assert report.keys == report.plain_keys == 2 * 256**2 and not report.engaged
    assert attention(original, query, query[:, :, :128], query[:, :, :128]) is query, "cross-attention"
    assert attention(original, query[0], query[0], query[0]) is not query and report.plain_keys == 2 * 256**2


def test_attention_with_a_mask_stays_dense_and_the_report_says_so():
    attention, report = attention_of()
    for length in (32, 256):
        query, mask = torch.randn(1, 2, length, 24), torch.ones(1, 1, 1, length, dtype=torch.bool)
        attention(F.scaled_dot_product_attention, query, query, query, attn_mask=mask)
    assert report.warnings == ["attention with a mask stayed dense, over 256 tokens"]


@pytest.mark.parametrize("which", range(3), ids=("query", "key", "value"))
def test_attention_stays_dense_where_gradients_are_wanted_and_the_report_says_so(which):
    attention, report = attention_of()
    tensors = [*torch.randn(3, 1, 2, 256, 24, generator=torch.Generator().manual_seed(0))]
    wanted = tensors[which].requires_grad_()
    expected = F.scaled_dot_product_attention(*tensors)
    found = attention(F.scaled_dot_product_attention, *tensors)
    assert torch.equal(found, expected) and report.warnings == [module.GRADIENTS] and not report.engaged
    assert torch.equal(*(torch.autograd.grad(x.square().sum(), wanted)[0] for x in (found, expected)))
    with torch.no_grad():
        assert not torch.equal(attention(F.scaled_dot_product_attention, *tensors), expected) and report.engaged


def test_attention_of_another_kernel_stays_as_it_is_and_the_report_says_so(monkeypatch):
    model, arguments = sampled_models.wan()
    monkeypatch.setattr(transformer_wan, "dispatch_attention_fn", lambda query, *given, **more: query)
    with mmaccel.accelerate(model, SparseAttention(min_length=64, always=True)) as fast:
        fast(**arguments(1))
        assert not fast.report.engaged and 'set_attention_backend("native")' in str(fast.report)


@pytest.mark.parametrize("policy", ("pooled_top_p", "sparge"))
def test_blocks_are_chosen_by_the_scale_of_the_model(policy):
    """Which rows need many blocks depends on it."""
    attention, _ = attention_of(policy=policy)
    query = torch.randn(1, 2, 512, 24, generator=torch.Generator().manual_seed(0))
    found = attention(F.scaled_dot_product_attention, query, query, query, scale=7.0)
    choose = functools.partial(policies.PREFILL[policy], query, query, budget=0.5, causal=False)
    by_scale, usual = (
        mmaccel.kernels.block_sparse_attention(query, query, query, plan, scale=7.0)[0]
        for plan in (choose(scale=7.0), choose())
    )
    assert torch.equal(found, by_scale) and not torch.equal(found, usual)


def test_the_scale_of_the_model_is_kept():
    attention, report = attention_of(budget=0.9999)
    query, key, value = torch.randn(3, 1, 2, 256, 24)
    whole = mmaccel.kernels.BlockPlan.from_mask(torch.ones(1, 1, 4, 4, dtype=torch.bool), q_len=256, kv_len=256)
    attention._plan = lambda *_: (None, whole)
    found = attention(F.scaled_dot_product_attention, query, key, value, scale=0.7)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(query, key, value, scale=0.7))
    assert report.tokens == 256


def test_tokens_of_a_report_are_those_of_the_longest_sequence_and_all_its_rows():
    attention, report = attention_of()
    for rows, length in ((1, 64), (3, 256), (1, 128)):
        query = torch.randn(rows, 2, length, 24)
        attention(F.scaled_dot_product_attention, query, query, query)
    assert report.tokens == 3 * 256


def test_whether_it_pays_is_asked_of_this_plan(monkeypatch):
    asked = []
    monkeypatch.setattr("mmaccel.kernels.should_use_sparse", lambda *given, **more: asked.append((given, more)) or True)
    attention, report = attention_of(always=False, budget=0.25)
    query = torch.randn(1, 2, 256, 24, dtype=torch.float64)
    attention(F.scaled_dot_product_attention, query, query, query)
    assert asked == [((0.25, 256, torch.device("cpu")), {"dtype": torch.float64})] and report.engaged


@pytest.mark.parametrize("budget", (0.01, 0.1, 0.3, 0.5, 0.77, 0.999))
@pytest.mark.parametrize("length", (64, 130, 1000))
def test_whether_top_k_pays_is_known_before_it_chooses(monkeypatch, budget, length):
    told = []
    monkeypatch.setattr("mmaccel.kernels.should_use_sparse", lambda share, *_, **__: told.append(share))
    monkeypatch.setattr(policies, "PREFILL", {"pooled_top_k": pytest.fail})
    query = torch.randn(1, 2, length, 24)
    attention, report = attention_of(always=False, budget=budget)
    attention(F.scaled_dot_product_attention, query, query, query)
    monkeypatch.undo()
    attention, _ = attention_of(budget=budget)
    assert told == [attention._chosen(query, query, None)[1].density] and report.keys == report.plain_keys


@pytest.mark.parametrize("policy", module.BLOCK_POLICIES)
def test_policies_by_content_get_the_budget_and_are_not_causal(policy, monkeypatch):
    asked = []
    monkeypatch.setitem(policies.PREFILL, policy, lambda query, key, **more: asked.append(more))
    attention, _ = attention_of(policy=policy, budget=0.4)
    query = torch.randn(1, 2, 256, 24)
    attention(F.scaled_dot_product_attention, query, query, query)
    assert asked == [{"budget": 0.4, "causal": False, "block_m": 64, "block_n": 64, "scale": None}]


def test_places_are_those_of_the_call():
    """Of every call anew; a sequence of another length has none, and is left dense."""
    model, arguments = sampled_models.wan()
    with mmaccel.accelerate(model, SparseAttention("sliding_tile", 0.5, min_length=64, always=True)) as fast:
        for frames in (16, 8, 16):
            fast(**arguments(1, frames=frames))
            assert fast.report.engaged and fast.report.work_ratio <= 0.55
    attention, report = attention_of(policy="radial")
    query = torch.randn(1, 2, 256, 24)
    for grid in (None, (4, 8, 9)):
        attention.grid = grid
        attention(F.scaled_dot_product_attention, query, query, query)
    assert report.keys == report.plain_keys
    assert report.warnings == [module.UNPLACED]


def test_a_call_that_does_not_tell_where_tokens_lie_is_said():
    """As of `LTXConditionPipeline`, which gives the coordinates of every token instead."""
    model, call = build("LTXVideoTransformer3DModel")
    grid = {name: call.pop(name) for name in ("num_frames", "height", "width")}
    coordinates = torch.zeros(2, 3, 512)
    with mmaccel.accelerate(model, SparseAttention("radial", min_length=64, always=True)) as fast:
        fast(**call, video_coords=coordinates)
        assert not fast.report.engaged and fast.report.warnings == [module.UNPLACED]
        fast(**call, **grid)
        assert fast.report.plain_keys and not fast.report.warnings


def test_compiled_modules_are_refused_where_something_is_changed():
    model, _ = sampled_models.wan()
    model.blocks[1].attn1.compile()
    with pytest.raises(UnsupportedTargetError, match="is compiled"):
        mmaccel.plan(model, SparseAttention())
    assert mmaccel.plan(model, SparseAttention(budget=1.0)), "which touches nothing"


def test_under_autocast_it_attends_as_torch_does():
    """The norms of queries and keys leave them in float32, and values are in autocast's type."""
    attention, report = attention_of(budget=0.9999)
    query, key, value = torch.randn(3, 1, 2, 256, 24)
    whole = mmaccel.kernels.BlockPlan.from_mask(torch.ones(1, 1, 4, 4, dtype=torch.bool), q_len=256, kv_len=256)
    attention._plan = lambda *_: (None, whole)
    with torch.autocast("cpu", torch.bfloat16):
        found = attention(F.scaled_dot_product_attention, query, key, value.bfloat16())
        expected = F.scaled_dot_product_attention(query, key, value.bfloat16())
    assert found.dtype == expected.dtype == torch.bfloat16 and report.tokens == 256
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.01)


def test_pipelines_of_float32_run_under_autocast():
    pipe, start, call = loop.pipeline("ZImageTransformer2DModel")
    with torch.autocast("cpu", torch.bfloat16):
        plain = pipe(start, call)
        with mmaccel.accelerate(pipe, SparseAttention(min_length=8, always=True)) as fast:
            found = fast(start, call)
            assert fast.report.plain_keys and found.isfinite().all() and found.dtype == plain.dtype


@pytest.mark.parametrize(
    ("name", "settings"),
    (
        ("AnyFlowFARTransformer3DModel", {}),
        ("Kandinsky5Transformer3DModel", {"attention_type": "nabla"}),
        ("Kandinsky6SRTransformer3DModel", {}),
    ),
)
def test_attention_by_masks_of_blocks_is_refused(name, settings):
    """Which torch's own attention does not read, so that another backend would break the plain pipeline."""
    model, _ = build(name)
    masked = type(model).from_config(model.config, **settings)
    with pytest.raises(UnsupportedTargetError, match=f"{name} attends by masks of blocks.*HeterogeneousSteps"):
        mmaccel.plan(masked, SparseAttention())
    assert not settings or mmaccel.plan(model, SparseAttention())


def test_attention_by_masks_of_blocks_over_keys_that_are_kept_is_refused():
    sizes = {"dim": 24, "num_heads": 2, "num_layers": 1, "ffn_dim": 16, "freq_dim": 16, "text_dim": 16}
    model = diffusers.WanAnimate2Transformer3DModel(**sizes, in_dim=8, out_dim=4, use_img_emb=False)
    with pytest.raises(UnsupportedTargetError, match="WanAnimate2Transformer3DModel attends by masks of blocks"):
        mmaccel.plan(model, SparseAttention())


BAD = (("policy", "pooled"), ("budget", 0.0), ("budget", 1.5), ("min_length", 0), ("always", 1))


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_settings(name, value):
    with pytest.raises(SettingError, match=name):
        SparseAttention(**{name: value})


def test_a_policy_by_place_needs_a_known_grid():
    model, _ = sampled_models.flux()
    with pytest.raises(UnsupportedTargetError, match="FluxTransformer2DModel is not among"):
        mmaccel.accelerate(model, SparseAttention("radial"))
    joint, _, _ = loop.pipeline("HunyuanVideoTransformer3DModel")  # text is among its tokens
    with pytest.raises(UnsupportedTargetError, match="HunyuanVideoTransformer3DModel is not among LTX"):
        mmaccel.accelerate(joint, SparseAttention("radial"))
    mmaccel.accelerate(model, SparseAttention()).remove()


def test_a_pipeline_without_a_transformer_has_nothing_to_make_sparse():
    pipe, _ = examples.wan_pipeline()
    pipe.register_modules(transformer=None)
    with pytest.raises(UnsupportedTargetError, match="WanPipeline has no transformer to make sparse"):
        mmaccel.plan(pipe, SparseAttention())


@pytest.mark.parametrize("text", (255, 256, 257))
def test_attention_to_a_text_as_long_as_the_latents_stays_dense(text, monkeypatch):
    """256 tokens of latents: then which of the two attentions it is cannot be told, and both are dense."""
    pipe, arguments = examples.wan_pipeline()
    call = {**arguments(1, steps=2), "prompt_embeds": torch.randn(1, text, 16), "guidance_scale": 1.0}
    tokens = call["latents"][0, 0].numel() // 4
    assert tokens == 256
    lengths, real = [], module.kernels.block_sparse_attention

    def noted(query, key, value, plan, **more):
        lengths.append(key.shape[2])
        return real(query, key, value, plan, **more)

    monkeypatch.setattr(module.kernels, "block_sparse_attention", noted)
    with mmaccel.accelerate(pipe, SparseAttention(min_length=32, always=True)) as fast:
        fast(**call)
    assert lengths == [tokens] * len(lengths) and bool(lengths) == (text != tokens)


@pytest.mark.parametrize("more", ((), (EasyCache(threshold=0.0),), (auto(),)), ids=str)
def test_calls_of_the_pipeline_itself_have_a_report_each(more):
    pipe, arguments = examples.wan_pipeline()
    call = arguments(1, steps=2)
    with mmaccel.accelerate(pipe, SparseAttention(min_length=32, always=True), *more) as fast:
        fast.report.wall_seconds = 1.0
        pipe(**call)
        keys, plain = fast.report.keys, fast.report.plain_keys
        told = list(fast.report.warnings)
        for _ in range(2):
            pipe(**call)
            assert (fast.report.keys, fast.report.plain_keys) == (keys, plain) and 0 < keys < plain
            assert fast.report.warnings == told and not fast.report.wall_seconds
    assert bool(told) == (auto() in more), "which says that it measures calls of the session alone"


def test_a_copy_of_a_transformer_is_plain():
    model, arguments = sampled_models.wan()
    call = arguments(1)
    plain = model(**call)
    with mmaccel.accelerate(model, SparseAttention(min_length=64, always=True)) as fast:
        copied = copy.deepcopy(model)
        assert torch.equal(copied(**call), plain) and not torch.equal(fast(**call), plain)
    assert torch.equal(copied(**call), plain)
