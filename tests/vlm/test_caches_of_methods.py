"""The cache that a method brings: kept where a model begins another, left out for a prefix, and freed when dropped."""

import contextlib
import gc
import weakref

import pytest
import torch
from draft_models import call, sharp
from peft import PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import DynamicCache, GenerationConfig, LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM
from transformers.generation import utils

import mmaccel
from mmaccel.cache.argument import cache_of
from mmaccel.testing.contract import Interrupted, broken_after
from mmaccel.vlm import CompressKV, SelectKV, VidCom2, visual_examples
from mmaccel.vlm.decoder import generation

METHODS = (SelectKV(budget=0.3, dense_layers=0), CompressKV(budget=0.3), CompressKV(budget=0.3, head_budgets=True))
ALL = pytest.mark.parametrize("method", METHODS, ids=str)
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


def phi3(first):
    """Which turns keys by other factors beyond so many tokens, and reads the text anew there."""
    return sharp(Phi3ForCausalLM, Phi3Config, original_max_position_embeddings=first, rope_parameters={**LONG})


def prompt_tuned(config):
    torch.manual_seed(0)
    base = sharp(LlamaForCausalLM, LlamaConfig)
    return get_peft_model(base, config(task_type="CAUSAL_LM", num_virtual_tokens=4)).eval()


@pytest.mark.parametrize("first", (24, 48))  # the prompt has 36 tokens, the text 66
@pytest.mark.parametrize("batch", (1, 2))
@ALL
def test_a_text_that_is_read_anew_fills_the_same_cache(method, batch, first):
    """Prompts beyond the length that Phi-3 knows at first, and answers that outgrow it."""
    model, given = phi3(first), call(batch, pad=5)
    with mmaccel.accelerate(model, method) as fast:
        result = fast.generate(**given, return_dict_in_generate=True)
        cache, own = cache_of(result), DynamicCache()
        assert fast.report.engaged and not fast.report.warnings
        assert cache.reader is fast.adapter.attention and cache.get_seq_length() == 65
        assert torch.equal(fast.generate(**given, past_key_values=own), result.sequences)
        assert own.layers[0].get_seq_length() == 65
    assert "prepare_inputs_for_generation" not in vars(model)


@pytest.mark.parametrize("first", (24, 48))
@pytest.mark.parametrize("kind", (SelectKV, CompressKV))
def test_what_is_read_anew_and_kept_whole_is_plain(kind, first):
    model, given = phi3(first), call(2, pad=5)
    plain = model.generate(**given)
    with mmaccel.accelerate(model, kind(budget=None, tokens=99)) as fast:
        result = fast.generate(**given, return_dict_in_generate=True)
        assert torch.equal(result.sequences, plain) and cache_of(result).reader is fast.adapter.attention


@pytest.mark.parametrize("checkpoint", (None, "hybrid"))
@ALL
def test_a_cache_beside_a_generation_config_is_no_argument_of_its_own(method, checkpoint, monkeypatch):
    """Of which transformers warns, and which it will refuse."""
    told = []
    monkeypatch.setattr(utils.logger, "warning_once", told.append)
    model = sharp(LlamaForCausalLM, LlamaConfig)
    model.generation_config.cache_implementation = checkpoint
    config = GenerationConfig(max_new_tokens=9, cache_implementation=None if checkpoint else "dynamic")
    with mmaccel.accelerate(model, method) as fast:
        fast.generate(call()["input_ids"], generation_config=config)
        assert fast.report.engaged and not fast.report.warnings and not told
    assert config.cache_implementation == (None if checkpoint else "dynamic")


@pytest.mark.parametrize("own", ("dynamic", "hybrid"))
@pytest.mark.parametrize("copied", (None, "dynamic"))
def test_a_setting_that_the_models_own_config_has_is_taken_out_all_the_same(own, copied, monkeypatch):
    """Where the config of a call says None, `generate` asks that of the model."""
    told = []
    monkeypatch.setattr(utils.logger, "warning_once", told.append)
    model = sharp(LlamaForCausalLM, LlamaConfig)
    config = GenerationConfig(max_new_tokens=9, cache_implementation=copied)
    model.generation_config.cache_implementation = own
    with mmaccel.accelerate(model, METHODS[0]) as fast:
        fast.generate(call()["input_ids"], generation_config=config)
        assert fast.report.engaged and not fast.report.warnings and not told
    assert config.cache_implementation == copied


@pytest.mark.parametrize("more", ({}, {"past_key_values": None}), ids=("no cache", "a cache"))
@ALL
def test_a_prefix_of_peft_is_left_to_the_model(method, more):
    """It begins a cache of its own."""
    tuned = prompt_tuned(PrefixTuningConfig)
    base, plain = tuned.get_base_model(), tuned.generate(**call())
    without = {name: DynamicCache() for name in more}
    with mmaccel.accelerate(base, method) as fast:
        assert torch.equal(tuned.generate(**call(), **without), plain) and not fast.report.engaged
        assert fast.report.warnings == [f"{method} ran plainly: peft begins a cache of its own with a prefix"]
        fast.generate(**call())
        assert fast.report.engaged and not fast.report.warnings, "without the adapter"


@pytest.mark.parametrize("family", ("onevision", "qwen2_5_vl"))
def test_a_prefix_of_peft_before_pictures_is_left_to_the_model(family):
    """It takes no embeddings in place of a prompt, or drops the positions of what is left of the clip."""
    model, arguments = getattr(visual_examples, family)()
    tuned = get_peft_model(model, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)).eval()
    given = arguments(1, max_new_tokens=8)
    plain, method = tuned.generate(**given), VidCom2(keep=0.5)
    with mmaccel.accelerate(model, method) as fast:
        assert torch.equal(tuned.generate(**given), plain)
        why = "another library prepares its passes (prompt tuning of peft)"
        assert fast.report.warnings == [f"{method} ran plainly: {why}"]
        fast.generate(**given)
        assert fast.report.engaged, "without the adapter"


@ALL
def test_a_prompt_of_peft_is_read_like_any_other(method):
    tuned = prompt_tuned(PromptTuningConfig)
    plain = tuned.generate(**call())
    with mmaccel.accelerate(tuned.get_base_model(), method) as fast:
        tuned.generate(**call())
        assert fast.report.engaged and not fast.report.warnings
    with mmaccel.accelerate(tuned.get_base_model(), type(method)(budget=None, tokens=99)):
        assert torch.equal(tuned.generate(**call()), plain)


@ALL
def test_memory_is_freed_with_the_last_reference(method, monkeypatch):
    """Not only once Python looks for cycles, which knows nothing of the memory of a GPU; also after a failure."""
    model, made, give = sharp(LlamaForCausalLM, LlamaConfig), [], generation.give_cache

    def noted(model, kwargs, cache):
        made.append(weakref.ref(cache.layers[0]))
        give(model, kwargs, cache)

    monkeypatch.setattr(generation, "give_cache", noted)
    with mmaccel.accelerate(model, method) as fast:
        gc.disable()
        try:
            result = fast.generate(**call(), return_dict_in_generate=True)
            assert made[0]() is cache_of(result).layers[0]
            del result
            tokens = fast.generate(**call())
            with broken_after(model.model.layers[1], 3), contextlib.suppress(Interrupted):
                fast.generate(**call())
            assert len(made) == 3 and tokens.shape == (1, 66)
            assert [layer() for layer in made] == [None] * 3
        finally:
            gc.enable()
