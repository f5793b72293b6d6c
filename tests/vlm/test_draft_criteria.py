"""Stopping criteria of the user's own in batches with drafts: each text has its own, and ends as the model ends it."""

import threading
from types import SimpleNamespace

import pytest
import torch
from draft_models import call
from reads import Reads
from transformers import (
    EosTokenCriteria,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)

import mmaccel
from mmaccel.decoding.generated_text import GeneratedText, copied
from mmaccel.decoding.unfit import unfit_for_batch
from mmaccel.vlm import FusedDraft, SuffixDecoding, examples, serving

OWN_LOOP = "the model's own loop ran: "
WRITTEN_ON = "without eos_token_id a text that a stopping criterion ended is written on until all have ended"


@pytest.fixture(scope="module")
def llama():
    return examples.llama()[0]


class Counting(StoppingCriteria):
    """Ends a text with the sixth of its tokens below 32."""

    rowwise = True

    def __init__(self, held=None):
        self.found, self.held = 0, held

    def __call__(self, input_ids, scores, **kwargs):
        self.found = self.found + (input_ids[:, -1] < 32).long()
        return self.found >= 6


class Below(StoppingCriteria):
    """Ends a text with a token below 8."""

    rowwise = True

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] < 8


@pytest.mark.parametrize("method", (SuffixDecoding(shortest=1), FusedDraft(always=True)), ids=lambda m: m.name)
@pytest.mark.parametrize("batch", (3, 8))
def test_a_criterion_remembers_its_row_alone(llama, method, batch):
    criterion, given = Counting(), call(batch, eos_token_id=63)
    plain = llama.generate(**given, stopping_criteria=[Counting()])
    assert not torch.equal(plain, llama.generate(**given)), "it ends texts"
    with mmaccel.accelerate(llama, method) as fast:
        assert torch.equal(fast.generate(**given, stopping_criteria=[criterion]), plain)
        assert fast.report.details["accepted"] and not fast.report.warnings
    assert criterion.found == 0, "each text has a copy"


def test_a_criterion_that_cannot_be_copied_is_left_to_the_model(llama):
    given = call(3, eos_token_id=63)
    plain = llama.generate(**given, stopping_criteria=[Counting()])
    said = f"{OWN_LOOP}Counting cannot be copied for each text: cannot pickle '_thread.lock' object"
    with mmaccel.accelerate(llama, SuffixDecoding(shortest=1)) as fast:
        assert torch.equal(fast.generate(**given, stopping_criteria=[Counting(threading.Lock())]), plain)
        assert fast.report.warnings == [said]


def test_what_another_thread_tells_a_criterion_all_rows_know():
    event = threading.Event()
    (own,) = copied([Counting(event)])
    assert own.held is event


def test_all_rows_of_a_served_batch_end_once_nobody_waits():
    request = SimpleNamespace(left=threading.Event())
    criterion = serving._Left([request])
    assert unfit_for_batch([], [criterion, EosTokenCriteria(7)], None) is None
    (own,) = copied([criterion])
    request.left.set()
    assert own(torch.zeros(1, 3), None).all()


@pytest.mark.parametrize(
    "more", ({"stopping_criteria": [Below()]}, {"max_time": 600.0}), ids=lambda more: next(iter(more))
)
def test_texts_that_no_token_ends_are_written_on(llama, more):
    """Until the last one has ended, as nothing says what they would be padded with."""
    plain = llama.generate(**call(3), **more)
    alone = call(1)
    with mmaccel.accelerate(llama, FusedDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**call(3), **more), plain)
        assert fast.report.warnings == [OWN_LOOP + WRITTEN_ON]
        assert torch.equal(fast.generate(**alone, **more), llama.generate(**alone, **more))
        assert not any("own loop" in warning for warning in fast.report.warnings), "one text ends where it ends"
    assert unfit_for_batch([], [MaxTimeCriteria(1.0)], None) == WRITTEN_ON
    assert unfit_for_batch([], [MaxLengthCriteria(9)], None) is None


def test_a_token_and_the_end_of_its_text_are_read_at_once():
    """One after the other, each would wait for a GPU."""
    config = SimpleNamespace(do_sample=False, return_dict_in_generate=False)
    criteria = StoppingCriteriaList([MaxLengthCriteria(4), EosTokenCriteria(7)])
    text = GeneratedText(torch.tensor([[1, 2]]), LogitsProcessorList(), criteria, config)
    with Reads() as reads:
        found = [text.choose(torch.eye(8)[None, token]) for token in (5, 7)]
    assert found == [(5, False), (7, True)] and text.finished and text.ids.tolist() == [[1, 2, 5, 7]]
    assert reads.count == 0
