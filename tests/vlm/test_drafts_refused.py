"""Models and texts that drafts would change: they are refused, left to the model's own loop, or drafted in chains."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from draft_models import call, sharp
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from quantized_weight import QuantizedWeight
from torch.nn import functional
from transformers import (
    IdeficsConfig,
    IdeficsForVisionText2Text,
    LlamaConfig,
    LlamaForCausalLM,
    MllamaForCausalLM,
    MoshiConfig,
    MoshiForCausalLM,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    Phi3Config,
    Phi3ForCausalLM,
)
from transformers.models.kosmos2_5.configuration_kosmos2_5 import Kosmos2_5TextConfig
from transformers.models.kosmos2_5.modeling_kosmos2_5 import Kosmos2_5TextForCausalLM
from transformers.models.mllama.configuration_mllama import MllamaTextConfig

import mmaccel
from mmaccel.errors import UnsupportedTargetError
from mmaccel.vlm import (
    CompressKV,
    FusedDraft,
    PrefillDrop,
    SelectKV,
    SparsePrefill,
    StoredContext,
    SuffixDecoding,
    examples,
    visual_examples,
)

METHODS = (FusedDraft(always=True), SuffixDecoding(shortest=1))
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


def phi3(first):
    """Which turns keys by other factors beyond so many tokens, and reads the text anew there."""
    more = {"original_max_position_embeddings": first, "rope_parameters": {**LONG}, "sliding_window": 96}
    return sharp(Phi3ForCausalLM, Phi3Config, **more)


def plain_phi3(first):
    """Which reads the text anew there, though its keys are turned alike."""
    return sharp(Phi3ForCausalLM, Phi3Config, original_max_position_embeddings=first)


def dynamic(first):
    """Whose frequencies follow the length of the text beyond so many tokens."""
    turned = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    return sharp(LlamaForCausalLM, LlamaConfig, max_position_embeddings=first, rope_parameters=turned)


def check_drafted(model, given):
    """Its drafts are accepted, and the tokens are the plain ones, in a second call too."""
    plain = model.generate(**given)
    with mmaccel.accelerate(model, FusedDraft(always=True)) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**given), plain)
        assert fast.report.details["accepted"] > 0 and not fast.report.warnings


@pytest.mark.parametrize("first", (24, 48))  # the prompt has 36 tokens, the text 66
@pytest.mark.parametrize("build", (phi3, plain_phi3, dynamic), ids=lambda build: build.__name__)
def test_texts_that_outgrow_the_frequencies_of_their_keys(build, first):
    model, method, given = build(first), FusedDraft(always=True), call()
    _, plain = [model.generate(**given) for _ in range(2)]  # dynamic ones stay as the longest text had them
    name = type(model).__name__
    said = f"the model's own loop ran: beyond {first} tokens {name} turns keys otherwise, and this text may have 66"
    with mmaccel.accelerate(model, method) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**given), plain) and fast.report.warnings == [said]
        embeds = model.get_input_embeddings()(given["input_ids"])
        fast.generate(**{**given, "input_ids": None}, inputs_embeds=embeds)
        assert fast.report.warnings == [said], "embeddings have a length too"
    drafts = method.custom_generate()
    assert torch.equal(model.generate(**given, custom_generate=drafts), plain)
    assert drafts.report.warnings == [said]


@pytest.mark.parametrize("build", (phi3, plain_phi3, dynamic), ids=lambda build: build.__name__)
def test_texts_that_do_not_are_drafted(build):
    model, given = build(66), call()
    check_drafted(model, given)


def test_a_cache_with_keys_of_pictures_is_left_alone():
    """Llama 3.2 Vision keeps them in layers of cross-attention, which know nothing of the length of a text."""
    model = sharp(MllamaForCausalLM, MllamaTextConfig, num_hidden_layers=4, cross_attention_layers=[1])
    for method in (*METHODS, StoredContext(), SelectKV(), CompressKV(), PrefillDrop()):
        said = rf"in layers of cross-attention, which {method.name} would cut like text; vlm\.SparsePrefill leaves"
        with pytest.raises(UnsupportedTargetError, match=said):
            mmaccel.plan(model, method)
    with mmaccel.accelerate(model, SparsePrefill()) as fast:  # the advice
        assert fast.generate(**call()).shape == (1, 66)


def test_a_window_that_only_the_cache_has_is_refused():
    """Moshi's mask shows whatever the cache holds: what drafts or stored prompts need there is out of the window."""
    model = MoshiForCausalLM(MoshiConfig(**{**examples.TEXT, "head_dim": 8, "ffn_dim": 64, "sliding_window": 16}))
    for method in (*METHODS, StoredContext(), SelectKV()):
        with pytest.raises(UnsupportedTargetError, match="MoshiForCausalLM has its window by its cache alone"):
            mmaccel.plan(model, method)


def test_what_a_session_refuses_is_refused_without_one():
    """With advice that can be followed: only some classes are decoders if they are told to be."""
    tower = {"model_type": "siglip_vision_model", **visual_examples.VISION, "image_size": 16, "patch_size": 8}
    text = {"model_type": "gemma", **examples.TEXT, "head_dim": 8}
    sizes = {"vision_config": tower, "text_config": text, "image_token_index": 62, "projection_dim": 32}
    model = PaliGemmaForConditionalGeneration(PaliGemmaConfig(**sizes))
    said = "attends in both directions; the vlm methods work on decoders$"
    with pytest.raises(UnsupportedTargetError, match=said):
        mmaccel.plan(model, FusedDraft())
    with pytest.raises(UnsupportedTargetError, match=said):
        model.generate(**call(), custom_generate=FusedDraft().custom_generate())


@pytest.mark.parametrize("batch", (1, 2))
def test_models_that_count_positions_themselves_are_drafted_in_chains(batch):
    """Kosmos-2.5 counts from its padding token on, and so has other positions than it is given."""
    sizes = {"vocab_size": 64, "embed_dim": 32, "layers": 3, "attention_heads": 4, "ffn_dim": 64}
    config = Kosmos2_5TextConfig(**sizes)
    model = visual_examples.sharp(lambda: Kosmos2_5TextForCausalLM(config), 0, examples.WEIGHT_SCALE)
    given = call(batch, suppress_tokens=[config.pad_token_id])
    check_drafted(model, given)


def test_a_model_that_goes_on_from_the_output_of_its_last_pass():
    """IDEFICS hands the features of its pictures on, which no cache holds."""
    vision = {"embed_dim": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes = {**examples.TEXT, "vision_config": {**vision, "image_size": 16, "patch_size": 8}}
    model = visual_examples.sharp(lambda: IdeficsForVisionText2Text(IdeficsConfig(**sizes)), 0)
    pictures = torch.randn(1, 1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    shown = {"pixel_values": pictures, "image_attention_mask": torch.ones(1, 36, 1, dtype=torch.long)}
    plain = model.generate(**call(), **shown)
    with mmaccel.accelerate(model, FusedDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**call(), **shown), plain)
        assert "goes on from more of a pass than its cache" in fast.report.warnings[0]


@pytest.mark.parametrize("method", (*METHODS, StoredContext(least=16)), ids=lambda method: method.name)
@pytest.mark.parametrize("config", (PromptTuningConfig, PrefixTuningConfig), ids=lambda config: config.__name__)
def test_prompts_of_peft_are_left_to_the_model(config, method, tmp_path):
    """They put tokens into a cache that no prompt has."""
    method = replace(method, folder=str(tmp_path)) if isinstance(method, StoredContext) else method
    torch.manual_seed(0)
    tuned = get_peft_model(sharp(LlamaForCausalLM, LlamaConfig), config(task_type="CAUSAL_LM", num_virtual_tokens=4))
    tuned.eval()
    plain, without = tuned.generate(**call()), tuned.get_base_model().generate(**call())
    with mmaccel.accelerate(tuned.get_base_model(), method) as fast:
        for _ in range(2):
            assert torch.equal(tuned.generate(**call()), plain)
            assert "another library prepares its passes (prompt tuning of peft)" in fast.report.warnings[0]
            assert torch.equal(fast.generate(**call()), without)
        assert fast.report.engaged and not fast.report.warnings, "without the adapter"


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_texts_of_an_adapter_of_peft_are_drafted(method):
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    tuned = get_peft_model(sharp(LlamaForCausalLM, LlamaConfig), config).eval()
    plain = tuned.generate(**call())
    with mmaccel.accelerate(tuned.get_base_model(), method) as fast:
        assert torch.equal(tuned.generate(**call()), plain) and fast.report.details["accepted"]


@pytest.mark.parametrize("method", (*METHODS, StoredContext(least=16)), ids=lambda method: method.name)
def test_adapters_that_begin_at_a_word_are_left_to_the_model(method, tmp_path):
    """Their layers adapt the last tokens of each pass, as many as follow that word in the prompt."""
    method = replace(method, folder=str(tmp_path)) if isinstance(method, StoredContext) else method
    more = {"init_lora_weights": False, "alora_invocation_tokens": call()["input_ids"][0, -4:-2].tolist()}
    torch.manual_seed(0)
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "k_proj", "v_proj"], **more)
    tuned = get_peft_model(sharp(LlamaForCausalLM, LlamaConfig), config).eval()
    plain = tuned.generate(**call())
    with mmaccel.accelerate(tuned.get_base_model(), method) as fast:
        assert torch.equal(tuned.generate(**call()), plain)
        assert "an aLoRA adapter counts its tokens from the end of each pass" in fast.report.warnings[0]


class PerTensor:
    """What torchao calls one scale for all tokens of a pass."""


class ScaledTogether(QuantizedWeight):
    """Of a layer that quantizes what it gets by the largest of all its numbers, as torchao can."""

    act_quant_kwargs = SimpleNamespace(granularity=PerTensor())

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is functional.linear:
            scale = args[0].abs().amax() / 127
            args = ((args[0] / scale).round() * scale, *args[1:])
        return super().__torch_function__(func, types, args, kwargs)


def scaled_together(model, kind=ScaledTogether):
    for layer in (each for each in model.modules() if isinstance(each, torch.nn.Linear)):
        layer.weight = torch.nn.Parameter(kind(layer.weight.detach()), requires_grad=False)


def scaled_in_four_bits(model):
    told = {"act_quant_kwargs": SimpleNamespace(use_dynamic_per_tensor_scale=True)}  # torchao's NVFP4
    scaled_together(model, type("Scaled", (ScaledTogether,), told))


def dynamic_int8(model):
    torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8, inplace=True).eval()


class Linear8bitLt(torch.nn.Linear):
    """As LLM.int8 of bitsandbytes: columns in which any token has a large number are not rounded."""

    state = SimpleNamespace(threshold=1.0)

    def forward(self, x):
        scale, limit = x.abs().amax(-1, keepdim=True) / 127, self.state.threshold
        large = (x.abs() >= limit).flatten(0, -2).any(0) if limit else torch.tensor(False)
        return super().forward(torch.where(large, x, (x / scale).round() * scale))


class CompressedLinear(torch.nn.Linear):
    """As compressed-tensors has it with activations that are scaled together as they come."""

    quantization_scheme = SimpleNamespace(input_activations=SimpleNamespace(dynamic=True, strategy="tensor"))

    def forward(self, x):
        scale = x.abs().amax() / 127
        return super().forward((x / scale).round() * scale)


class NVFP4Linear(torch.nn.Linear):
    """As transformers' NVFP4: it rounds what it is given only where that is several tokens."""

    __module__ = "transformers.integrations.nvfp4"

    def forward(self, x):
        return super().forward((x * 8).round() / 8 if x.numel() > x.shape[-1] else x)


def of_kind(kind):
    def quantize(model):
        for layer in (each for each in model.modules() if type(each) is torch.nn.Linear):
            layer.__class__ = kind

    quantize.__name__ = kind.__name__
    return quantize


TOGETHER = (dynamic_int8, scaled_together, scaled_in_four_bits)
TOGETHER = (*TOGETHER, *map(of_kind, (Linear8bitLt, CompressedLinear, NVFP4Linear)))


@pytest.mark.parametrize("quantize", TOGETHER, ids=lambda quantize: quantize.__name__)
@pytest.mark.parametrize("method", (*METHODS, StoredContext(least=16)), ids=lambda method: method.name)
def test_layers_that_round_a_token_by_all_others_of_a_pass_are_left_to_the_model(method, quantize, tmp_path):
    """There a token has other numbers among drafts than alone, and a text would part from the plain one."""
    method = replace(method, folder=str(tmp_path)) if isinstance(method, StoredContext) else method
    model = examples.llama()[0]
    quantize(model)
    given = call(max_new_tokens=60)
    plain = model.generate(**given)
    with mmaccel.accelerate(model, method) as fast:
        assert torch.equal(fast.generate(**given), plain) and not fast.report.engaged
        assert any("quantized layers which round a token by all others" in text for text in fast.report.warnings)


@pytest.mark.parametrize("calibrated", (False, True))
def test_layers_that_round_each_token_alone_are_drafted(calibrated):
    """By a scale for each row, or by one that does not depend on what they get."""
    model = examples.llama()[0]
    scale = None if not calibrated else torch.tensor(0.1)
    told = ScaledTogether.act_quant_kwargs if calibrated else SimpleNamespace(granularity=SimpleNamespace())
    scaled_together(model, type("Scaled", (QuantizedWeight,), {"act_quant_kwargs": told, "act_quant_scale": scale}))
    check_drafted(model, call())


def test_llm_int8_without_a_threshold_is_drafted():
    """There each token is rounded by itself."""
    model = examples.llama()[0]
    of_kind(type("Linear8bitLt", (Linear8bitLt,), {"state": SimpleNamespace(threshold=0.0)}))(model)
    check_drafted(model, call())
