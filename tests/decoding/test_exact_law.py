"""Losslessness by enumeration: exact fractions, no sampling, no tensors; and mutants that must show."""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("exact_rules", Path(__file__).with_name("exact_rules.py"))
exact = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(exact)

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


def law_distance(draft_law, target, judge, vocabulary, length):
    emitted = exact.chain_emitted(draft_law, target, judge)
    law = exact.complete(emitted, target, vocabulary, length + 1)
    return exact.tv(law, exact.sequence_law(target, vocabulary, length + 1))


@pytest.mark.parametrize("name", ["token_judge", "block_judge"])
@pytest.mark.parametrize(("vocabulary", "length"), TOYS)
def test_chain_rules_keep_the_law(name, vocabulary, length):
    for seed in range(2 if vocabulary**length > 60 else 6):
        p, q = pair(vocabulary, seed)
        drafts = exact.sequence_law(q, vocabulary, length)
        assert law_distance(drafts, p, getattr(exact, name)(p, q), vocabulary, length) == 0


@pytest.mark.parametrize("seed", range(6))
def test_block_never_accepts_less_than_token_ratio(seed):
    p, q = pair(3, seed)
    drafts = exact.sequence_law(q, 3, 3)
    token = exact.expected_accepted(exact.chain_emitted(drafts, p, exact.token_judge(p, q)))
    block = exact.expected_accepted(exact.chain_emitted(drafts, p, exact.block_judge(p, q)))
    assert block >= token


def test_golden_expected_accepted():
    drafts = exact.sequence_law(Q2, 2, 2)
    token = exact.chain_emitted(drafts, P2, exact.token_judge(P2, Q2))
    block = exact.chain_emitted(drafts, P2, exact.block_judge(P2, Q2))
    assert exact.expected_accepted(token) == Fraction(10, 9)
    assert exact.expected_accepted(block) == Fraction(11, 9)


@pytest.mark.parametrize(
    ("paths", "golden"),
    [(2, Fraction(131, 81)), (3, Fraction(1289, 729)), (4, Fraction(3571, 2187))],
)
def test_golden_greedy_multi_path(paths, golden):
    """The greatest of K drafts by P/Q, block-verified against the law of that greatest draft (the skew)."""
    law = exact.selected_law(P2, Q2, 2, 2, paths)
    skewed = exact.conditional(law, 2)
    assert exact.expected_accepted(exact.chain_emitted(law, P2, exact.block_judge(P2, skewed))) == golden


MULTI = [(2, 2, 2), (2, 2, 3), (2, 2, 4), (2, 3, 2), (3, 2, 2), (2, 3, 3)]


@pytest.mark.parametrize(("vocabulary", "length", "paths"), MULTI)
@pytest.mark.parametrize("seed", range(3))
def test_greedy_multi_path_keeps_the_law(vocabulary, length, paths, seed):
    p, q = exact.model(f"p{seed}", vocabulary), exact.model(f"q{seed}", vocabulary)
    law = exact.selected_law(p, q, vocabulary, length, paths)
    judge = exact.block_judge(p, exact.conditional(law, vocabulary))
    assert law_distance(law, p, judge, vocabulary, length) == 0


@pytest.mark.parametrize(("tokens", "parent"), TREES)
@pytest.mark.parametrize("vocabulary", [2, 3, 4])
def test_one_hot_trees_keep_the_law(tokens, parent, vocabulary):
    for seed in range(6):
        target = exact.model(f"t{seed}", vocabulary, zeros=seed % 2 == 1)
        law = exact.complete(exact.one_hot_emitted(target, tokens, parent), target, vocabulary, 4)
        assert exact.tv(law, exact.sequence_law(target, vocabulary, 4)) == 0


@pytest.mark.parametrize(
    ("children", "golden"), [((0,), Fraction(1, 2)), ((0, 1), Fraction(4, 5)), ((1, 2, 0), Fraction(1))]
)
def test_golden_one_hot_children(children, golden):
    emitted = exact.one_hot_emitted(exact.constant(exact.P3), children, (-1,) * len(children))
    assert exact.expected_accepted(emitted) == golden


@pytest.mark.parametrize("vocabulary", [2, 3, 4])
def test_siblings_without_replacement_keep_the_law(vocabulary):
    for seed in range(6):
        target = exact.model(f"t{seed}", vocabulary, zeros=seed % 2 == 1)
        q = exact.model(f"w{seed}", vocabulary, zeros=seed % 3 == 2)(())
        for count in range(1, sum(m > 0 for m in q) + 1):
            emitted = exact.siblings_emitted(target, q, count)
            law = exact.complete(emitted, target, vocabulary, 2)
            assert exact.tv(law, exact.sequence_law(target, vocabulary, 2)) == 0


@pytest.mark.parametrize(("count", "golden"), [(1, Fraction(7, 10)), (2, Fraction(41, 50)), (3, Fraction(1))])
def test_golden_siblings(count, golden):
    emitted = exact.siblings_emitted(exact.constant(exact.P3), exact.Q3, count)
    assert exact.expected_accepted(emitted) == golden


# ------------------------------------------------------------------------------------------------ mutants
def mutant_distances(make, toys):
    out = []
    for vocabulary, length, seed in toys:
        p, q = exact.model(f"p{seed}", vocabulary), exact.model(f"q{seed}", vocabulary)
        drafts = exact.sequence_law(q, vocabulary, length)
        out.append(float(law_distance(drafts, p, make(p, q), vocabulary, length)))
    return out


ALL_TOYS = [(v, n, seed) for v, n in [(2, 2), (2, 3), (3, 2), (3, 3), (4, 2)] for seed in range(4)]


def test_mutant_block_that_stops_at_the_first_failure():
    def make(p, q):
        return exact.block_judge(p, q, stop="first_failure")

    assert min(mutant_distances(make, ALL_TOYS)) > 0.1
    stated = mutant_distances(make, [(2, 2, 0), (3, 3, 1), (3, 3, 2), (4, 2, 2)])
    assert all(0.16 <= d <= 0.34 for d in stated)


def test_mutant_block_with_the_plain_residual():
    def make(p, q):
        return exact.block_judge(p, q, plain_residual=True)

    # With two tokens the residual has only one direction, so the fault cannot show there.
    assert max(mutant_distances(make, [toy for toy in ALL_TOYS if toy[0] == 2])) == 0
    assert all(d > 0 for d in mutant_distances(make, [(3, 3, seed) for seed in range(4)]))
    assert all(0.004 <= d <= 0.010 for d in mutant_distances(make, [(4, 2, 0), (4, 2, 2)]))


def test_mutant_resampling_from_the_target_after_a_rejection():
    distances = mutant_distances(lambda p, q: exact.token_judge(p, q, after=lambda a, b: a), ALL_TOYS)
    assert min(distances) > 0.04


@pytest.mark.parametrize(("paths", "low", "high"), [(2, 0.06, 0.07), (3, 0.09, 0.23), (4, 0.09, 0.23)])
def test_mutant_multi_path_without_skew(paths, low, high):
    law = exact.selected_law(P2, Q2, 2, 2, paths)
    assert low <= float(law_distance(law, P2, exact.block_judge(P2, Q2), 2, 2)) <= high


def test_mutant_argmax_draft_scored_with_the_ratio_rule():
    same = exact.constant((Fraction(2, 3), Fraction(1, 3)))
    argmax = {(0,): Fraction(1)}
    assert law_distance(argmax, same, exact.token_judge(same, same), 2, 1) == Fraction(1, 3)
    # The same draft by the rule that fits it:
    law = exact.complete(exact.one_hot_emitted(same, (0,), (-1,)), same, 2, 2)
    assert exact.tv(law, exact.sequence_law(same, 2, 2)) == 0


def siblings_without_renormalising(target, q, after):
    """Two siblings, the second judged by the q of the first; `after(p, q)` follows a rejection."""
    emitted = {}
    for tokens, weight in exact.sibling_orders(q, 2):
        p = target
        for token in tokens:
            share = min(exact.ONE, p[token] / q[token])
            exact.add(emitted, (token,), weight * share)
            weight *= 1 - share
            p = after(p, q)
        for token, mass in enumerate(p):
            exact.add(emitted, (token,), weight * mass)
    return exact.tv(emitted, {(v,): m for v, m in enumerate(target)})


def test_mutant_siblings():
    toys = [(exact.model(f"t{n}", 4)(()), exact.model(f"w{n}", 4)(())) for n in range(12)]
    # The residual is often so peaked that the second child is a sure yes or no by either q: several toys.
    assert sum(siblings_without_renormalising(p, q, exact.rest) > 0 for p, q in toys) >= 2
    assert all(siblings_without_renormalising(p, q, lambda a, b: a) > 0.01 for p, q in toys)
