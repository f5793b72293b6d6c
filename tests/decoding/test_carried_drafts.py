"""Two rounds of a Jacobi-style window by enumeration: how drafts may be carried over."""

from __future__ import annotations

from fractions import Fraction

import exact_rules as exact
import pytest

VOCABULARY, WINDOW = 3, 3
UNIFORM = (Fraction(1, VOCABULARY),) * VOCABULARY


def fresh(token, p, q):
    return dict(enumerate(p)), p


def maximal(token, p, q):
    """The old draft if p accepts it, else the residual: distributed as p, and mostly unchanged."""
    moved, kept = {}, min(exact.ONE, p[token] / q[token])
    exact.add(moved, token, kept)
    for v, mass in enumerate(exact.rest(p, q)):
        exact.add(moved, v, (1 - kept) * mass)
    return moved, p


def stale(token, p, q):
    """Published fault: the old draft and its old q, although the history before it has changed."""
    moved, _ = maximal(token, p, q)
    return moved, q


def tails(drafts, rows, move):
    """All refreshed drafts with their probabilities, and the q of each place."""
    out, qs = [((), exact.ONE)], []
    for token, p in zip(drafts, rows, strict=True):
        moved, q = move(token, p, UNIFORM)
        out = [((*x, v), w * m) for x, w in out for v, m in moved.items() if m]
        qs.append(q)
    return out, qs


def two_rounds(seed, move):
    """TV from the target after a round on uniform drafts and a round on what it left in the window."""
    target, found = exact.model(f"s{seed}", VOCABULARY), {}
    uniform = exact.constant(UNIFORM)
    for draft, weight in exact.sequence_distribution(uniform, VOCABULARY, WINDOW).items():
        rows = [target(draft[:i]) for i in range(WINDOW)]
        for stop, probability, after in exact.token_judge(target, uniform)(draft):
            left, qs = tails(draft[stop + 1 :], rows[stop + 1 :], move)
            for token, mass in enumerate(after):
                done = (*draft[:stop], token)
                for tail, share in left:
                    judge = exact.token_judge(lambda h, d=done: target((*d, *h)), lambda h, q=qs: q[len(h)])
                    verdicts = judge(tail) if tail else [(0, exact.ONE, target(done))]
                    for again, chance, last in verdicts:
                        total = weight * probability * mass * share * chance
                        for v, m in enumerate(last):
                            exact.add(found, (*done, *tail[:again], v), total * m)
    whole = exact.complete(found, target, VOCABULARY, WINDOW + 2)
    return exact.tv(whole, exact.sequence_distribution(target, VOCABULARY, WINDOW + 2))


@pytest.mark.parametrize("move", [fresh, maximal])
def test_lossless_couplings(move):
    assert all(two_rounds(seed, move) == 0 for seed in range(3))


def test_mutant_old_q_after_a_refresh():
    assert all(two_rounds(seed, stale) > 0.01 for seed in range(3))
