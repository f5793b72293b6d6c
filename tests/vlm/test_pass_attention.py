"""The attention of passes that verify drafts: the kernel's, or torch's own without repeated keys."""

from contextlib import contextmanager

import pytest
import torch
from draft_models import call, deepseek_v3, gemma3, gemma3n, gpt_oss, inkling, lfm2, mistral, qwen3_next, sharp, zaya
from mtp_layers import glm_moe_dsa
from torch.nn import functional
from transformers import HunYuanDenseV1Config, HunYuanDenseV1ForCausalLM

import mmaccel
from mmaccel import kernels
from mmaccel.decoding.passes import pass_attention
from mmaccel.decoding.passes.pass_attention import FEW, PassAttention, grouped_attention, grouped_mask
from mmaccel.decoding.passes.windows import own_attention, unfit_layers
from mmaccel.demos.families import visual_models
from mmaccel.patching import attention_layers
from mmaccel.vlm import SparsePrefill, SuffixDecoding, TokenRecycling, examples, visual_examples


def llama():
    return examples.llama()[0]


def qwen2_5_vl():
    return visual_examples.qwen2_5_vl()[0]


@pytest.fixture
def asked(monkeypatch):
    """What the kernel is asked: the tree, and the tokens that are any."""
    found = []
    attend = kernels.verify_attention

    def noted(q, k, v, lengths, tokens, window, **more):
        found.append((window, tokens))
        return attend(q, k, v, lengths, tokens, window, **more)

    monkeypatch.setattr(kernels, "verify_attention", noted)
    return found


def same_text(model, given, method=None):
    """Drafted twice, and whether it is the plain model's."""
    plain = model.generate(**given)
    with mmaccel.accelerate(model, method or TokenRecycling(always=True)) as fast:
        texts = [fast.generate(**given) for _ in range(2)]
        assert fast.report.details["accepted"] > 0 and not fast.report.warnings
    return all(torch.equal(text, plain) for text in texts)


@pytest.mark.parametrize("build", (llama, qwen2_5_vl, gemma3), ids=lambda build: build.__name__)
@pytest.mark.parametrize(("batch", "pad"), ((1, 0), (3, 5)))
def test_the_kernel_attends_to_trees(build, batch, pad, asked):
    """And to the rows of a batch, whose rejected drafts and padding are no tokens."""
    with kernels.backend("reference"):
        assert same_text(build(), call(batch, pad, max_new_tokens=24))
    windows, tokens = zip(*asked, strict=True)
    assert any(not torch.equal(tree, torch.ones_like(tree).tril()) for tree in windows), "there are alternatives"
    assert all(chosen is None for chosen in tokens) if batch == 1 else any(chosen is not None for chosen in tokens)


@pytest.mark.parametrize("batch", (1, 3))
@pytest.mark.parametrize("build", (llama, gemma3), ids=lambda build: build.__name__)
def test_beside_a_method_on_prompts_drafts_attend_as_ever(build, batch, monkeypatch):
    """Keys are not repeated, windows have trees, and what is counted are the pairs of the prompt."""
    model, given, widths, trees = build(), call(batch, max_new_tokens=24), [], []
    attend, expect = pass_attention.grouped_attention, PassAttention.expect

    def noted(query, *more):
        widths.append(query.shape[2])
        return attend(query, *more)

    def expected(self, mask, *more):
        new = mask[0, 0, :, -mask.shape[2] :]
        trees.append(not torch.equal(new, torch.ones_like(new).tril()))
        return expect(self, mask, *more)

    sparse = SparsePrefill(budget=0.4, min_length=8, block_m=16, block_n=16, always=True)
    with mmaccel.accelerate(model, sparse) as fast:
        plain = fast.generate(**given)
        fast.generate(**given | {"max_new_tokens": 1})
        pairs, said = (fast.report.keys, fast.report.plain_keys), fast.report.warnings
    monkeypatch.setattr(pass_attention, "grouped_attention", noted)
    monkeypatch.setattr(PassAttention, "expect", expected)
    with mmaccel.accelerate(model, sparse, TokenRecycling(always=True)) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**given), plain)
        assert fast.report.details["accepted"] > 0 and fast.report.warnings == said
        assert max(widths) > 1 and any(trees), "there are alternatives"
        assert (fast.report.keys, fast.report.plain_keys) == pairs


@pytest.mark.parametrize("build", (deepseek_v3, gpt_oss, mistral), ids=lambda build: build.__name__)
def test_what_the_kernel_does_not_know_is_left_to_the_model(build, asked):
    with kernels.backend("reference"):
        assert same_text(build(), call(max_new_tokens=12)) and not asked


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("groups", (1, 2, 3))
@pytest.mark.parametrize("tokens", (1, 2, FEW, FEW + 1))
@pytest.mark.parametrize("batch", (1, 3))
def test_query_heads_of_a_group_attend_to_what_each_would(dtype, groups, tokens, batch):
    torch.manual_seed(0)
    query = torch.randn(batch, tokens, 2 * groups, 16, dtype=dtype).transpose(1, 2)  # as the model has it
    keys, values = torch.randn(2, batch, 2, 21, 16, dtype=dtype)
    mask = torch.rand(batch, 1, tokens, 21) < 0.7
    for scale in (None, 0.3):
        found = grouped_attention(query, keys, values, grouped_mask(mask, query, keys), scale)
        exact = (t.double() for t in (query, *(t.repeat_interleave(groups, 1) for t in (keys, values))))
        expected = functional.scaled_dot_product_attention(*exact, mask, scale=scale)
        assert found.dtype == dtype and found.shape == query.shape
        torch.testing.assert_close(found.double(), expected, atol=0.03 if dtype == torch.bfloat16 else 1e-5, rtol=0)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("groups", (1, 3))
@pytest.mark.parametrize("batch", (1, 3))
def test_a_token_that_sees_all_needs_no_mask(dtype, groups, batch):
    torch.manual_seed(0)
    query = torch.randn(batch, 1, 2 * groups, 16, dtype=dtype).transpose(1, 2)
    keys, values = torch.randn(2, batch, 2, 21, 16, dtype=dtype)
    mask = grouped_mask(torch.ones(batch, 1, 1, 21, dtype=torch.bool), query, keys)
    expected = grouped_attention(query, keys, values, mask, 0.3)
    found = grouped_attention(query, keys, values, None, 0.3)
    torch.testing.assert_close(found, expected)


def test_masks_are_given_where_a_text_has_places_that_it_does_not_see(monkeypatch):
    given = []
    attend = pass_attention.grouped_attention

    def noted(query, key, value, mask, scale=None):
        given.append((query.shape[2], mask is None))
        return attend(query, key, value, mask, scale)

    monkeypatch.setattr(pass_attention, "grouped_attention", noted)
    for pad in (False, True):
        given.clear()
        assert same_text(llama(), call(2 if pad else 1, pad, max_new_tokens=12))
        assert {none for width, none in given if width > 1} <= {False}
        assert {none for width, none in given if width == 1} == {not pad}


@pytest.mark.parametrize("build", (llama, gemma3), ids=lambda build: build.__name__)
@pytest.mark.parametrize("method", (TokenRecycling(always=True), SuffixDecoding(shortest=1)), ids=lambda m: m.name)
def test_a_processor_repeats_no_keys(build, method, monkeypatch):
    """Neither for trees, nor for chains with masks of the model's own, windows included."""
    heads = []
    attend = functional.scaled_dot_product_attention

    def noted(q, k, *rest, **more):
        heads.append((q.shape[2], k.shape[1]))
        return attend(q, k, *rest, **more)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", noted)
    model = build()
    assert same_text(model, call(max_new_tokens=20), method)
    few = model.config.get_text_config().num_key_value_heads
    assert {count for rows, count in heads if 2 < rows < 30} == {few}, "of steps of one token, prompts and drafts"


def test_the_model_is_left_as_it_was(monkeypatch):
    """After each call, and when a pass fails."""
    model = llama()
    attention = [layer.self_attn for layer in model.model.layers]
    before = [dict(vars(layer)) for layer in attention]

    def failing(*_, **__):
        raise RuntimeError("no memory")

    with mmaccel.accelerate(model, TokenRecycling(always=True)) as fast:
        for _ in range(2):
            fast.generate(**call(max_new_tokens=8))
        assert [dict(vars(layer)) for layer in attention] == before
        monkeypatch.setattr(pass_attention.PassAttention, "_attend", failing)
        with pytest.raises(RuntimeError, match="no memory"):
            fast.generate(**call(max_new_tokens=8))
    assert [dict(vars(layer)) for layer in attention] == before


@pytest.mark.parametrize("name", ("HyperCLOVAXVisionV2", "Exaone4_5_"))
@pytest.mark.parametrize("batch", (1, 2))
def test_positions_reach_a_decoder_that_is_not_told_them(name, batch):
    """Or is told others: its tokens would stand where the cache ends, rejected drafts and all."""
    model, arguments = visual_models.build(f"{name}ForConditionalGeneration")
    assert same_text(model, {**arguments(batch), "max_new_tokens": 40, "do_sample": False})


@pytest.mark.parametrize("batch", (1, 3))
def test_steps_of_one_token_run_as_the_models_own_loop_runs_them(batch):
    """On a GPU transformers multiplies experts otherwise there than in prompts; wide passes are like prompts."""
    model, passes, within = qwen3_next(), [], []

    @contextmanager
    def entered():
        within.append(True)
        yield
        within.clear()

    handle = model.register_forward_pre_hook(
        lambda _, args, kwargs: passes.append((kwargs["input_ids"].shape[1], bool(within))), with_kwargs=True
    )
    model._optimize_model_for_decode = entered
    with mmaccel.accelerate(model, SuffixDecoding(shortest=3)) as fast:
        fast.generate(**call(batch))
    handle.remove()
    assert {width == 1 for width, _ in passes} == {True, False} and not within
    assert all(inside == (width == 1) for width, inside in passes)


def test_layers_that_are_compiled_are_left_alone():
    """Another name of attention in each call would compile them in each."""
    ways = (
        lambda layers: layers[0].compile(backend="eager"),
        lambda layers: setattr(layers[0], "forward", torch.compile(layers[0].forward, backend="eager")),
        lambda layers: layers.__setitem__(0, torch.compile(layers[0], backend="eager")),
        lambda layers: layers[0].self_attn.compile(backend="eager"),
    )
    for way in ways:
        model = llama()
        way(model.model.layers)
        assert [layer.layer_idx for layer in own_attention(model)] == [1, 2]
    model.compile(backend="eager")
    assert not own_attention(model)


def hunyuan():
    return sharp(HunYuanDenseV1ForCausalLM, HunYuanDenseV1Config, head_dim=8)


@pytest.mark.parametrize("build", (lfm2, glm_moe_dsa, hunyuan, inkling, zaya), ids=lambda build: build.__name__)
def test_attention_is_what_asks_for_it(build):
    """Convolutions, indexes and MLPs of such models have the number of a layer and a configuration, too."""
    found = attention_layers(build())
    assert [layer.layer_idx for layer in found] == ([1] if build is lfm2 else [0, 1, 2])
    assert all(type(layer).__name__.endswith("Attention") for layer in found)


@pytest.mark.parametrize(("batch", "pad"), ((1, 0), (3, 5)))
def test_keys_that_an_index_hides_stay_hidden(batch, pad):
    """Layers hide them in their masks where the name of their attention is one that takes a mask."""
    assert same_text(glm_moe_dsa(), call(batch, pad))


@pytest.mark.parametrize("batch", (1, 2))
def test_layers_that_share_their_keys_are_read_in_chains(batch):
    model, method = gemma3n(), TokenRecycling(always=True)
    assert same_text(model, call(batch), method)
    with mmaccel.accelerate(model, method) as fast:
        fast.generate(**call(batch))
        assert fast.report.details["chains"] == "some layers share their keys"


def test_windows_of_compiled_layers_are_refused_by_that_name():
    model = mistral()
    assert unfit_layers(model, model.config) is None
    model.model.layers[0].compile(backend="eager")
    assert "are compiled with their own masks" in unfit_layers(model, model.config)
