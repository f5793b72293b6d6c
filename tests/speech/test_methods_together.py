"""Drafts over merged audio tokens: the tokens of merging alone, a plan that says lossy, and a report of both."""

import itertools

import pytest
import torch

import mmaccel
from mmaccel.speech import MergeAudioTokens, SuffixDraft, examples

MERGE, DRAFT = MergeAudioTokens(keep=0.4, threshold=-1.0), SuffixDraft(shortest=1)
NO_RUNS, NO_DRAFTS = (
    MergeAudioTokens(keep=0.999, threshold=1.0),
    SuffixDraft(shortest=8),
)  # neither finds anything to do
NEW = 60  # so long that drafts are right in both models
ORDERS = pytest.mark.parametrize("turn", (1, -1), ids=("merging first", "drafts first"))


@pytest.fixture(scope="module", params=sorted(MergeAudioTokens.families))
def case(request):
    model, arguments = examples.BUILDERS[request.param][0](seed=1)
    return model, arguments(1, samples=30_000, max_new_tokens=NEW)


def said(model, call, *methods):
    with mmaccel.accelerate(model, *methods) as session:
        return session.generate(**call), session.report


@ORDERS
def test_drafts_give_the_tokens_of_merging_alone(case, turn):
    model, call = case
    plain = model.generate(**call)
    merged, alone = said(model, call, MERGE)
    tokens, report = said(model, call, *(MERGE, DRAFT)[::turn])
    assert torch.equal(tokens, merged) and not torch.equal(merged, plain)
    assert report.keys == alone.keys < report.plain_keys
    assert report.engaged and report.forwards < report.plain_forwards == NEW
    assert {"kept", "merging_seconds", "accepted", "drafted"} <= report.details.keys()


@ORDERS
def test_tokens_and_memory_are_those_of_both(case, turn):
    model, call = case
    (_, merging), (_, drafting) = said(model, call, MERGE), said(model, call, DRAFT)
    _, report = said(model, call, *(MERGE, DRAFT)[::turn])
    assert report.tokens == drafting.tokens == NEW
    assert report.peak_extra_bytes > max(merging.peak_extra_bytes, drafting.peak_extra_bytes)


@ORDERS
def test_one_lossy_method_makes_the_plan_lossy(case, turn):
    model, call = case
    made = mmaccel.plan(model, *(MERGE, DRAFT)[::turn])
    assert not made.exact and str(made).startswith(f"plan for {made.family} (lossy)")
    _, report = said(model, call, made)
    assert not report.exact and "lossy" in str(report)
    assert mmaccel.plan(model, MergeAudioTokens(keep=1.0), DRAFT).exact


@pytest.mark.parametrize("order", itertools.permutations((0, 1)), ids=str)
@pytest.mark.parametrize(
    ("methods", "engaged", "told"),
    (
        ((MERGE, NO_DRAFTS), True, ["nothing was drafted"]),
        ((NO_RUNS, DRAFT), True, ["no two neighbours are alike"]),
        ((NO_RUNS, NO_DRAFTS), False, ["nothing was drafted", "no two neighbours are alike"]),
        ((MERGE, DRAFT), True, []),
    ),
    ids=("merging alone engages", "drafts alone engage", "none engages", "both engage"),
)
def test_the_report_tells_of_both(case, methods, engaged, told, order):
    model, call = case
    _, report = said(
        model, {**call, "max_new_tokens": 6 if methods[1] is NO_DRAFTS else NEW}, *(methods[i] for i in order)
    )
    assert report.engaged == engaged
    assert len(report.warnings) == len(told) and all(any(word in text for text in report.warnings) for word in told)
