"""What drafters come to hold, as plans tell it before the run: true, and never more."""

import random
from sys import getsizeof

import pytest
from draft_models import call

import mmaccel
from mmaccel.decoding import Verdict
from mmaccel.decoding.drafters import sources
from mmaccel.decoding.drafters.sources import successors_bytes
from mmaccel.decoding.drafters.suffix_index import index_bytes
from mmaccel.vlm import FusedDraft, ModelDraft, SuffixDecoding, TokenRecycling, examples

MANY = 500  # contexts, and tokens


def size(value, seen):
    """Bytes of an object and of all that it holds, each counted once."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return getsizeof(value) + (sum(size(part, seen) for part in parts) if isinstance(value, dict | list | tuple) else 0)


@pytest.mark.parametrize(
    "method", (SuffixDecoding(remember=MANY), TokenRecycling(), FusedDraft(remember=MANY)), ids=str
)
def test_no_more_is_held_than_was_told(method, monkeypatch):
    """In texts of random tokens, of which no two n-grams are equal."""
    monkeypatch.setattr(sources, "REMEMBER", MANY)
    drafts, rng = method.custom_generate(), random.Random(0)
    for _ in range(30):
        (drafter,) = drafts.drafters()
        drafter.begin([rng.randrange(300, 10**6) for _ in range(20)])
        for _ in range(40):
            draft = drafter.propose(4)
            likely = [[(rng.randrange(10**6), 0.1) for _ in range(8)] for _ in range(draft.size + 1)]
            drafter.observe(Verdict((), (rng.randrange(300, 10**6),), likely))
    told, held = 0, 0
    for name, value in drafts.memory.items():
        if name.endswith("successors"):
            assert len(value) == MANY
            held += size(value, set())
            told += successors_bytes(method.likely, method.equal_tokens, MANY)
        elif hasattr(value, "remember"):
            assert len(value) <= MANY + 1 + 60
            held += size(vars(value), set())
            told += sum(index_bytes(method.longest, method.shortest, count) for count in (MANY, 61))
    assert 0.4 * told < held <= told
    assert method.learned(drafts.memory) <= told


@pytest.mark.parametrize("lengths", ((32_000, 100), (3_000,) * 6, (2_100, 900) * 4), ids=str)
def test_an_index_holds_no_more_than_was_told_after_long_texts(lengths):
    """A dictionary keeps the room of what is deleted from it."""
    method, rng = SuffixDecoding(longest=4), random.Random(0)
    (index,) = method.custom_generate().drafters()
    for length in lengths:
        index.begin()
        for _ in range(length):
            index.add(rng.randrange(300, 10**6))
        told = index_bytes(method.longest, method.shortest, method.remember)
        told += index_bytes(method.longest, method.shortest, max(1, len(index) - method.remember))
        held = size(vars(index), set())
        assert held <= told and held <= method.learned({"": index})
    index.begin()
    assert len(index) <= method.remember
    assert size(vars(index), set()) <= method.learned({"": index})


def test_a_plan_tells_what_its_drafter_holds():
    model, arguments = examples.llama()
    lines = str(mmaccel.plan(model, ModelDraft(remember=100))).splitlines()
    holds = [line.split() for line in lines if line.startswith("    holds ")]
    assert len(holds) == 4 and "assistant_model" in holds[-1], "successors, texts, the text at hand, and the assistant"
    assert all(words[1:3] == ["up", "to"] and float(words[3]) > 0 for words in holds[:3])
    assert "holds" not in str(mmaccel.plan(model, mmaccel.vlm.SelectKV()))


def test_a_report_tells_what_was_learned():
    model, _ = examples.llama()
    method = FusedDraft(always=True)
    with mmaccel.accelerate(model, method) as fast:
        fast.generate(**call())
        first = fast.report.peak_extra_bytes
        fast.generate(**call(3))
        assert 0 < first < fast.report.peak_extra_bytes < sum(held.bytes for held in method.held())
