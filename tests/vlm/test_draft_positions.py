"""Drafts end where a table of positions does: a plain text that stops before it would not notice the end."""

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    MptConfig,
    MptForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

import mmaccel
from mmaccel.decoding.generated_text import positions_of
from mmaccel.vlm import FusedDraft, ModelDraft, examples

SIZES = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gpt2(positions=40):
    return GPT2LMHeadModel(GPT2Config(n_positions=positions, n_embd=32, n_layer=2, n_head=4, **SIZES))


def opt():
    sizes = {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return OPTForCausalLM(OPTConfig(max_position_embeddings=40, word_embed_proj_dim=32, **sizes, **SIZES))


def gptj():
    return GPTJForCausalLM(GPTJConfig(n_positions=40, n_embd=32, n_layer=2, n_head=4, rotary_dim=8, **SIZES))


def mpt():
    model = MptForCausalLM(MptConfig(max_seq_len=40, d_model=32, n_layers=2, n_heads=4, **SIZES))
    model.generation_config.use_cache = True
    return model


@pytest.mark.parametrize("build", (gpt2, opt, gptj, mpt), ids=lambda build: build.__name__)
@pytest.mark.parametrize("embedded", (False, True))
def test_drafts_end_with_the_positions_of_a_model(build, embedded):
    """It repeats itself up to the end, and stops two tokens before its positions do."""
    torch.manual_seed(0)
    model, ids = build().eval(), torch.arange(5, 10).repeat(6)[None]
    prompt, given = {"input_ids": ids}, {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None}
    if embedded:  # whose criteria see the new tokens alone
        prompt = {"inputs_embeds": model.get_input_embeddings()(ids).detach()}
    last = 8 if embedded else 38
    given["stopping_criteria"] = [lambda ids, scores: torch.full((1,), ids.shape[1] >= last)]
    given["prefix_allowed_tokens_fn"] = lambda row, ids: [5 + len(ids) % 5]
    plain = model.generate(**prompt, **given)
    with mmaccel.accelerate(model, FusedDraft(always=True)) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**prompt, **given), plain)
        assert fast.report.details["accepted"]


def test_rotary_positions_have_no_end():
    assert positions_of(examples.llama()[0]) > 2**40 and positions_of(gpt2()) == 40


def test_an_assistant_with_fewer_positions_is_not_asked_beyond_them():
    torch.manual_seed(0)
    model, assistant, ids = gpt2(80).eval(), gpt2().eval(), torch.arange(5, 10).repeat(6)[None]
    given = {"input_ids": ids, "max_new_tokens": 30, "do_sample": False, "eos_token_id": None}
    plain = model.generate(**given)
    with mmaccel.accelerate(model, ModelDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**given, assistant_model=assistant), plain)
        assert not fast.report.warnings
