"""Sessions on decoders: what is touched and restored, reports, settings, and models that are refused."""

import copy
import dataclasses

import pytest
import torch
from noted_streamer import NotedStreamer
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    Inkling2ForCausalLM,
    Inkling2TextConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import mmaccel
from mmaccel import private
from mmaccel.errors import ActiveSessionError, ConflictError, MemoryLimitError, SettingError, UnsupportedTargetError
from mmaccel.kernels.policies import PREFILL
from mmaccel.testing.contract import Interrupted, broken_after
from mmaccel.testing.snapshot import snapshot
from mmaccel.vlm import CompressKV, FusedDraft, SelectKV, SparsePrefill, examples, visual_examples
from mmaccel.vlm.decoder import generation

SPARSE = SparsePrefill(**SparsePrefill.engaging)
METHODS = (SPARSE, SelectKV(**SelectKV.engaging), CompressKV(**CompressKV.engaging))


def tiny(model, config, **more):
    model = model(config(**{**examples.TEXT, **more})).eval()
    model.generation_config.eos_token_id = None
    return model


# Traces


def test_names_in_the_tables_come_and_go(llama):
    model, arguments = llama
    before, config = set(ALL_ATTENTION_FUNCTIONS.keys()), model.config
    with mmaccel.accelerate(model, SPARSE) as session:
        names = {private.attention_name(module.config) for module in session.adapter.attention_modules()}
        assert len(names) == 1 and names == set(ALL_ATTENTION_FUNCTIONS.keys()) - before
        assert private.attention_name(config) == "sdpa" and len(session.adapter.attention_modules()) == 3
        with session.baseline():
            assert set(ALL_ATTENTION_FUNCTIONS.keys()) == before
        session.generate(**arguments())
        assert session.report.engaged and session.report.speedup
    assert set(ALL_ATTENTION_FUNCTIONS.keys()) == before and session.adapter.attention is None
    assert all(module.config is config for module in session.adapter.attention_modules())


def test_models_that_share_a_decoder_are_not_accelerated_at_once():
    """What is removed first would leave the layers to what it was itself put upon."""
    model, arguments = examples.llama()
    other, before, plain = copy.copy(model), snapshot(model), model.generate(**arguments())
    other._modules = {**model._modules, "lm_head": torch.nn.Linear(32, model.config.vocab_size)}
    assert other.get_decoder() is model.get_decoder()
    first = mmaccel.accelerate(model, SPARSE)
    with pytest.raises(ActiveSessionError, match=r"LlamaModel is already accelerated by Session\(LlamaForCausalLM"):
        mmaccel.accelerate(other, METHODS[1])
    first.remove()
    with mmaccel.accelerate(other, METHODS[1]) as second:
        second.generate(**arguments())
        assert second.report.engaged
    assert snapshot(model) == before and torch.equal(model.generate(**arguments()), plain)


def test_models_that_share_a_configuration():
    config = LlamaConfig(**examples.TEXT)
    one, two = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    one.generation_config.eos_token_id = two.generation_config.eos_token_id = None
    _, arguments = examples.llama()
    plain = two.generate(**arguments())
    with mmaccel.accelerate(one, SPARSE) as first:
        first.generate(**arguments())
        assert torch.equal(two.generate(**arguments()), plain)
        with mmaccel.accelerate(two, CompressKV()) as second:
            second.generate(**arguments())
            assert first.report.methods != second.report.methods and second.report.engaged
        assert first.generate(**arguments()) is not None and first.report.engaged
    assert torch.equal(two.generate(**arguments()), plain)


def test_vision_tower_is_left_alone():
    model, arguments = visual_examples.smolvlm()
    with mmaccel.accelerate(model, SPARSE, CompressKV()) as session:
        assert private.attention_name(model.config.vision_config) == "sdpa"
        assert len(session.adapter.attention_modules()) == 6
        session.generate(**arguments())
        assert session.report.engaged and not session.report.warnings


# Reports


def prefill(length):
    return length * (length + 1) // 2


def test_report_of_selected_tokens(llama):
    """4 heads, 3 layers, the first of them dense; rows of 80 and 75 tokens, 5 steps after the first token."""
    model, arguments = llama
    with mmaccel.accelerate(model, SelectKV(budget=0.2, dense_layers=1)) as session:
        session.generate(**arguments(2))
    keys = plain = 0
    for length in (80, 75):
        steps = range(length + 1, length + 6)
        plain += 3 * (prefill(length) + sum(steps))
        keys += 3 * prefill(length) + sum(n + 2 * -(-n // 5) for n in steps)
    report = session.report
    assert (report.keys, report.plain_keys) == (4 * keys, 4 * plain)
    assert report.work_ratio == keys / plain and report.tokens == 12 and report.forwards == 0
    assert report.peak_extra_bytes == 2 * 3 * 2 * 2 * 86 * 8 * 4  # 80 and 6 tokens, keys and values
    assert f"keys        {4 * keys:,} attended to instead of {4 * plain:,}" in str(report)
    assert report.to_dict()["keys"] == 4 * keys


def test_report_of_a_compressed_cache(llama):
    model, arguments = llama
    with mmaccel.accelerate(model, CompressKV(budget=0.2)) as session:
        session.generate(**arguments(2))
    keys = sum(prefill(n) + sum(n // 5 + step for step in range(1, 6)) for n in (80, 75))
    slots = 3 * (16 + 6) + 80  # three layers of kept tokens and room, and the prompt of the last
    assert session.report.keys == 3 * 4 * keys
    assert session.report.peak_extra_bytes == slots * 2 * 2 * (2 * 8 * 4 + 4)


def test_report_of_a_sparse_prefill(llama, monkeypatch):
    model, arguments = llama
    plans, policy = [], PREFILL["pooled_top_k"]
    monkeypatch.setitem(PREFILL, "pooled_top_k", lambda *a, **k: plans.append(policy(*a, **k)) or plans[-1])
    with mmaccel.accelerate(model, dataclasses.replace(SPARSE, dense_queries=0)) as session:
        session.generate(**arguments(2))
    keys = 3 * 4 * sum(n + step for n in (80, 75) for step in range(1, 6))
    for plan in plans:
        seen = plan.mask().repeat_interleave(16, 2).repeat_interleave(16, 3)[:, :, : plan.q_len, : plan.kv_len]
        keys += int(seen.tril().sum())
    assert len(plans) == 6 and plans[0].n_full.shape[1] == 4
    assert session.report.keys == keys and 0 < session.report.peak_extra_bytes < 4000


def test_neutral_settings_say_so(llama):
    model, arguments = llama
    with mmaccel.accelerate(model, SelectKV(budget=1.0)) as session:
        session.generate(**arguments())
        assert not session.report.engaged and "plain attention" in str(session.report)
        assert session.report.plain_keys == 0, "its attention is not even looked at"


def test_positional_arguments_and_configurations(llama):
    model, arguments = llama
    call = arguments(1, 40)
    plain = model.generate(call["input_ids"], max_new_tokens=3, do_sample=False)
    with mmaccel.accelerate(model, SelectKV(dense_layers=3)) as session:
        assert torch.equal(session.generate(call["input_ids"], max_new_tokens=3, do_sample=False), plain)
        assert session.report.tokens == 3


@pytest.mark.parametrize("method", METHODS[1:], ids=str)
def test_memory_is_asked_for_before_anything_is_computed(llama, method, monkeypatch):
    model, arguments = llama
    asked, passes = [], []

    def refuse(*needed):
        asked.append(needed)
        raise MemoryLimitError("too much")

    handle = model.register_forward_pre_hook(lambda *_: passes.append(1))
    with mmaccel.accelerate(model, method) as session:
        with monkeypatch.context() as patch:
            patch.setattr(generation, "require_memory", refuse)
            for more in ({}, {"num_beams": 3}, {"num_return_sequences": 2, "do_sample": True}):
                with pytest.raises(MemoryLimitError):
                    session.generate(**arguments(2, **more))
        assert not passes and session.adapter.attention.run is None
        for rows, (need, device, text) in zip((2, 6, 4), asked, strict=True):
            assert need == method.cache_bytes(model.config, rows, 80, 6, torch.float32) and device == model.device
            assert text == f"generate with {method}, {rows} x 86 tokens,"
        session.generate(**arguments(2))
        assert session.report.engaged
    handle.remove()


@pytest.mark.parametrize("spread", ("", "layers", "heads"))
def test_memory_is_not_asked_of_one_device_for_what_several_have(llama, spread, monkeypatch):
    model, arguments = copy.deepcopy(llama[0]), llama[1]
    asked = []
    monkeypatch.setattr(generation, "require_memory", lambda *needed: asked.append(needed))
    monkeypatch.setattr(private, "heads_are_split", lambda part: spread == "heads")
    if spread == "layers":
        model.register_parameter("elsewhere", torch.nn.Parameter(torch.ones(1, device="meta")))
    with mmaccel.accelerate(model, METHODS[1]) as session:
        session.generate(**arguments())
    assert len(asked) == (not spread)


@pytest.mark.parametrize("method", METHODS[1:], ids=str)
def test_an_answer_gets_memory_as_it_grows(llama, method, monkeypatch):
    model, arguments = llama
    asked, given = [], arguments(max_new_tokens=10**9, eos_token_id=[*range(64)])  # which ends after a token
    monkeypatch.setattr(generation, "require_memory", lambda need, *_: asked.append(need))
    with mmaccel.accelerate(model, method) as session:
        session.generate(**given)
        assert asked == [method.cache_bytes(model.config, 1, 80, 256, torch.float32)]
        assert session.report.tokens == 1 and session.report.peak_extra_bytes <= 2 * asked[0]
        longer = arguments(max_new_tokens=20)
        once = session.generate(**longer)
        monkeypatch.setattr(generation, "ROOM", 2)
        assert torch.equal(session.generate(**longer), once)


def test_a_call_that_broke_off_is_over(llama):
    """Direct calls after it are counted by nobody."""
    model, arguments = llama
    with mmaccel.accelerate(model, SPARSE) as session:
        with pytest.raises(Interrupted), broken_after(model.get_decoder().layers[1].self_attn, 0):
            session.generate(**arguments())
        assert session.adapter.attention.run is None


@pytest.mark.parametrize("methods", ((SPARSE, FusedDraft(always=True)), *((each,) for each in METHODS)), ids=str)
def test_a_streamer_that_removes_the_session_waits_for_the_end_of_the_text(methods):
    """What a text was begun with takes part up to its end, and then goes without a trace."""
    model, arguments = examples.llama()
    before, plain, seen = snapshot(model), model.generate(**arguments()), []

    class Leaving(NotedStreamer):
        def put(self, value):
            super().put(value)
            fast.remove()
            seen.append(fast.active)

    with mmaccel.accelerate(model, *methods) as fast:
        expected = fast.generate(**arguments())
    fast = mmaccel.accelerate(model, *methods)
    assert torch.equal(fast.generate(**arguments(), streamer=Leaving()), expected)
    assert len(seen) > 2 and all(seen) and not fast.active and fast.report.engaged
    assert snapshot(model) == before and torch.equal(model.generate(**arguments()), plain)


# Settings


@pytest.mark.parametrize(
    ("build", "message"),
    (
        (lambda: SparsePrefill(policy="dense"), "policy='dense'.*one of a_shape"),
        (lambda: SparsePrefill(budget=0), "budget=0.*above 0"),
        (lambda: SparsePrefill(budget=None), "budget=None"),
        (lambda: SparsePrefill(min_length=1), "min_length=1"),
        (lambda: SparsePrefill(block_m=48), "block_m=48.*power of two"),
        (lambda: SparsePrefill(block_n=8), "block_n=8"),
        (lambda: SparsePrefill(dense_queries=-1), "dense_queries=-1"),
        (lambda: SparsePrefill(min_keys=0.5), "min_keys=0.5"),
        (lambda: SparsePrefill(always=1), "always=1"),
        (lambda: SelectKV(policy="snap_kv"), "one of token_select"),
        (lambda: SelectKV(tokens=5), "tokens=5.*one of the two.*budget=None, tokens=1024"),
        (lambda: SelectKV(budget=None), "one of the two"),
        (lambda: SelectKV(budget=1.5), "budget=1.5"),
        (lambda: SelectKV(budget=None, tokens=1), "tokens=1.*at least 2"),
        (lambda: SelectKV(budget=True), "budget=True"),
        (lambda: SelectKV(dense_layers=-1), "dense_layers=-1"),
        (lambda: CompressKV(policy="mac"), "one of snap_kv"),
        (lambda: CompressKV(window=0), "window=0"),
        (lambda: CompressKV(budget=0.2, tokens=8), "one of the two"),
    ),
)
def test_bad_settings(build, message):
    with pytest.raises(SettingError, match=message):
        build()


@pytest.mark.parametrize(("length", "count"), ((1, 2), (10, 2), (11, 3), (100, 20)))
def test_counts(length, count):
    assert SelectKV(budget=0.2).count(length) == CompressKV(budget=0.2).count(length) == count
    assert SelectKV(budget=None, tokens=12).count(length) == max(2, min(12, length))


def test_conflicts(llama):
    model, _ = llama
    with pytest.raises(ConflictError, match="cannot be combined"):
        mmaccel.plan(model, SelectKV(), CompressKV())
    with pytest.raises(ConflictError, match="SelectKV.*CompressKV|CompressKV.*SelectKV"):
        mmaccel.plan(model, SelectKV(), SparsePrefill(), CompressKV())  # not only neighbours
    mmaccel.plan(model, SparsePrefill(), SelectKV())
    mmaccel.plan(model, CompressKV(), SparsePrefill())


# Models that are refused, or partly left alone


def test_refused_models():
    softcap = tiny(Gemma2ForCausalLM, Gemma2Config, head_dim=8)
    sinks = tiny(GptOssForCausalLM, GptOssConfig, head_dim=8, num_local_experts=2, num_experts_per_tok=1)
    encoder = T5ForConditionalGeneration(
        T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )
    sliding = tiny(MistralForCausalLM, MistralConfig, sliding_window=16)
    eager = LlamaForCausalLM(LlamaConfig(**examples.TEXT, attn_implementation="eager"))
    for model, message in (
        (softcap, "caps its attention scores"),
        (sinks, "attention sinks"),
        (encoder, "encoder-decoder"),
        (sliding, "no layer of full attention"),
        (eager, "attn_implementation='eager': load the model with attn_implementation='sdpa'"),
    ):
        for method in METHODS:
            with pytest.raises(UnsupportedTargetError, match=message):
                mmaccel.accelerate(model, method)


def test_a_model_without_sdpa_is_not_told_to_load_with_it():
    """Inkling 2 has a relative position and a sink of its own in each layer."""
    model = tiny(
        Inkling2ForCausalLM,
        Inkling2TextConfig,
        head_dim=8,
        layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding"],
        swa_num_attention_heads=4,
        swa_num_key_value_heads=2,
        swa_head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        n_shared_experts=1,
        d_rel=8,
        rel_extent=16,
    )
    for method in METHODS:
        with pytest.raises(UnsupportedTargetError, match="attends in its own way, not by SDPA.*drafts work on it"):
            mmaccel.plan(model, method)


def test_loops_that_read_a_cache_past_its_layers():
    """As those of Dory, where only the last loop writes: they take the keys that each layer holds."""
    model, _ = examples.llama()
    model.config.recurrent_kv_cache_mode = "last_loop"
    for method in (SelectKV(), CompressKV()):
        with pytest.raises(UnsupportedTargetError, match="recurrent_kv_cache_mode='last_loop'.*SparsePrefill"):
            mmaccel.plan(model, method)
    mmaccel.plan(model, SparsePrefill())
    model.config.recurrent_kv_cache_mode = "per_loop"
    mmaccel.plan(model, CompressKV())


def test_sliding_layers_run_plainly():
    """Two of three layers have a window; the third is accelerated."""
    types = ["sliding_attention", "sliding_attention", "full_attention"]
    model = tiny(Gemma3ForCausalLM, Gemma3TextConfig, head_dim=8, sliding_window=16, layer_types=types)
    _, arguments = examples.llama()
    plain = model.generate(**arguments(2))
    for method in METHODS:
        with mmaccel.accelerate(model, method) as session:
            assert session.generate(**arguments(2)).shape == plain.shape
            assert session.report.engaged and session.report.keys < session.report.plain_keys
            assert any("sliding window" in text for text in session.report.warnings)
    for method in (SelectKV(budget=None, tokens=99), CompressKV(budget=None, tokens=99)):
        with mmaccel.accelerate(model, method) as session:
            assert torch.equal(session.generate(**arguments(2)), plain)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("rows", (1, 2))
def test_windows_that_no_text_fills_are_full_attention(rows, method):
    """As those of Phi-4-mini, with a prompt of 80 tokens; rows of a batch are padded."""
    windows = {"sliding_window": 128, "max_position_embeddings": 128}
    model = tiny(Phi3ForCausalLM, Phi3Config, **windows)
    _, arguments = examples.llama()
    plain = model.generate(**arguments(rows))
    with mmaccel.accelerate(model, method) as session:
        assert session.generate(**arguments(rows)).shape == plain.shape
        assert session.report.engaged and not session.report.warnings
    if method.replaces_cache:
        with mmaccel.accelerate(model, dataclasses.replace(method, budget=None, tokens=99)) as session:
            assert torch.equal(session.generate(**arguments(rows)), plain)


def test_layers_with_states_of_their_own():
    types = ["conv", "full_attention", "conv"]
    model = tiny(Lfm2ForCausalLM, Lfm2Config, layer_types=types)
    _, arguments = examples.llama()
    with mmaccel.accelerate(model, SPARSE) as session:
        session.generate(**arguments())
        assert session.report.engaged
    for method in METHODS[1:]:
        with pytest.raises(UnsupportedTargetError, match="LinearAttentionLayer.*SparsePrefill leaves it alone"):
            mmaccel.accelerate(model, method)


@pytest.mark.parametrize(
    "name", ("AttentionInterface._global_mapping", "masking_utils.AttentionMaskInterface._global_mapping")
)
def test_private_names_of_transformers_are_still_there(name):
    import transformers
    import transformers.masking_utils

    found = transformers
    for part in name.split("."):
        found = getattr(found, part)
    assert "sdpa" in found


def test_private_configuration_names_and_attention_tables(llama):
    config = LlamaConfig(**examples.TEXT)
    changed = private.with_attention(config, "other")
    assert private.attention_name(changed) == "other" and private.attention_name(config) is None
    assert changed._attn_implementation_internal == "other"
    assert private.uses_attention_interface(llama[0].model.layers[0].self_attn)
    assert not private.uses_attention_interface(torch.nn.Linear(1, 1))
