"""Drafts handed to plain transformers, and to an engine that verifies itself."""

import collections
import dataclasses
import random

import pytest
import torch

import mmaccel
from mmaccel import private
from mmaccel.decoding import Draft, Verdict, match
from mmaccel.decoding.drafters import sources
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.linears import skinny
from mmaccel.vlm import FusedDraft, SuffixDecoding, TextDraft, TokenRecycling, examples, visual_examples

NEW = 30


@pytest.fixture(scope="module")
def llama():
    return examples.llama()[0]


def call(batch=1, **more):
    ids = torch.randint(4, 60, (batch, 24), generator=torch.Generator().manual_seed(batch))
    ids = torch.cat([ids, ids[:, :12]], 1)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "do_sample": False}
    return {**given, "eos_token_id": None, "pad_token_id": 0, **more}


@pytest.mark.parametrize("batch", (1, 3))
@pytest.mark.parametrize(
    "method", (SuffixDecoding(shortest=1), TokenRecycling(always=True), FusedDraft(always=True)), ids=lambda m: m.name
)
def test_plain_transformers_takes_them(llama, method, batch):
    given, attributes = call(batch), dict(vars(llama))
    plain = llama.generate(**given)
    drafts = method.custom_generate()
    for _ in range(2):
        assert torch.equal(llama.generate(**given, custom_generate=drafts), plain)
    report = drafts.report
    assert report.engaged and report.exact and report.forwards < report.plain_forwards and report.wall_seconds > 0
    assert report.details["accepted"] > 0 and report.tokens == batch * NEW
    assert dict(vars(llama)) == attributes, "the model is untouched"


def test_passes_of_a_few_tokens_are_skinny_products(monkeypatch):
    """While it is called, and with the plain loop's own layers afterwards."""
    model, rows = examples.llama(hidden_size=384, intermediate_size=512)[0], []
    compute = skinny.skinny_linear
    monkeypatch.setattr(skinny, "skinny_linear", lambda x, *more: rows.append(x.shape[1]) or compute(x, *more))
    plain, drafts = model.generate(**call()), FusedDraft(always=True).custom_generate()
    assert not rows and torch.equal(model.generate(**call(), custom_generate=drafts), plain)
    assert min(rows) == 1 and any(1 < count < 20 for count in rows)
    with pytest.raises(AttributeError):  # in the middle of it
        model.generate(**call(), custom_generate=drafts, logits_processor=[lambda ids, scores: scores.nothing])
    assert not any("forward" in vars(layer) for layer in model.modules())


def test_the_same_as_in_a_session(llama):
    drafts = FusedDraft(always=True).custom_generate()
    with mmaccel.accelerate(llama, FusedDraft(always=True)) as fast:
        for batch in (1, 3, 1):
            given = call(batch, do_sample=True)
            torch.manual_seed(1)
            in_session = fast.generate(**given)
            counted = fast.report.forwards, fast.report.details
            fast.remove()
            torch.manual_seed(1)
            assert torch.equal(llama.generate(**given, custom_generate=drafts), in_session)
            assert (drafts.report.forwards, drafts.report.details) == counted
            memory = fast.memory
            fast = mmaccel.accelerate(llama, FusedDraft(always=True))  # noqa: PLW2901
            fast.memory.update(memory)
        fast.remove()


def test_a_setting_that_is_none_counts_before_that_of_the_model(llama, monkeypatch):
    given, drafts = call(), FusedDraft(always=True).custom_generate()
    plain = llama.generate(**given)
    monkeypatch.setattr(llama.generation_config, "prompt_lookup_num_tokens", 3)
    with pytest.raises(SettingError, match="prompt_lookup_num_tokens=3"):
        llama.generate(**given, custom_generate=drafts)
    assert torch.equal(llama.generate(**given, prompt_lookup_num_tokens=None, custom_generate=drafts), plain)


def test_a_prediction(llama):
    given = call()
    plain = llama.generate(**given)
    drafts = TextDraft(always=True).custom_generate()
    text = plain[0, 36:].tolist()
    assert torch.equal(llama.generate(**given, custom_generate=drafts, prediction=text), plain)
    assert drafts.report.details["predicted"] == NEW
    with pytest.raises(SettingError, match=r"FusedDraft takes no prediction; vlm\.TextDraft does"):
        llama.generate(**given, custom_generate=FusedDraft().custom_generate(), prediction=text)


def test_pictures_are_not_drafted():
    model, arguments = visual_examples.onevision()
    given = arguments(1, max_new_tokens=12)
    plain = model.generate(**given)
    drafts = FusedDraft(always=True).custom_generate()
    assert torch.equal(model.generate(**given, custom_generate=drafts), plain)


def test_what_does_not_go_is_refused(llama):
    drafts = FusedDraft().custom_generate()
    with pytest.raises(SettingError, match="num_beams=2: call generate without custom_generate="):
        llama.generate(**call(num_beams=2), custom_generate=drafts)
    llama.generate(**call(), custom_generate=drafts)
    other = examples.llama()[0]
    with pytest.raises(SettingError, match="learned from another LlamaForCausalLM: make others"):
        other.generate(**call(), custom_generate=drafts)


def test_a_model_that_is_split_over_processes_asks_for_always(llama, monkeypatch):
    """Each process would measure another cost of a pass."""
    monkeypatch.setattr(private, "is_split", lambda model: True)
    said = r"LlamaForCausalLM is split over processes, .*: say vlm.FusedDraft\(always=True\)"
    with pytest.raises(UnsupportedTargetError, match=said):
        llama.generate(**call(), custom_generate=FusedDraft().custom_generate())
    with pytest.raises(UnsupportedTargetError, match=said):
        mmaccel.accelerate(llama, FusedDraft())
    for method in (FusedDraft(always=True), SuffixDecoding()):
        llama.generate(**call(), custom_generate=method.custom_generate())


@pytest.mark.parametrize("method", (SuffixDecoding(shortest=1), FusedDraft(always=True)), ids=lambda m: m.name)
@pytest.mark.parametrize("branches", (True, False))
def test_an_engine_of_its_own(method, branches):
    """Which writes a known text, and verifies what the drafters propose for each of two rows."""
    text = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7, 10, 11, 5, 6, 7, 8, 9, 5, 6, 7, 8, 9] * 2
    passes = []
    for drafter in method.custom_generate().drafters(rows=2, branches=branches):
        drafter.begin(text[:6])
        written, count = text[:6], 0
        while len(written) < len(text):
            draft = drafter.propose(min(8, len(text) - len(written) - 1)) or Draft(())
            assert draft.is_chain or branches
            ahead = iter(text[len(written) :])
            verdict = match(draft, lambda node, ahead=ahead: (next(ahead), False))
            drafter.observe(Verdict(verdict.path, verdict.tokens))
            written, count = [*written, *verdict.tokens], count + 1
        assert written == text
        passes.append(count)
    assert max(passes) < len(text) / 2


@pytest.mark.parametrize("method", (SuffixDecoding(), TokenRecycling(), FusedDraft()), ids=lambda m: m.name)
def test_many_texts_take_no_more_memory_than_a_few(method, monkeypatch):
    """What is learned from the oldest is forgotten."""
    monkeypatch.setattr(sources, "REMEMBER", 2000)
    drafts = dataclasses.replace(method, **({"remember": 500} if hasattr(method, "remember") else {})).custom_generate()
    rng, sizes = random.Random(0), []
    for number in range(1, 601):
        (drafter,) = drafts.drafters()
        drafter.begin([rng.randrange(5000) for _ in range(20)])
        for _ in range(15):
            draft = drafter.propose(4)
            likely = [[(rng.randrange(5000), 0.5), (rng.randrange(5000), 0.2)] for _ in range(draft.size + 1)]
            drafter.observe(Verdict((), (rng.randrange(5000),), likely))
        if number in (200, 600):
            sizes.append(held(drafts.memory))
    assert sizes[1] < 1.1 * sizes[0]


def held(value):
    """How many things a value holds, in all containers below it."""
    if isinstance(value, dict):
        return sum(map(held, value.values())) + sum(map(held, value))
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return sum(map(held, value))
    return held(vars(value)) if hasattr(value, "__dict__") else 1
