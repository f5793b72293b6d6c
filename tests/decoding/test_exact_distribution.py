"""Losslessness by enumeration: exact fractions, no sampling, no tensors; and mutants that must show."""

from __future__ import annotations

from fractions import Fraction

import exact_rules as exact
import pytest

P2, Q2 = exact.constant(exact.P2), exact.constant(exact.Q2)
TOYS = [(2, 2), (2, 3), (2, 4), (2, 5), (3, 2), (3, 3), (3, 4), (4, 2), (4, 3)]
TREES = [
    ((0,), (-1,)),
    ((1, 0), (-1, 0)),
    ((0, 1), (-1, -1)),
    ((1, 0, 0, 1), (-1, -1, 0, 0)),
    ((1, 0, 0, 1, 1), (-1, 0, -1, 1, 2)),
    ((0, 0, 1), (-1, -1, -1)),  # a repeated sibling has nothing left and is harmless
]


def pair(vocabulary, seed):
    """A target with impossible tokens, and a draft model that can draw everything or nearly so."""
    return (
        exact.model(f"p{seed}", vocabulary, zeros=seed % 2 == 1),
        exact.model(f"q{seed}", vocabulary, zeros=seed % 3 == 2),
    )


def distance_to_target(drafts, target, judge, vocabulary, length):
    emitted = exact.chain_emitted(drafts, target, judge)
    whole = exact.complete(emitted, target, vocabulary, length + 1)
    return exact.tv(whole, exact.sequence_distribution(target, vocabulary, length + 1))


@pytest.mark.parametrize(("vocabulary", "length"), TOYS)
def test_the_token_ratio_keeps_the_distribution(vocabulary, length):
    for seed in range(2 if vocabulary**length > 60 else 6):
        p, q = pair(vocabulary, seed)
        drafts = exact.sequence_distribution(q, vocabulary, length)
        assert distance_to_target(drafts, p, exact.token_judge(p, q), vocabulary, length) == 0


def test_golden_expected_accepted():
    drafts = exact.sequence_distribution(Q2, 2, 2)
    token = exact.chain_emitted(drafts, P2, exact.token_judge(P2, Q2))
    assert exact.expected_accepted(token) == Fraction(10, 9)


@pytest.mark.parametrize(("tokens", "parent"), TREES)
@pytest.mark.parametrize("vocabulary", [2, 3, 4])
def test_one_hot_trees_keep_the_distribution(tokens, parent, vocabulary):
    for seed in range(6):
        target = exact.model(f"t{seed}", vocabulary, zeros=seed % 2 == 1)
        whole = exact.complete(exact.one_hot_emitted(target, tokens, parent), target, vocabulary, 4)
        assert exact.tv(whole, exact.sequence_distribution(target, vocabulary, 4)) == 0


@pytest.mark.parametrize(
    ("children", "golden"), [((0,), Fraction(1, 2)), ((0, 1), Fraction(4, 5)), ((1, 2, 0), Fraction(1))]
)
def test_golden_one_hot_children(children, golden):
    emitted = exact.one_hot_emitted(exact.constant(exact.P3), children, (-1,) * len(children))
    assert exact.expected_accepted(emitted) == golden


# ------------------------------------------------------------------------------------------------ mutants
def mutant_distances(make, toys):
    out = []
    for vocabulary, length, seed in toys:
        p, q = exact.model(f"p{seed}", vocabulary), exact.model(f"q{seed}", vocabulary)
        drafts = exact.sequence_distribution(q, vocabulary, length)
        out.append(float(distance_to_target(drafts, p, make(p, q), vocabulary, length)))
    return out


ALL_TOYS = [(v, n, seed) for v, n in [(2, 2), (2, 3), (3, 2), (3, 3), (4, 2)] for seed in range(4)]


def test_mutant_resampling_from_the_target_after_a_rejection():
    distances = mutant_distances(lambda p, q: exact.token_judge(p, q, after=lambda a, b: a), ALL_TOYS)
    assert min(distances) > 0.04


def test_mutant_argmax_draft_scored_with_the_ratio_rule():
    same = exact.constant((Fraction(2, 3), Fraction(1, 3)))
    argmax = {(0,): Fraction(1)}
    assert distance_to_target(argmax, same, exact.token_judge(same, same), 2, 1) == Fraction(1, 3)
    # The same draft by the rule that fits it:
    whole = exact.complete(exact.one_hot_emitted(same, (0,), (-1,)), same, 2, 2)
    assert exact.tv(whole, exact.sequence_distribution(same, 2, 2)) == 0
