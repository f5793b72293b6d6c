"""Plain-Python reference of the acceptance rules in exact fractions, written apart from the tensor code.

A model maps a history (tuple of tokens) to a tuple of fractions. A judge maps (draft, P, Q) to a list of
(accepted, probability, distribution of the next token).
"""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction
from functools import cache

ZERO, ONE = Fraction(0), Fraction(1)
P2, Q2 = (Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3))
P3 = (Fraction(5, 10), Fraction(3, 10), Fraction(2, 10))


def constant(dist):
    """A model without memory."""
    return lambda history: dist


def model(seed, vocabulary, zeros=False):
    """A random model that depends on the whole history; with `zeros` some tokens are impossible."""

    @cache
    def dist(history):
        rng = random.Random(f"{seed}/{history}")
        weights = [rng.randint(0 if zeros else 1, 6) for _ in range(vocabulary)]
        if not any(weights):
            weights[rng.randrange(vocabulary)] = 1
        return tuple(Fraction(w, sum(weights)) for w in weights)

    return dist


def sequence_distribution(dist, vocabulary, length):
    sequences = itertools.product(range(vocabulary), repeat=length)
    return {s: math.prod((dist(s[:i])[token] for i, token in enumerate(s)), start=ONE) for s in sequences}


def tv(left, right):
    return sum(abs(left.get(k, 0) - right.get(k, 0)) for k in left.keys() | right.keys()) / 2


def add(distribution, key, probability):
    if probability:
        distribution[key] = distribution.get(key, ZERO) + probability


def rest(p, q):
    """norm[(p - q)+], p where that is all zero."""
    parts = [max(a - b, ZERO) for a, b in zip(p, q, strict=True)]
    total = sum(parts)
    return tuple(x / total for x in parts) if total else tuple(p)


# ------------------------------------------------------------------------------------------------- chains
def chain_emitted(drafts, target, judge):
    """Distribution of the emitted tokens of one round: {accepted draft + next token: probability}."""
    emitted = {}
    for draft, weight in drafts.items():
        if not weight:
            continue
        for accepted, probability, after in judge(draft):
            for token, share in enumerate(after):
                add(emitted, (*draft[:accepted], token), weight * probability * share)
    return emitted


def stop_distribution(successes):
    """Probability of each number of successes before the first failure."""
    probabilities, passed = [], ONE
    for success in successes:
        probabilities.append(passed * (1 - success))
        passed *= success
    return [*probabilities, passed]


def token_judge(target, q, after=None):
    """Token ratio; `after(p, q)` replaces the residual in mutants."""

    def judge(draft):
        ratios = [
            min(ONE, target(draft[:i])[x] / q(draft[:i])[x]) if q(draft[:i])[x] else ZERO for i, x in enumerate(draft)
        ]
        stops = stop_distribution(ratios)
        out = []
        for t, probability in enumerate(stops):
            p = target(draft[:t])
            out.append((t, probability, p if t == len(draft) else (after or rest)(p, q(draft[:t]))))
        return out

    return judge


# --------------------------------------------------------------------------------------------------- trees
def one_hot_emitted(target, tokens, parent):
    """One round on a tree of deterministic guesses."""
    emitted = {}

    def visit(node, history, weight):
        left = list(target(history))
        for i in (i for i, up in enumerate(parent) if up == node):
            total = sum(left)
            if not weight or not total:
                return
            share = left[tokens[i]] / total
            visit(i, (*history, tokens[i]), weight * share)
            weight *= 1 - share
            left[tokens[i]] = ZERO
        for token, mass in enumerate(left):
            if weight:
                add(emitted, (*history, token), weight * mass / sum(left))

    visit(-1, (), ONE)
    return emitted
