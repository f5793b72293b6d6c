"""Drafts on decoders whose attention is their own, which are read in chains, and in step where they are several."""

import sys

import pytest
import torch
from draft_models import call
from transformers import (
    BartConfig,
    BartForCausalLM,
    BigBirdPegasusConfig,
    BigBirdPegasusForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    CodeGenConfig,
    CodeGenForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoXJapaneseConfig,
    GPTNeoXJapaneseForCausalLM,
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
    MptConfig,
    MptForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    RoFormerConfig,
    RoFormerForCausalLM,
    XGLMConfig,
    XGLMForCausalLM,
)

import mmaccel
from mmaccel.decoding.passes.slots import attends_itself, unfit_for_rows
from mmaccel.errors import UnsupportedTargetError
from mmaccel.vlm import FusedDraft, SelectKV, SparsePrefill, SuffixDecoding, TextDraft, examples, visual_examples

SIZES = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 256}
FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LOCAL = {"attention_types": [[["global", "local"], 1]], "window_size": 16, "max_position_embeddings": 256}
MODELS = {
    "bloom": (BloomForCausalLM, BloomConfig, {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "codegen": (CodeGenForCausalLM, CodeGenConfig, GPT),
    "falcon": (FalconForCausalLM, FalconConfig, FALCON),
    "falcon with alibi": (FalconForCausalLM, FalconConfig, {**FALCON, "alibi": True}),
    "gpt_neox_japanese": (
        GPTNeoXJapaneseForCausalLM,
        GPTNeoXJapaneseConfig,
        {**FALCON, "max_position_embeddings": 256},
    ),
    "gptj": (GPTJForCausalLM, GPTJConfig, GPT),
    "gpt_neo": (GPTNeoForCausalLM, GPTNeoConfig, {"hidden_size": 32, "num_layers": 2, "num_heads": 4, **LOCAL}),
    "mpt": (MptForCausalLM, MptConfig, {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256}),
    "xglm": (XGLMForCausalLM, XGLMConfig, {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64}),
}
METHODS = (FusedDraft(always=True), SuffixDecoding(shortest=1))


def build(name):
    kind, config, sizes = MODELS[name]
    model = visual_examples.sharp(lambda: kind(config(**SIZES, **sizes)), 0, examples.WEIGHT_SCALE)
    model.generation_config.use_cache = True  # MPT says no
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("batch", "pad"), ((1, 0), (1, 5), (3, 5)))
def test_texts_are_those_of_the_model(name, batch, pad):
    """They are read in chains; GPT-J and CodeGen attend as transformers' table says since 5.24."""
    model, given = build(name), call(batch, pad, max_new_tokens=40)
    own = not hasattr(sys.modules[type(model).__module__], "ALL_ATTENTION_FUNCTIONS")
    assert attends_itself(model) == own and (own or name in ("codegen", "gptj"))
    assert unfit_for_rows(model) == (f"{type(model).__name__} has attention of its own" if own else None)
    plain = model.generate(**given)
    for method in METHODS:
        with mmaccel.accelerate(model, method) as fast:
            for _ in range(2):
                assert torch.equal(fast.generate(**given), plain), method
            assert fast.report.details["accepted"] > 0 and not fast.report.warnings, method


@pytest.mark.parametrize("name", MODELS)
def test_what_is_wrong_in_part_is_taken_back(name):
    """And scores are the model's own, of texts that end at different times."""
    model, told = build(name), {"return_dict_in_generate": True, "output_logits": True}
    end = int(model.generate(**call(3, 5))[1, -9])
    given = call(3, 5, eos_token_id=end, **told)
    plain = model.generate(**given)
    expected = plain.sequences[:, 36:].clone()
    expected[1:, 2::5] = expected[:1, 3::4] = 3
    with mmaccel.accelerate(model, TextDraft(always=True, block=6)) as fast:
        found = fast.generate(**given, prediction=expected)
        assert 0 < fast.report.details["accepted"] < fast.report.details["drafted"]
    assert torch.equal(found.sequences, plain.sequences)
    torch.testing.assert_close(found.logits[0], plain.logits[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_a_text_is_sampled_as_the_model_samples_it(name):
    model, given = build(name), call(do_sample=True, temperature=0.8)
    with mmaccel.accelerate(model, FusedDraft(always=True)) as fast:
        for _ in range(2):
            torch.manual_seed(0)
            found = fast.generate(**given)
            with fast.baseline():
                torch.manual_seed(0)
                assert torch.equal(found, model.generate(**given))
        assert fast.report.details["accepted"] > 0


def test_other_methods_and_other_such_decoders_are_refused():
    """OpenAI GPT has no cache."""
    model = OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=64, n_embd=32, n_layer=2, n_head=4))
    for target, method in ((model, FusedDraft()), (build("bloom"), SparsePrefill())):
        with pytest.raises(UnsupportedTargetError, match="does not use transformers' attention interface"):
            mmaccel.plan(target, method)


def test_one_that_could_be_a_decoder_is_told_how():
    """Where attention is a model's own its mask is asked."""
    sizes = {**SIZES, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    with pytest.raises(UnsupportedTargetError, match="attends in both directions.*: load it with is_decoder=True"):
        mmaccel.plan(RoFormerForCausalLM(RoFormerConfig(**sizes)), FusedDraft())
    config = RoFormerConfig(**sizes, is_decoder=True)
    model = visual_examples.sharp(lambda: RoFormerForCausalLM(config), 0, examples.WEIGHT_SCALE)
    plain = model.generate(**call(3, 5))
    with mmaccel.accelerate(model, FusedDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**call(3, 5)), plain) and fast.report.details["accepted"]


def test_what_only_sdpa_would_go_by_is_not_asked_where_there_is_none():
    """The layers of BigBirdPegasus say that they see both ways; their mask says what they see."""
    sizes = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64}
    config = BigBirdPegasusConfig(vocab_size=64, encoder_layers=2, max_position_embeddings=256, **sizes)
    model = visual_examples.sharp(lambda: BigBirdPegasusForCausalLM(config), 0, examples.WEIGHT_SCALE)
    plain = model.generate(**call(3, 5))
    with mmaccel.accelerate(model, FusedDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**call(3, 5)), plain) and fast.report.details["accepted"]


@pytest.mark.parametrize("method", (FusedDraft(always=True), SelectKV(budget=None, tokens=100, dense_layers=0)))
def test_the_head_of_a_model_may_have_the_name_of_a_decoder(method):
    """`get_decoder()` of ModernBERT's is its head, which holds no attention."""
    sizes = {**examples.TEXT, "local_attention": 32, "layer_types": ["full_attention", "sliding_attention"]}
    config = ModernBertDecoderConfig(**{**sizes, "num_hidden_layers": 2})
    model = visual_examples.sharp(lambda: ModernBertDecoderForCausalLM(config), 0, examples.WEIGHT_SCALE)
    assert isinstance(model.get_decoder(), torch.nn.Linear)
    plain = model.generate(**call(3, 5))
    with mmaccel.accelerate(model, method) as fast:
        assert torch.equal(fast.generate(**call(3, 5)), plain)
        assert fast.report.keys == fast.report.plain_keys and fast.report.engaged == isinstance(method, FusedDraft)


def test_cross_attention_beside_its_own_makes_no_model_read_in_both_directions():
    """The layers of BART's decoder have both, alone as with an encoder."""
    sizes = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64}
    config = BartConfig(vocab_size=64, max_position_embeddings=256, **sizes)
    model = visual_examples.sharp(lambda: BartForCausalLM(config), 0, examples.WEIGHT_SCALE)
    plain = model.generate(**call(3, 5))
    for method in (FusedDraft(always=True), SparsePrefill(budget=0.01, min_length=16, min_keys=1000, always=True)):
        with mmaccel.accelerate(model, method) as fast:
            assert torch.equal(fast.generate(**call(3, 5)), plain)
            assert fast.report.engaged
    heard = {**call(3, 5), "encoder_hidden_states": torch.randn(3, 6, 32)}  # Whisper makes a cache of its own then
    plain = model.generate(**heard)
    with mmaccel.accelerate(model, FusedDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**heard), plain)
        assert "outputs of an encoder" in fast.report.warnings[0]
