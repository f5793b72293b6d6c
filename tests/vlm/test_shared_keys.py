"""Assistants that attend to the keys of the model, as those of Gemma 4: the text stays the model's."""

import copy

import pytest
import torch
from gemma_models import WINDOW, WORDS, assistant, build_as_later, gemma
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

import mmaccel
from mmaccel.decoding.drafters.heads.guesses import HeadGuesses
from mmaccel.errors import SettingError
from mmaccel.vlm import FusedDraft, ModelDraft


@pytest.fixture(autouse=True)
def later(monkeypatch):
    build_as_later(monkeypatch)


def call(batch=1, pad=0, length=40, **more):
    ids = torch.randint(3, WORDS, (batch, length), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    ids[0, :pad], mask[0, :pad] = 0, 0
    return {"input_ids": ids, "attention_mask": mask, "do_sample": False, "max_new_tokens": 24, **more}


@pytest.mark.parametrize("shared", (0, 3))
@pytest.mark.parametrize("ordered", (False, True))
@pytest.mark.parametrize(("batch", "pad"), ((1, 0), (1, 5), (3, 5)))
@pytest.mark.parametrize("sampled", (False, True))
def test_the_text_is_the_models(shared, ordered, batch, pad, sampled):
    """Where layers share keys drafts are chains, and texts of a batch are read in step; else they are trees."""
    model, helper = gemma(shared), assistant(ordered)
    given = call(batch, pad, do_sample=sampled and batch == 1)
    torch.manual_seed(2)
    plain = model.generate(**given)
    with mmaccel.accelerate(model, ModelDraft(always=True)) as fast:
        for _ in range(2):
            torch.manual_seed(2)
            assert torch.equal(fast.generate(**given, assistant_model=helper), plain)
        assert (
            fast.report.exact and fast.report.details["drafted"] and ("chains" in fast.report.details) == bool(shared)
        )
    torch.manual_seed(2)
    assert torch.equal(model.generate(**given), plain)


@pytest.mark.parametrize("shared", (0, 3))
@pytest.mark.parametrize("ordered", (False, True))
def test_guesses_are_those_of_the_loop_of_transformers(shared, ordered, monkeypatch):
    """Which gives it the keys of the whole prompt; behind one that is longer than a window, a cache has no more."""
    model, helper = gemma(shared), assistant(ordered)
    given = call(length=WINDOW - 2)
    config = copy.deepcopy(model.generation_config)
    config.max_length = 100
    theirs = SinglePositionMultiTokenCandidateGenerator(helper, model.get_input_embeddings(), config)
    with torch.no_grad():
        output = model(given["input_ids"], output_hidden_states=True, return_shared_kv_states=True)
        if not shared and not output.shared_kv_states:  # as 5.23 leaves it
            cache = output.past_key_values.layers
            states = {"sliding_attention": cache[4], "full_attention": cache[5]}
            output["shared_kv_states"] = {kind: (layer.keys, layer.values) for kind, layer in states.items()}
        ids = torch.cat([given["input_ids"], output.logits[:, -1:].argmax(-1)], 1)
        wanted, _ = theirs.get_candidates(ids, {}, output, is_first_iteration=False, n_last_matches=0)
    found = []
    root = HeadGuesses.root

    def walked(self):
        state = root(self)
        if state is not None and not found:
            after = state
            for _ in range(5):
                self.steps.forbidden = ()
                token, _, after = max(self.guesses(after), key=lambda guess: guess[2][1])
                found.append(token)
        return state

    monkeypatch.setattr(HeadGuesses, "root", walked)
    with mmaccel.accelerate(model, ModelDraft(always=True)) as fast:
        fast.generate(**given, assistant_model=helper)
    assert found == wanted[0, ids.shape[1] :].tolist()


def test_one_that_was_trained_for_the_model_saves_passes():
    """Its guesses follow each other, each from its own state before."""
    model, helper = gemma(3), assistant()
    after = torch.cat([torch.arange(3), 3 + torch.randperm(WORDS - 3, generator=torch.Generator().manual_seed(1))])
    texts = torch.randint(3, WORDS, (32, 1), generator=torch.Generator().manual_seed(2))
    for _ in range(20):
        texts = torch.cat([texts, after[texts[:, -1:]]], 1)
    fit(model, lambda: model(texts[:, :-1]).logits, texts[:, 1:])
    fit(helper, lambda: guessed(helper, model, texts[:, :-1]), texts[:, 2:])
    given = {"input_ids": texts[:1, :5], "attention_mask": torch.ones(1, 5), "max_new_tokens": 16, "do_sample": False}
    plain = model.generate(**given)
    forwards = []
    for each in (helper, assistant(seed=4)):
        with mmaccel.accelerate(model, ModelDraft(always=True)) as fast:
            assert torch.equal(fast.generate(**given, assistant_model=each), plain)
            forwards.append(fast.report.forwards)
    assert forwards[0] <= 6 < forwards[1]


def fit(model, logits, wanted):
    """Train until a model says what is wanted."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(80):
        loss = torch.nn.functional.cross_entropy(logits().flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def guessed(helper, model, texts):
    """What an assistant says after each token but the first, from it and the model's state before it."""
    with torch.no_grad():
        output = model(texts, output_hidden_states=True, return_shared_kv_states=True)
        embedded = model.get_input_embeddings()(texts[:, 1:])
    count = texts.shape[1] - 1
    far = torch.arange(count)[:, None] - torch.arange(count)
    masks = {"full_attention": far >= 0, "sliding_attention": (far >= 0) & (far <= WINDOW)}
    found = helper.model(
        inputs_embeds=helper.pre_projection(torch.cat([embedded, output.hidden_states[-1][:, :-1]], -1)),
        attention_mask={kind: mask[None, None] for kind, mask in masks.items()},
        position_ids=torch.arange(1, count + 1)[None],
        shared_kv_states={kind: tuple(x[:, :, :count] for x in both) for kind, both in output.shared_kv_states.items()},
        use_cache=False,
        logits_to_keep=None,
    )
    return helper.lm_head(found.last_hidden_state)


@pytest.mark.parametrize(
    ("made", "said"),
    (
        (lambda: assistant(backbone=48), "hidden_size of 48 .* Gemma4ForCausalLM has 32"),
        (lambda: flexible(assistant()), 'attn_implementation="sdpa"'),
    ),
)
def test_what_was_not_made_for_the_model_is_refused(made, said):
    model, given = gemma(), call()
    plain = model.generate(**given)
    with mmaccel.accelerate(model, ModelDraft()) as fast:
        with pytest.raises(SettingError, match=said):
            fast.generate(**given, assistant_model=made())
        assert torch.equal(fast.generate(**given), plain)


def flexible(helper):
    helper.model.config._attn_implementation = "flex_attention"
    return helper


def test_without_the_method_transformers_serves_it():
    model, given = gemma(3), call()
    with mmaccel.accelerate(model, FusedDraft()) as fast:
        found = fast.generate(**given, assistant_model=assistant())
        assert torch.equal(found, model.generate(**given)) and fast.report.warnings
