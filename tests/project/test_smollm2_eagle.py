"""The shipped head for SmolLM2-135M-Instruct: what its card tells, and a model of its sizes."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

import mmaccel
from mmaccel import zoo
from mmaccel.decoding.drafters.heads.eagle_weights import load_head
from mmaccel.demos.training.eagle import data, train
from mmaccel.demos.training.eagle.card import card
from mmaccel.demos.training.eagle.save import save
from mmaccel.errors import SettingError
from mmaccel.vlm import EagleDraft

FOLDER = zoo.path("smollm2-eagle")
# SmolLM2's, but for fewer and thinner layers, which nothing of the head sees.
SIZES = {"vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 64, "num_hidden_layers": 6}
HEADS = {"num_attention_heads": 9, "num_key_value_heads": 3}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, max_position_embeddings=512, tie_word_embeddings=True)).eval()


def test_the_card_tells_what_was_measured():
    facts, told = json.loads((FOLDER / "training.json").read_text()), (FOLDER / "README.md").read_text()
    assert told == card(FOLDER)
    assert f"in {facts['right'][0]:.0%} of the places" in told and f"{facts['steps']} steps" in told
    assert facts["right"] == sorted(facts["right"], reverse=True) and facts["right"][0] > 0.4


def test_the_text_is_the_models(model):
    given = {"input_ids": torch.arange(5, 25)[None], "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(**given)
    with mmaccel.accelerate(model, EagleDraft(head=FOLDER, always=True)) as fast:
        assert torch.equal(fast.generate(**given), plain)
        assert fast.report.details["drafted"] and "the head" in str(fast.plan)


def test_it_is_no_model():
    assert "smollm2-eagle" not in zoo.names()
    with pytest.raises(SettingError, match=r"is a head and no model: vlm.EagleDraft\(head=zoo.path\("):
        zoo.load("smollm2-eagle")


def test_a_recipe_without_talks_to_train_on_is_refused_at_once(tmp_path, capsys):
    with pytest.raises(SystemExit):
        train.main(["--output", str(tmp_path / "run"), "--talks", "71"])
    assert "--talks: 64 are held out, take 72 at least" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_what_is_trained_is_what_is_read(model, tmp_path, monkeypatch):
    """A step of the recipe moves the layer alone, and a saved head says what the trained one says."""
    monkeypatch.setattr(train, "DRAFTED", 64)
    lengths = (12, 20, 9)
    states = [torch.randn(length - 1, 4 * 576).bfloat16() for length in lengths]
    drawn = [torch.randint(0, 3000, (length,), dtype=torch.int32) for length in lengths]
    written = [data.Talk(tokens, state, 5) for tokens, state in zip(drawn, states, strict=True)]
    head = train.built(model, train.common(written))
    embedding = model.get_input_embeddings().weight.detach().clone()
    found = train.losses(head, [data.Talk(one.tokens, one.states.float(), one.asked) for one in written])
    torch.stack([loss for loss, _ in found]).sum().backward()
    moved = {name for name, value in head.named_parameters() if value.grad is not None}
    assert {"fc.weight", "norm.weight", "layers.0.self_attn.q_proj.weight"} <= moved
    assert torch.equal(model.get_input_embeddings().weight, embedding) and model.lm_head.weight.grad is None
    save(head, tmp_path, {"steps": 1})
    assert set(load_file(tmp_path / "model.safetensors")) == set(load_file(FOLDER / "model.safetensors"))
    read = load_head(str(tmp_path), model)
    assert torch.equal(read.draft_tokens, head.draft_tokens)
    hidden = torch.randn(3, 576)
    torch.testing.assert_close(read.logits(hidden), head.logits(hidden), rtol=2e-2, atol=2e-2)
