"""What Draft and accept refuse, and how accept behaves apart from its law."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from mmaccel.decoding import (
    Block,
    Draft,
    Grouped,
    OneHot,
    SparseDistribution,
    Stats,
    TokenRatio,
    WithoutReplacement,
    accept,
)

CHAIN = torch.tensor([[0, 1]])
FLAT = torch.full((1, 2, 3), 1 / 3)


def q_with(*rows):
    return torch.tensor([rows])


def sparse(ids, probs):
    return SparseDistribution(torch.tensor(ids), torch.tensor(probs))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# -------------------------------------------------------------------------------------------------- Draft
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Draft.deterministic(torch.tensor([0, 1])), r"integers of shape \[B, K\]"),
        (lambda: Draft.deterministic(torch.tensor([[0.0]])), r"integers of shape \[B, K\]"),
        (lambda: Draft.deterministic(torch.tensor([[True]])), r"integers of shape \[B, K\]"),
        (lambda: Draft.deterministic(torch.tensor([[-1]])), "must not be negative"),
        (lambda: Draft.deterministic(CHAIN, (-1,)), "one node per draft token, got 1 for K=2"),
        (lambda: Draft.deterministic(CHAIN, (1, -1)), r"parent\[0\]=1 must be -1 or a node before it"),
        (lambda: Draft.deterministic(CHAIN, (-1, 1)), r"parent\[1\]=1 must be"),
        (lambda: Draft.deterministic(CHAIN, (-1, -2)), r"parent\[1\]=-2 must be"),
        (lambda: Draft(CHAIN, None, FLAT, "deterministic"), "takes no q"),
        (lambda: Draft(CHAIN, None, None, "sampled"), "needs the q"),
        (lambda: Draft(CHAIN, None, None, "without_replacement"), "needs the q"),
        (lambda: Draft(CHAIN, (-1, -1), FLAT, "sampled"), "must be a chain"),
        (lambda: Draft(CHAIN, (-1, 0), FLAT[:, 0], "without_replacement"), "children of the root"),
        (lambda: Draft(CHAIN, drawn="guessed"), "drawn must be one of"),
        (lambda: Draft.sampled(CHAIN, FLAT[:, :1]), r"q must be \[1, 2, 'V'\]"),
        (lambda: Draft.sampled(CHAIN, FLAT[0]), r"q must be \[1, 2, 'V'\]"),
        (lambda: Draft.without_replacement(CHAIN, FLAT), r"q must be \[1, 'V'\]"),
        (lambda: Draft.sampled(torch.tensor([[0, 3]]), FLAT), "below the vocabulary size 3"),
        (lambda: Draft.sampled(CHAIN, q_with([1.0, 0.0], [1.0, 0.0])), r"q\(d\) = 0"),
        (lambda: Draft.sampled(CHAIN, sparse([[[0], [0]]], [[[1.0], [1.0]]])), r"q\(d\) = 0"),
        (lambda: Draft.sampled(CHAIN, q_with([math.nan, 1.0], [0.5, 0.5])), "q holds NaN"),
        (lambda: Draft.sampled(CHAIN, q_with([1.5, -0.5], [0.5, 0.5])), "q holds negative"),
        (lambda: Draft.sampled(CHAIN, q_with([2.0, 2.0], [0.5, 0.5])), "q must sum to 1"),
        (lambda: Draft.sampled(CHAIN, sparse([[[0], [-1]]], [[[1.0], [1.0]]])), "negative token ids"),
        (lambda: Draft.without_replacement(torch.tensor([[1, 1]]), FLAT[:, 0]), "must not repeat a token"),
        (lambda: sparse([[0, 1]], [[1.0]]), "must share a shape"),
        (lambda: sparse([[0.5]], [[1.0]]), "ids must be integers"),
    ],
)
def test_draft_refuses(build, message):
    with pytest.raises(ValueError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_draft_is_frozen():
    draft = Draft.deterministic(CHAIN)
    with pytest.raises(dataclasses.FrozenInstanceError):
        draft.drawn = "sampled"


def test_replace_checks_again():
    with pytest.raises(ValueError, match="needs the q"):
        dataclasses.replace(Draft.deterministic(CHAIN), drawn="sampled")


def test_draft_defaults_and_depth():
    assert Draft.deterministic(CHAIN).parent == (-1, 0)
    assert Draft.without_replacement(CHAIN, FLAT[:, 0]).parent == (-1, -1)
    tree = Draft.deterministic(torch.tensor([[0, 1, 2]], dtype=torch.int32), torch.tensor([-1, -1, 1]))
    assert (tree.parent, tree.depth, tree.size, tree.tokens.dtype) == ((-1, -1, 1), 2, 3, torch.long)
    assert Draft.deterministic(torch.empty((2, 0), dtype=torch.long)).depth == 0


def test_draw_matches_its_own_distribution():
    q = torch.tensor([0.0, 0.25, 0.75]).expand(4000, 2, 3)
    draft = Draft.draw(q, seeded())
    assert draft.drawn == "sampled"
    assert draft.q is q
    assert (draft.tokens == 2).float().mean().item() == pytest.approx(0.75, abs=0.03)
    thin = SparseDistribution(torch.tensor([9, 4]).expand(50, 1, 2), torch.tensor([0.5, 0.5]).expand(50, 1, 2))
    assert set(Draft.draw(thin, seeded()).tokens.flatten().tolist()) == {4, 9}


# ------------------------------------------------------------------------------------------------- accept
DRAFTS = {
    "deterministic": Draft.deterministic(CHAIN),
    "sampled": Draft.sampled(CHAIN, FLAT),
    "without_replacement": Draft.without_replacement(CHAIN, FLAT[:, 0]),
}


@pytest.mark.parametrize(
    ("drawn", "rule", "fitting"),
    [
        ("deterministic", Block(), r"use one of OneHot\(\)"),
        ("deterministic", TokenRatio(), r"use one of OneHot\(\)"),
        ("deterministic", Grouped(), r"use one of OneHot\(\)"),
        ("sampled", OneHot(), r"use one of Block\(\), TokenRatio\(\), Grouped\(\)"),
        ("sampled", WithoutReplacement(), r"use one of Block\(\)"),
        ("without_replacement", Block(), r"use one of WithoutReplacement\(\)"),
        ("without_replacement", OneHot(), r"use one of WithoutReplacement\(\)"),
    ],
)
def test_a_rule_that_would_bias_is_refused(drawn, rule, fitting):
    with pytest.raises(ValueError, match=fitting):
        accept(torch.zeros(1, 3, 3), DRAFTS[drawn], rule=rule, allow_lossy=True)


def test_lossy_rules_need_consent():
    with pytest.raises(ValueError, match="allow_lossy=True"):
        accept(torch.zeros(1, 3, 3), DRAFTS["sampled"], rule=Grouped())
    accept(torch.zeros(1, 3, 3), DRAFTS["sampled"], rule=Grouped(), allow_lossy=True)


@pytest.mark.parametrize(
    ("logits", "drawn", "message"),
    [
        (torch.zeros(1, 2, 3), "sampled", r"must be \[1, 3, V\] for this draft, got \[1, 2, 3\]"),
        (torch.zeros(1, 1, 3), "deterministic", r"must be \[1, 3, V\]"),
        (torch.zeros(2, 3, 3), "sampled", r"must be \[1, 3, V\]"),
        (torch.zeros(1, 2, 3), "without_replacement", r"must be \[1, 1, V\] or \[1, 3, V\]"),
        (torch.zeros(1, 3, 4), "sampled", "q has a vocabulary of 3 but target_logits have 4"),
        (torch.zeros(1, 3, 1), "deterministic", "below the vocabulary size 1"),
        (torch.full((1, 3, 3), math.nan), "sampled", "NaN"),
        (torch.full((1, 3, 3), -math.inf), "deterministic", "only -inf"),
        (torch.full((1, 3, 3), math.inf), "deterministic", r"\+inf"),
    ],
)
def test_accept_refuses(logits, drawn, message):
    with pytest.raises(ValueError, match=message):
        accept(logits, DRAFTS[drawn])


def test_accept_refuses_sparse_ids_outside_the_vocabulary():
    draft = Draft.sampled(torch.tensor([[0]]), sparse([[[0, 7]]], [[[0.5, 0.5]]]))
    with pytest.raises(ValueError, match="ids of q must be below the vocabulary size 3"):
        accept(torch.zeros(1, 2, 3), draft)


def test_accept_refuses_something_that_is_no_rule():
    with pytest.raises(ValueError, match="must be a rule object"):
        accept(torch.zeros(1, 3, 3), DRAFTS["sampled"], rule="block")


@pytest.mark.parametrize("drawn", DRAFTS)
def test_generator_decides_and_the_global_state_is_untouched(drawn):
    draft, logits = DRAFTS[drawn], torch.randn(1, 3, 3, generator=seeded())
    before = torch.get_rng_state()
    left, right = (accept(logits, draft, generator=seeded(7)) for _ in range(2))
    assert torch.equal(left.path, right.path)
    assert torch.equal(left.next_token, right.next_token)
    assert torch.equal(before, torch.get_rng_state())


def greedy(rows, vocabulary=8):
    """One-hot logits: the greedy limit."""
    logits = torch.full((1, len(rows), vocabulary), -torch.inf)
    return logits.scatter(2, torch.tensor(rows).view(1, -1, 1), 0.0)


def test_greedy_chain_and_verdict_layout():
    draft = Draft.deterministic(torch.tensor([[3, 4, 5]]))
    verdict = accept(greedy([3, 4, 1, 2]), draft)
    assert verdict.path.tolist() == [[0, 1, -1]]
    assert verdict.next_token.tolist() == [1]
    assert verdict.accepted.tolist() == [2]
    assert verdict.tokens(draft).tolist() == [[3, 4, 1, -1]]


def test_greedy_tree_takes_the_second_branch():
    draft = Draft.deterministic(torch.tensor([[3, 4, 6, 5]]), (-1, -1, 0, 1))
    verdict = accept(greedy([4, 0, 5, 0, 7]), draft)
    assert verdict.path.tolist() == [[1, 3, -1, -1]]
    assert verdict.tokens(draft).tolist() == [[4, 5, 7, -1, -1]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_dtype_is_judged_in_float32(dtype):
    logits = torch.randn(64, 3, 3, generator=seeded()).to(dtype)
    q = torch.randn(64, 2, 3, generator=seeded(1)).softmax(-1)
    draft = Draft.draw(q, seeded(2))
    left, right = (accept(x, draft, generator=seeded(3)) for x in (logits, logits.float()))
    assert torch.equal(left.next_token, right.next_token)
    assert torch.equal(left.path, right.path)


def test_perfect_drafts_are_accepted_whole():
    p = torch.randn(200, 5, 6, generator=seeded()).softmax(-1)
    draft = Draft.draw(p[:, :4], seeded(1))
    for rule in (TokenRatio(), Block()):
        accepted = accept(p.log(), draft, rule=rule, generator=seeded(2)).accepted.float()
        # p goes through log and softmax, so ratios are 1 up to rounding.
        assert accepted.mean().item() == 4.0


def test_verdicts_feed_the_statistics():
    draft = Draft.deterministic(torch.tensor([[3, 4, 5]]))
    stats = Stats()
    stats.observe(accept(greedy([3, 4, 1, 2]), draft).accepted, draft.size, depth=draft.depth)
    assert (stats.emitted, stats.acceptance) == (3, [1.0, 1.0, 0.0])
