"""What a plan refuses on decoders whose keys are not those of the cache, or are split, and that its advice works."""

import pytest
import torch
from draft_models import gemma3n
from transformers import (
    BertConfig,
    BertLMHeadModel,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma4UnifiedForCausalLM,
    Gemma4UnifiedTextConfig,
    JetMoeConfig,
    JetMoeForCausalLM,
    MiniCPM3Config,
    MiniCPM3ForCausalLM,
)

import mmaccel
from mmaccel import private, vlm
from mmaccel.adapter import find_adapter
from mmaccel.cache import estimate_bytes
from mmaccel.errors import UnsupportedTargetError
from mmaccel.vlm import CompressKV, SelectKV, SparsePrefill, examples, visual_examples

SPARSE = SparsePrefill(**SparsePrefill.engaging)
CACHES = (CompressKV(), SelectKV(dense_layers=0))
SIZES = {**examples.TEXT, "num_hidden_layers": 2, "num_key_value_heads": 4}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 2}


def latent(cls, config, value, **more):
    """A model with multi-head latent attention: keys of 12 numbers in a head, values of `value`."""
    return cls(config(**SIZES, **LATENT, v_head_dim=value, **more)).eval()


def deepseek_v3(value=8):
    return latent(DeepseekV3ForCausalLM, DeepseekV3Config, value, **EXPERTS, n_group=1, topk_group=1)


def jetmoe():
    sizes = {**SIZES, "num_key_value_heads": 2, "kv_channels": 8, "num_local_experts": 2, "num_experts_per_tok": 2}
    return JetMoeForCausalLM(JetMoeConfig(**sizes)).eval()


def runs(model, method):
    """Whether `generate` engages the method, without a warning."""
    _, arguments = examples.llama()
    with mmaccel.accelerate(model, method) as fast:
        fast.generate(**arguments(2))
        return fast.report.engaged and not fast.report.warnings


@pytest.mark.parametrize(
    "make",
    (
        deepseek_v3,
        lambda: latent(DeepseekV2ForCausalLM, DeepseekV2Config, 8, **EXPERTS),
        lambda: latent(MiniCPM3ForCausalLM, MiniCPM3Config, 8),
    ),
    ids=("deepseek_v3", "deepseek_v2", "minicpm3"),
)
def test_keys_and_values_of_different_sizes(make):
    model = make()
    for method in (SPARSE, *CACHES):
        with pytest.raises(UnsupportedTargetError, match="keys and values of different sizes, which vlm"):
            mmaccel.plan(model, method)


@pytest.mark.parametrize("make", (lambda: deepseek_v3(value=12), jetmoe), ids=("deepseek_v3", "jetmoe"))
def test_keys_that_are_made_of_what_the_cache_holds(make):
    model = make()
    for method in CACHES:
        with pytest.raises(UnsupportedTargetError, match=r"keys anew.*vlm\.SparsePrefill leaves the cache alone"):
            mmaccel.plan(model, method)
    assert runs(model, SPARSE), "the advice"


def test_layers_that_share_their_keys():
    """As those of Gemma 3n, which keep none; where they are full they read all that the layer before has."""
    model, (_, arguments) = gemma3n(), examples.llama()
    with pytest.raises(UnsupportedTargetError, match="share their keys.*vlm.SelectKV and vlm.SparsePrefill"):
        mmaccel.plan(model, CompressKV())
    plain = model.generate(**arguments(2))
    for method in (SPARSE, SelectKV(dense_layers=0)):
        with mmaccel.accelerate(model, method) as fast:
            fast.generate(**arguments(2))
            assert fast.report.engaged and all("sliding window" in text for text in fast.report.warnings)
    with mmaccel.accelerate(model, SelectKV(budget=None, tokens=99)) as fast:
        assert torch.equal(fast.generate(**arguments(2)), plain)


def test_attention_in_both_directions():
    config = BertConfig(**{**SIZES, "max_position_embeddings": 128})
    for method in (SPARSE, *CACHES):
        with pytest.raises(UnsupportedTargetError, match="both directions.*is_decoder=True"):
            mmaccel.plan(BertLMHeadModel(config), method)
    config.is_decoder = True
    assert runs(BertLMHeadModel(config).eval(), SPARSE), "the advice"


def test_layers_of_different_sizes():
    """Gemma 4 has wider heads in its layers of full attention."""
    sizes = {**SIZES, "num_hidden_layers": 3, "head_dim": 8, "sliding_window": 16}
    config = Gemma4UnifiedTextConfig(**sizes, global_head_dim=32, num_global_key_value_heads=1)
    layers = [(layer.num_key_value_heads, layer.head_dim) for layer in config.per_layer_config]
    assert len(set(layers)) == 2
    expected = sum(2 * heads * width * 50 * 4 for heads, width in layers)
    assert estimate_bytes(config, 1, 50, torch.float32) == expected
    model = Gemma4UnifiedForCausalLM(config).eval()
    _, arguments = examples.llama()
    for method in CACHES:
        with mmaccel.accelerate(model, method) as fast:
            assert fast.generate(**arguments(2)).shape == (2, 86) and fast.report.engaged


def test_heads_that_are_split_over_processes_choose_no_tokens(monkeypatch):
    """Each process would keep others; heads may go apart where each has keys of its own."""
    (llama, _), (onevision, _) = examples.llama(), visual_examples.onevision()
    monkeypatch.setattr(private, "heads_are_split", lambda part: True)
    for model, method in ((llama, vlm.PrefillDrop()), *((onevision, one()) for one in (vlm.FastV, vlm.FrameFusion))):
        said = rf"heads of {type(model).__name__} are split over processes .* in place of {method.name} use vlm.Sparse"
        with pytest.raises(UnsupportedTargetError, match=said):
            mmaccel.plan(model, method)
    for reads in (vlm.HoliTom(inner_keep=1.0), vlm.VisionZip(), vlm.FastVID(), vlm.IDPruner()):
        with pytest.raises(UnsupportedTargetError, match="whose heads are split .*: vlm.VidCom2 does without"):
            mmaccel.plan(onevision, reads)
    for model, method in ((llama, SPARSE), (llama, vlm.PrefillDrop(keep=1.0)), (onevision, vlm.VidCom2())):
        mmaccel.plan(model, method)


def test_heads_are_split_where_transformers_has_split_what_attention_projects():
    """And not where it has split the experts alone."""
    model, _ = examples.llama()
    layer = model.model.layers[1]
    layer.mlp._is_hooked = True
    mmaccel.plan(model, vlm.PrefillDrop())
    layer.self_attn.q_proj._is_hooked = True
    with pytest.raises(UnsupportedTargetError, match="heads of LlamaForCausalLM are split"):
        mmaccel.plan(model, vlm.PrefillDrop())


def test_only_a_split_decoder_leaves_the_attention_of_a_tower_readable(monkeypatch):
    model, _ = visual_examples.onevision()
    decoder = {*find_adapter(model).attention_modules(), model}
    monkeypatch.setattr(private, "heads_are_split", decoder.issuperset)
    mmaccel.plan(model, vlm.VisionZip())
    with pytest.raises(UnsupportedTargetError, match="in place of vlm.HoliTom"):
        mmaccel.plan(model, vlm.HoliTom())


@pytest.mark.parametrize("method", (vlm.StoredContext(), vlm.JoinedContext()), ids=lambda method: method.name)
def test_no_context_is_stored_for_a_model_that_is_split(method, monkeypatch):
    """Where one process finds what another does not, they would read prompts of different lengths."""
    model, _ = examples.llama()
    monkeypatch.setattr(private, "is_split", lambda part: True)
    with pytest.raises(UnsupportedTargetError, match=f"split over processes, .*: {method.name} does not work on it"):
        mmaccel.plan(model, method)


def test_keys_are_counted_of_the_heads_that_a_process_has():
    """Of a model split by tp_plan, whose configuration has those of all processes."""
    (whole, arguments), (split, _) = visual_examples.onevision(), visual_examples.onevision()
    split.config.text_config.num_attention_heads *= 2
    counts = []
    for model in (whole, split):
        with mmaccel.accelerate(model, vlm.VidCom2()) as fast:
            fast.generate(**arguments(1))
            counts.append((fast.report.keys, fast.report.plain_keys))
    assert counts[0] == counts[1] and counts[0][0] < counts[0][1]
