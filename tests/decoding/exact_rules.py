"""Plain-Python reference of the acceptance rules in exact fractions, written apart from the tensor code.

A model maps a history (tuple of tokens) to a tuple of fractions. A judge maps (draft, P, Q) to a list of
(accepted, probability, distribution of the next token). Loaded by the test files next to it.
"""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from functools import cache

ZERO, ONE = Fraction(0), Fraction(1)
P2, Q2 = (Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3))
P3 = (Fraction(5, 10), Fraction(3, 10), Fraction(2, 10))
Q3 = (Fraction(2, 10), Fraction(3, 10), Fraction(5, 10))


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


def sequence_probability(dist, sequence, start=0):
    probability = ONE
    for i in range(start, len(sequence)):
        probability *= dist(sequence[:i])[sequence[i]]
    return probability


def sequence_law(dist, vocabulary, length):
    sequences = itertools.product(range(vocabulary), repeat=length)
    return {s: sequence_probability(dist, s) for s in sequences}


def complete(emitted, target, vocabulary, length):
    """Law of the first `length` tokens when each emitted prefix goes on by the target."""
    law = {}
    for s in itertools.product(range(vocabulary), repeat=length):
        prefixes = (s[:n] for n in range(length + 1))
        law[s] = sum((emitted.get(x, 0) * sequence_probability(target, s, len(x)) for x in prefixes), ZERO)
    return law


def tv(left, right):
    return sum(abs(left.get(k, 0) - right.get(k, 0)) for k in left.keys() | right.keys()) / 2


def add(law, key, probability):
    if probability:
        law[key] = law.get(key, ZERO) + probability


def rest(p, q, scale=ONE):
    """norm[(scale p - q)+], p where that is all zero."""
    parts = [max(scale * a - b, ZERO) for a, b in zip(p, q, strict=True)]
    total = sum(parts)
    return tuple(x / total for x in parts) if total else tuple(p)


# ------------------------------------------------------------------------------------------------- chains
def chain_emitted(draft_law, target, judge):
    """Law of the emitted tokens of one round: {accepted draft + next token: probability}."""
    emitted = {}
    for draft, weight in draft_law.items():
        if not weight:
            continue
        for accepted, probability, after in judge(draft):
            for token, share in enumerate(after):
                add(emitted, (*draft[:accepted], token), weight * probability * share)
    return emitted


def expected_accepted(emitted):
    return sum(mass * (len(tokens) - 1) for tokens, mass in emitted.items())


def stop_law(successes, stop):
    """Probability of each number of accepted tokens from the trials' success probabilities."""
    count = len(successes)
    law = []
    for t in range(count + 1):
        if stop == "first_failure":
            probability = ONE if t == count else 1 - successes[t]
            for s in successes[:t]:
                probability *= s
        else:
            probability = ONE if t == 0 else successes[t - 1]
            for s in successes[t:]:
                probability *= 1 - s
        law.append(probability)
    return law


def token_judge(target, q, after=None):
    """Token ratio; `after(p, q)` replaces the residual in mutants."""

    def judge(draft):
        ratios = [
            min(ONE, target(draft[:i])[x] / q(draft[:i])[x]) if q(draft[:i])[x] else ZERO for i, x in enumerate(draft)
        ]
        law = stop_law(ratios, "first_failure")
        out = []
        for t, probability in enumerate(law):
            p = target(draft[:t])
            out.append((t, probability, p if t == len(draft) else (after or rest)(p, q(draft[:t]))))
        return out

    return judge


def block_judge(target, q, stop="last_success", plain_residual=False):
    """Block verification; the two options are the mutants of the notes."""

    def judge(draft):
        running = [ONE]
        for i, x in enumerate(draft):
            running.append(min(ONE, running[-1] * target(draft[:i])[x] / q(draft[:i])[x]))
        trials = []
        for i in range(1, len(draft)):
            p, d = target(draft[:i]), q(draft[:i])
            mass = sum(max(running[i] * a - b, ZERO) for a, b in zip(p, d, strict=True))
            slack = mass + 1 - running[i]
            trials.append(mass / slack if slack else ONE)
        trials.append(running[-1])
        out = []
        for t, probability in enumerate(stop_law(trials, stop)):
            p = target(draft[:t])
            scale = ONE if plain_residual else running[t]
            out.append((t, probability, p if t == len(draft) else rest(p, q(draft[:t]), scale)))
        return out

    return judge


# --------------------------------------------------------------------------------------- greedy multi-path
def path_rank(target, q, vocabulary, length):
    """All paths in lexicographic order of P/Q at each node, ascending (Q = 0 comes first: never drawn)."""

    def key(path):
        out = []
        for i, x in enumerate(path):
            p, d = target(path[:i])[x], q(path[:i])[x]
            out.append((p / d if d else Fraction(-1), x))
        return out

    return sorted(itertools.product(range(vocabulary), repeat=length), key=key)


def selected_law(target, q, vocabulary, length, paths):
    """Law of the greatest of `paths` independent drafts, by enumerating all of them."""
    order = {path: n for n, path in enumerate(path_rank(target, q, vocabulary, length))}
    law = {}
    drafts = [(x, w) for x, w in sequence_law(q, vocabulary, length).items() if w]
    for group in itertools.product(drafts, repeat=paths):
        weight = ONE
        for _, w in group:
            weight *= w
        add(law, max((x for x, _ in group), key=order.__getitem__), weight)
    return law


def conditional(law, vocabulary):
    """The model (history -> distribution) of a law over sequences: the skewed draft model."""

    @cache
    def dist(history):
        n = len(history)
        mass = [sum((w for s, w in law.items() if s[: n + 1] == (*history, v)), ZERO) for v in range(vocabulary)]
        total = sum(mass)
        return tuple(m / total for m in mass) if total else tuple(Fraction(1, vocabulary) for _ in mass)

    return dist


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


def sibling_orders(q, count):
    """All ordered draws of `count` tokens without replacement from q: [(tokens, probability)]."""
    out = []
    for tokens in itertools.permutations([v for v, m in enumerate(q) if m], count):
        probability, left = ONE, ONE
        for token in tokens:
            probability *= q[token] / left
            left -= q[token]
        out.append((tokens, probability))
    return out


def siblings_emitted(target, q, count):
    """One round of recursive rejection without replacement, with a bonus token after an accepted child."""
    emitted = {}
    for tokens, weight in sibling_orders(q, count):
        p, d = target(()), q
        for token in tokens:
            share = min(ONE, p[token] / d[token])
            for bonus, mass in enumerate(target((token,))):
                add(emitted, (token, bonus), weight * share * mass)
            weight *= 1 - share
            p = rest(p, d)
            cut = [ZERO if v == token else m for v, m in enumerate(d)]
            d = tuple(m / sum(cut) for m in cut) if sum(cut) else tuple(cut)
        for token, mass in enumerate(p):
            add(emitted, (token,), weight * mass)
    return emitted
