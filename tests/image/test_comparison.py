"""A comparison with the preset `exact`: both pictures are the same, and it says so."""

from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

import mmaccel
from mmaccel.adapter import find_adapter
from mmaccel.cli import main as cli
from mmaccel.image import GroupedSpeculative, SpeculativeJacobi, ZipAR, examples, generation, quality
from mmaccel.image.comparing import ImageTrial, verdict
from mmaccel.image.quality import nats_per_token

KEEPS = SpeculativeJacobi(window=8, coupling="gumbel_exact")


@pytest.fixture(scope="module")
def painter():
    return generation.load("tiny-janus")


def test_the_preset_draws_the_plain_picture(painter):
    """Of two pictures of a prompt, at once."""
    settings = generation.ImageSettings(seed=5, count=2)
    plain = painter.generate(painter.target, ["red heart"], settings)
    with mmaccel.accelerate(painter.target, preset="exact") as fast:
        assert torch.equal(painter.generate(fast, ["red heart"], settings), plain)
        assert fast.report.forwards < 128 and fast.report.exact
        other = painter.generate(fast, ["red heart"], generation.ImageSettings(seed=6, count=2))
    assert not torch.equal(other, plain)


def test_compare_finds_equal_tokens():
    model, arguments = examples.janus()
    found = mmaccel.compare(model, KEEPS, SpeculativeJacobi(window=8), seeds=range(3), rounds=1, **arguments(2))
    _, keeps, maximal = found.rows
    assert keeps["equal"] and keeps["metrics"]["same"] == 1
    assert not maximal["equal"] and maximal["metrics"]["same"] < 1


def test_emu3_is_compared_with_pictures_that_keep_to_their_grid():
    """With the inputs of its processor alone, which hold no grammar: accelerated runs need none."""
    model, arguments = examples.emu3()
    call = arguments(2)
    grammar = {name: call.pop(name) for name in ("prefix_allowed_tokens_fn", "max_new_tokens")}
    found = mmaccel.compare(model, KEEPS, seeds=range(2), rounds=1, **call)
    assert found.rows[1]["equal"] and found.rows[1]["metrics"]["same"] == 1
    known, bare = (ImageTrial(find_adapter(model), {**call, **more}) for more in (grammar, {}))
    assert known.run(model, 3).tolist() == bare.run(model, 3).tolist(), "as with the recipe of transformers"
    assert known.plain_inputs["prefix_allowed_tokens_fn"] is grammar["prefix_allowed_tokens_fn"]


def test_run_says_that_both_pictures_are_the_same(tmp_path, capsys):
    arguments = ["run", "image", "red heart", "--seed", "1", "--compare", "-o", str(tmp_path / "heart.png")]
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out.endswith("both pictures are the same, token for token\n")


def test_verdict():
    model, _ = examples.janus()
    one, other = torch.tensor([[1, 2]]), torch.tensor([[1, 3]])
    found = {
        (method, tokens is one): verdict(one, tokens, mmaccel.plan(model, method))
        for method in (KEEPS, SpeculativeJacobi(), ZipAR(window=2), GroupedSpeculative())
        for tokens in (one, other)
    }
    same = "both pictures are the same, token for token"
    assert found[KEEPS, True] == found[SpeculativeJacobi(), True] == same
    assert "near-tie" in found[KEEPS, False]
    assert "the distribution, not the noise" in found[SpeculativeJacobi(), False]
    assert {found[m, s] for m in (ZipAR(window=2), GroupedSpeculative()) for s in (True, False)} == {""}


def trial_of(family, **more):
    model, arguments = getattr(examples, family)()
    return ImageTrial(find_adapter(model), arguments(**more))


def test_the_surprise_is_that_of_the_accelerated_picture():
    trial = trial_of("janus")
    plain, other = (torch.randint(24, (1, 16), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    found = trial.judge(plain, other)
    assert found["surprise"] == float(nats_per_token(trial.images, trial.inputs, other))
    assert found["surprise"] != trial.judge(other, plain)["surprise"]
    assert found["same"] == float((plain == other).float().mean())


@pytest.mark.parametrize("family", ("emu3", "glm_image"))
def test_tokens_of_the_prompt_are_no_tokens_of_the_picture(family):
    trial = trial_of(family)
    prompt = trial.inputs["input_ids"]
    one, other = (torch.cat([prompt, torch.full((1, 21), code)], 1) for code in (1, 2))
    assert trial.judge(one, other) == {"same": 0.0} and trial.judge(one, one) == {"same": 1.0}


@pytest.mark.parametrize("family", ("emu3", "glm_image"))
def test_plain_pictures_are_whole_where_the_call_gives_no_limit(family):
    """By itself `generate` would write 20 tokens; so would a session whose settings are neutral."""
    trial = trial_of(family)
    whole = trial.run(trial.target, 0)
    del trial.inputs["max_new_tokens"]
    bare = ImageTrial(trial.images, trial.inputs)
    assert bare.run(bare.target, 0).shape == whole.shape
    with mmaccel.accelerate(bare.target, SpeculativeJacobi(window=1)) as fast:
        assert bare.run(fast, 0).shape == whole.shape


def test_pictures_of_two_sizes_have_no_token_in_common():
    trial, tokens = trial_of("emu3"), torch.zeros(1, 4)
    assert trial.judge(tokens, tokens[:, :1]) == {"same": 0.0} and not trial.equal(tokens, tokens[:, :1])


def test_a_call_that_returns_a_dictionary_is_compared_by_its_tokens():
    trial = trial_of("janus", return_dict_in_generate=True)
    with mmaccel.accelerate(trial.target, KEEPS) as fast:
        assert torch.equal(trial.run(fast, 3), trial_of("janus").run(trial.target, 3))


def test_a_family_without_a_painter_shows_nothing():
    trial = trial_of("glm_image")
    assert not trial.show(torch.zeros(1, 5)).clips


def test_whether_a_call_draws_is_said_by_the_call_or_the_model():
    model, arguments = examples.janus()
    call = arguments()
    del call["do_sample"]
    for own, said, draws in ((False, None, False), (True, None, True), (True, False, False), (False, True, True)):
        model.generation_config.do_sample = own
        trial = ImageTrial(find_adapter(model), {**call, **({} if said is None else {"do_sample": said})})
        assert trial.draws == draws and bool(trial.seedless) != draws
        if said is not None:
            given = {**call, "generation_config": GenerationConfig(do_sample=said)}
            assert ImageTrial(find_adapter(model), given).draws == draws


def test_the_surprise_counts_every_token_once():
    """With the likeliest tokens alone there is none; another last token surprises as much as a picture can."""
    model, arguments = examples.janus()
    adapter, call = find_adapter(model), arguments(2, top_k=1)
    tokens = model.generate(**call)
    assert nats_per_token(adapter, call, tokens).tolist() == [0.0, 0.0]
    for row, place in ((0, -1), (1, -1), (0, 0)):
        other = tokens.clone()
        other[row, place] = (tokens[row, place] + 1) % examples.CODES
        found = nats_per_token(adapter, call, other)
        assert found[1 - row] == 0
        least = torch.tensor(1e12).log() / tokens.shape[1]
        assert found[row] == pytest.approx(float(least), rel=1e-5) if place else found[row] >= least - 1e-5


def test_the_surprise_is_computed_where_the_model_is(monkeypatch):
    """Tensors of the meta device hold nothing, and tell where they are."""
    meta, placed = torch.device("meta"), []

    class Decoder:
        length, device = 4, meta

        def __init__(self, task, generator):
            assert task.batch == 2 and generator is None

        def prefill(self):
            return torch.empty(2, 8, device=meta)

        def forward(self, tokens, index, reach):
            placed.append(index.device)
            return torch.empty(*index.shape, 8, device=meta)

    monkeypatch.setattr(quality, "GridDecoder", Decoder)
    adapter = SimpleNamespace(begin=lambda inputs: SimpleNamespace(batch=2))
    tokens = torch.zeros(2, 4, dtype=torch.long, device=meta)
    assert nats_per_token(adapter, {}, tokens).shape == (2,) and placed == [meta]
