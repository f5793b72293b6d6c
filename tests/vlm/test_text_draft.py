"""Predictions of an answer: verified instead of written, whatever they are."""

import random

import numpy as np
import pytest
import torch

import mmaccel
from mmaccel.errors import SettingError
from mmaccel.vlm import FusedDraft, ModelDraft, TextDraft, examples, visual_examples

NEW = 40


@pytest.fixture(scope="module")
def llama():
    return examples.llama()[0]


def call(batch=1, **more):
    ids = torch.randint(4, 60, (batch, 12), generator=torch.Generator().manual_seed(batch))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "do_sample": False}
    return {**given, "eos_token_id": None, "pad_token_id": 0, **more}


def wrong(tokens, share, seed=0):
    """Tokens of which some were changed, left out, or doubled."""
    rng, found = random.Random(seed), []
    for token in tokens:
        kind = rng.choice(("changed", "left out", "doubled")) if rng.random() < share else "kept"
        found += {"kept": [token], "changed": [rng.randrange(4, 60)], "left out": [], "doubled": [token] * 2}[kind]
    return found


def answers(model, given):
    plain = model.generate(**given)
    return plain, plain[:, given["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("share", (0, 0.05, 0.2, 1))
@pytest.mark.parametrize("batch", (1, 3))
def test_the_answer_is_the_models_however_wrong_the_prediction(llama, share, batch):
    given = call(batch)
    plain, texts = answers(llama, given)
    predictions = [wrong(text, share, row) for row, text in enumerate(texts)]
    with mmaccel.accelerate(llama, TextDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**given, prediction=predictions), plain)
        report = fast.report
    assert report.exact and report.details["predicted"] <= batch * NEW
    if share < 1:
        assert report.details["predicted"] > 0.6 * batch * NEW and not report.warnings
        assert report.forwards < (8 if share == 0 else 20)


def test_predictions_save_more_than_what_is_learned_alone(llama):
    given = call()
    plain, (text,) = answers(llama, given)
    passes = []
    for more in ({}, {"prediction": text}):
        with mmaccel.accelerate(llama, TextDraft(always=True)) as fast:
            assert torch.equal(fast.generate(**given, **more), plain)
            passes.append(fast.report.forwards)
    assert passes[1] < passes[0] / 2


@pytest.mark.parametrize(
    "form",
    (list, torch.tensor, np.array, lambda text: [text], lambda text: [np.array(text)], lambda text: [*np.array(text)]),
)
def test_one_text_for_all_rows(llama, form):
    given = call(1, num_return_sequences=2, do_sample=True, max_new_tokens=8)
    torch.manual_seed(3)
    with mmaccel.accelerate(llama, TextDraft(always=True)) as fast:
        ids = fast.generate(**given, prediction=form([7, 8, 9]))
        assert ids.shape == (2, 12 + 8) and "predicted" in fast.report.details


def test_a_prediction_is_of_one_call(llama):
    given = call()
    plain, (text,) = answers(llama, given)
    with mmaccel.accelerate(llama, TextDraft(remember=0)) as fast:
        fast.generate(**given, prediction=text)
        assert torch.equal(fast.generate(**given), plain)
        assert "predicted" not in fast.report.details


@pytest.mark.parametrize(
    ("prediction", "said"),
    (
        ("The harbour of Tessin", "prediction='The harbour of Tessin' must be token ids, such as tokenizer(text"),
        (["one", "two"], "must be token ids"),
        ([5, 6.5], "must be token ids"),
        ([[5, [6]]], "must be token ids"),
        (7, "must be token ids"),
        ([5, 100_000], "prediction has token 100000, but this model has 64"),
        ([5, -1], "prediction has token -1"),
        ([[5], [6]], "prediction has 2 texts for a batch of 3: give one for each row, or one for all"),
    ),
)
def test_what_is_no_prediction_is_refused(llama, prediction, said):
    given = call(3, max_new_tokens=8)
    plain = llama.generate(**given)
    with mmaccel.accelerate(llama, TextDraft()) as fast:
        with pytest.raises(SettingError, match=said.replace("(", r"\(")):
            fast.generate(**given, prediction=prediction)
        assert torch.equal(fast.generate(**given), plain), "the session goes on"
    assert torch.equal(llama.generate(**given), plain)


@pytest.mark.parametrize(
    ("prediction", "said"),
    (([], "the prediction is empty"), ([61] * 30, "the answer is not like the prediction: ")),
)
def test_a_prediction_of_no_use_is_told(llama, prediction, said):
    given = call()
    plain = llama.generate(**given)
    with mmaccel.accelerate(llama, TextDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**given, prediction=prediction), plain)
        assert any(warning.startswith(said) for warning in fast.report.warnings)


def test_a_call_that_is_left_to_the_model(llama):
    given = call(num_beams=2)
    plain = llama.generate(**given)
    with mmaccel.accelerate(llama, TextDraft()) as fast:
        assert torch.equal(fast.generate(**given, prediction=[5, 6]), plain)
        assert fast.report.warnings == ["the model's own loop ran: num_beams=2"]


def test_tokens_that_stand_for_pictures_are_not_drafted():
    model, arguments = visual_examples.qwen2_5_vl()
    given = arguments(1, max_new_tokens=16)
    plain = model.generate(**given)
    text = plain[0, given["input_ids"].shape[1] :].tolist()
    text.insert(3, model.config.image_token_id)
    with mmaccel.accelerate(model, TextDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**given, prediction=text), plain)
        assert fast.report.details["predicted"] >= 12


def test_without_a_prediction_or_an_assistant_they_draft_as_fused_draft(llama):
    given, reports = call(), []
    for method in (TextDraft(always=True), ModelDraft(always=True), FusedDraft(always=True)):
        with mmaccel.accelerate(llama, method) as fast:
            fast.generate(**given)
            reports.append((fast.report.forwards, fast.report.details))
    assert reports[0] == reports[1] == reports[2]


def test_a_prediction_is_for_no_other_run_of_a_comparison(llama):
    _, (text,) = answers(llama, call())
    methods = TextDraft(always=True), FusedDraft()
    plain, drafted, other = mmaccel.compare(llama, *methods, prediction=text, simple=False, rounds=1, **call()).rows
    assert plain["label"] == "plain" and drafted["equal"] and other["equal"]
    assert drafted["work_ratio"] < 0.3 and drafted["warnings"] == []
    tuned = mmaccel.tune(llama, TextDraft(), grid={"block": (8, 16)}, prediction=text, simple=False, rounds=1, **call())
    assert len(tuned.curve) == 2
