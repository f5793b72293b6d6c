"""The tensor code against the exact reference: enumerated without sampling, then `accept` by chi-square."""

from __future__ import annotations

import importlib.util
import itertools
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from scipy.stats import chi2

from mmaccel.decoding import (
    Block,
    Draft,
    SparseDistribution,
    TokenRatio,
    accept,
    block,
    one_hot_tree,
    residual,
    token_ratio,
    without_replacement,
)

_spec = importlib.util.spec_from_file_location("exact_rules", Path(__file__).with_name("exact_rules.py"))
exact = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(exact)

RULES = {"token_ratio": (token_ratio, exact.token_judge), "block": (block, exact.block_judge)}
SAMPLES = 100_000
TREE = ((1, 0, 0, 2, 1), (-1, 0, -1, 0, 2))


def rows(dist, histories):
    return torch.tensor([[float(x) for x in dist(h)] for h in histories])


def chain_tensors(p, q, drafts):
    """Target `[B, K + 1, V]` and draft `[B, K, V]` distributions of all given drafts."""
    length = len(drafts[0])
    target = torch.stack([rows(p, [d[:i] for i in range(length + 1)]) for d in drafts])
    return target, torch.stack([rows(q, [d[:i] for i in range(length)]) for d in drafts])


def enumerate_chain(judgement, p, q, drafts, weights):
    """Emitted law from a judgement's own tensors: stop probabilities times residuals."""
    emitted = {}
    padded = torch.cat([q, torch.zeros_like(q[:, :1])], 1)
    after = residual(p, padded, judgement.scale).double()
    for b, (draft, weight) in enumerate(zip(drafts, weights, strict=True)):
        law = exact.stop_law(judgement.accept_probability[b].double().tolist(), judgement.stop)
        for t, probability in enumerate(law):
            for token, share in enumerate(after[b, t].tolist()):
                exact.add(emitted, (*draft[:t], token), float(weight) * float(probability) * share)
    return emitted


def largest_gap(left, right):
    return max(abs(float(left.get(k, 0)) - float(right.get(k, 0))) for k in left.keys() | right.keys())


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("vocabulary", "length"), [(2, 1), (2, 4), (3, 3), (4, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_chain_tensors_equal_the_exact_rule(name, vocabulary, length, seed):
    rule, judge = RULES[name]
    p, q = exact.model(f"p{seed}", vocabulary, zeros=seed == 1), exact.model(f"q{seed}", vocabulary)
    law = exact.sequence_law(q, vocabulary, length)
    drafts = list(law)
    target, drafted = chain_tensors(p, q, drafts)
    judgement = rule(target, drafted, torch.tensor(drafts))
    emitted = enumerate_chain(judgement, target, drafted, drafts, law.values())
    assert largest_gap(emitted, exact.chain_emitted(law, p, judge(p, q))) < 1e-6
    whole = exact.complete(emitted, p, vocabulary, length + 1)
    assert largest_gap(whole, exact.sequence_law(p, vocabulary, length + 1)) < 1e-6


def test_block_where_target_and_draft_agree_accepts_everything():
    p = torch.tensor([[[0.3, 0.7], [0.6, 0.4], [0.5, 0.5]]])
    judgement = block(p, p[:, :2], torch.tensor([[1, 0]]))
    assert judgement.accept_probability[0, -1] == 1
    assert torch.isfinite(judgement.accept_probability).all()


def tree_law(judgement, tokens, parent, batch=0):
    """Emitted law from a tree judgement's own tensors."""
    accepted = judgement.accept_probability[batch].double().tolist()
    after = judgement.residual[batch].double().tolist()
    emitted = {}

    def visit(node, history, weight):
        for i in (i for i, up in enumerate(parent) if up == node):
            visit(i, (*history, tokens[i]), weight * accepted[i])
            weight *= 1 - accepted[i]
        for token, mass in enumerate(after[node + 1]):
            exact.add(emitted, (*history, token), weight * mass)

    visit(-1, (), 1.0)
    return emitted


def path_to(node, tokens, parent):
    return () if node < 0 else (*path_to(parent[node], tokens, parent), tokens[node])


@pytest.mark.parametrize(
    ("tokens", "parent"), [TREE, ((0, 1, 2), (-1, -1, -1)), ((2, 1, 0), (-1, 0, 1)), ((0, 0), (-1, -1))]
)
@pytest.mark.parametrize("seed", range(4))
def test_tree_tensors_equal_the_exact_rule(tokens, parent, seed):
    target = exact.model(f"t{seed}", 3, zeros=seed % 2 == 1)
    histories = [path_to(node, tokens, parent) for node in range(-1, len(tokens))]
    judgement = one_hot_tree(rows(target, histories).unsqueeze(0), torch.tensor([tokens]), parent)
    emitted = tree_law(judgement, tokens, parent)
    assert largest_gap(emitted, exact.one_hot_emitted(target, tokens, parent)) < 1e-6


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_sibling_tensors_equal_the_exact_rule(count, seed):
    target, q = exact.model(f"t{seed}", 3, zeros=seed == 1), exact.model(f"w{seed}", 3)(())
    emitted = {}
    for tokens, weight in exact.sibling_orders(q, count):
        p = rows(target, [(), *((t,) for t in tokens)]).unsqueeze(0)
        judgement = without_replacement(p, rows(lambda h: q, [()]), torch.tensor([tokens]))
        for key, mass in tree_law(judgement, tokens, (-1,) * count).items():
            exact.add(emitted, key, mass * float(weight))
    assert largest_gap(emitted, exact.siblings_emitted(target, q, count)) < 1e-6


@pytest.mark.parametrize(("count", "golden"), [(1, 0.7), (2, 0.82), (3, 1.0)])
def test_golden_siblings_from_tensors(count, golden):
    p, q = torch.tensor([[[0.5, 0.3, 0.2]]]), torch.tensor([[0.2, 0.3, 0.5]])
    total = 0.0
    for tokens, weight in exact.sibling_orders(exact.Q3, count):
        passed = without_replacement(p, q, torch.tensor([tokens])).accept_probability[0].double()
        total += float(weight) * float(1 - (1 - passed).prod())
    assert total == pytest.approx(golden, abs=1e-6)


@pytest.mark.parametrize(("children", "golden"), [((0,), 0.5), ((0, 1), 0.8), ((1, 2, 0), 1.0)])
def test_golden_one_hot_children_from_tensors(children, golden):
    p = torch.tensor([[[0.5, 0.3, 0.2]]])
    passed = one_hot_tree(p, torch.tensor([children]), (-1,) * len(children)).accept_probability[0].double()
    assert float(1 - (1 - passed).prod()) == pytest.approx(golden, abs=1e-6)


# ------------------------------------------------------------------------------------- accept, end to end
def p_value(emitted, expected):
    """Chi-square p-value of emitted tokens `[B, K + 1]` (padded with -1) against an exact law."""
    unique, counts = torch.unique(emitted, dim=0, return_counts=True)
    seen = {tuple(t for t in row if t >= 0): n for row, n in zip(unique.tolist(), counts.tolist(), strict=True)}
    if not seen.keys() <= {k for k, m in expected.items() if m}:
        return 0.0  # emitted something impossible
    total = emitted.shape[0]
    cells = [(seen.get(k, 0), float(m) * total) for k, m in expected.items() if m]
    small = [c for c in cells if c[1] < 10]
    cells = [c for c in cells if c[1] >= 10]
    if sum(e for _, e in small) >= 10:
        cells.append((sum(o for o, _ in small), sum(e for _, e in small)))
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def table(dist, vocabulary, depth):
    """Rows of a model for all histories of one depth, indexed by the history read as a number."""
    return rows(dist, itertools.product(range(vocabulary), repeat=depth))


def lookup(dist, tokens, vocabulary):
    """Distributions `[B, K + 1, V]` along each draft of `tokens [B, K]`."""
    index, out = torch.zeros(len(tokens), dtype=torch.long), []
    for depth in range(tokens.shape[1] + 1):
        out.append(table(dist, vocabulary, depth)[index])
        if depth < tokens.shape[1]:
            index = index * vocabulary + tokens[:, depth]
    return torch.stack(out, 1)


def drawn_chain(q, vocabulary, length, generator, sparse=False):
    tokens = torch.empty((SAMPLES, 0), dtype=torch.long)
    for _ in range(length):
        last = lookup(q, tokens, vocabulary)[:, -1:]
        tokens = torch.cat([tokens, Draft.draw(last, generator).tokens], 1)
    dense = lookup(q, tokens, vocabulary)[:, :length]
    if not sparse:
        return Draft.sampled(tokens, dense)
    ids = torch.arange(vocabulary).flip(0).expand(dense.shape)
    return Draft.sampled(tokens, SparseDistribution(ids, dense.flip(-1)))


@pytest.mark.parametrize(("name", "rule"), [("token_ratio", TokenRatio()), ("block", Block()), ("block", None)])
@pytest.mark.parametrize(("vocabulary", "length", "seed"), [(3, 3, 3), (4, 2, 0)])
def test_accept_on_chains(name, rule, vocabulary, length, seed):
    p, q = exact.model(f"p{seed}", vocabulary), exact.model(f"q{seed}", vocabulary)
    generator = torch.Generator().manual_seed(seed)
    draft = drawn_chain(q, vocabulary, length, generator, sparse=rule is None)
    logits = lookup(p, draft.tokens, vocabulary).log()
    emitted = accept(logits, draft, rule=rule, generator=generator).tokens(draft)
    drafts = exact.sequence_law(q, vocabulary, length)
    judge = RULES[name][1]
    assert p_value(emitted, exact.chain_emitted(drafts, p, judge(p, q))) > 1e-3
    wrong = exact.token_judge(p, q, after=lambda a, b: a)
    if name == "block":
        wrong = exact.block_judge(p, q, stop="first_failure")
    assert p_value(emitted, exact.chain_emitted(drafts, p, wrong)) < 1e-6


def test_the_sample_size_sees_the_smallest_mutant():
    """100,000 samples tell block verification from its plain-residual mutant (TV 0.004)."""
    p, q = exact.model("p0", 4), exact.model("q0", 4)
    generator = torch.Generator().manual_seed(5)
    draft = drawn_chain(q, 4, 2, generator)
    emitted = accept(lookup(p, draft.tokens, 4).log(), draft, generator=generator).tokens(draft)
    wrong = exact.block_judge(p, q, plain_residual=True)
    assert p_value(emitted, exact.chain_emitted(exact.sequence_law(q, 4, 2), p, wrong)) < 1e-3


@pytest.mark.parametrize(("tokens", "parent"), [TREE, ((0, 1), (-1, -1)), ((2, 1, 0), (-1, 0, 1))])
@pytest.mark.parametrize("seed", [2, 3])
def test_accept_on_trees(tokens, parent, seed):
    target = exact.model(f"t{seed}", 3, zeros=seed == 3)
    histories = [path_to(node, tokens, parent) for node in range(-1, len(tokens))]
    logits = rows(target, histories).log().expand(SAMPLES, -1, -1)
    draft = Draft.deterministic(torch.tensor([tokens]).expand(SAMPLES, -1), parent)
    generator = torch.Generator().manual_seed(seed)
    verdict = accept(logits, draft, generator=generator)
    assert p_value(verdict.tokens(draft), exact.one_hot_emitted(target, tokens, parent)) > 1e-3


@pytest.mark.parametrize("count", [1, 2, 3])
def test_accept_on_siblings(count):
    target, q = exact.model("t5", 3), exact.model("w5", 3)(())
    generator = torch.Generator().manual_seed(count)
    q_rows = rows(lambda h: q, [()]).expand(SAMPLES, -1)
    # The race without its winners so far is a draw without replacement.
    race = q_rows / torch.empty(SAMPLES, 3).exponential_(generator=generator)
    draft = Draft.without_replacement(race.argsort(1, descending=True)[:, :count], q_rows)
    root = rows(target, [()]).expand(SAMPLES, -1).unsqueeze(1)
    logits = torch.cat([root, table(target, 3, 1)[draft.tokens]], 1).log()
    emitted = accept(logits, draft, generator=generator).tokens(draft)
    assert p_value(emitted, exact.siblings_emitted(target, q, count)) > 1e-3
    # With the root's logits alone the accepted child is the last token, and the first token has the same law.
    verdict = accept(root.log(), draft, generator=generator)
    assert ((verdict.next_token == -1) == (verdict.accepted == 1)).all()
    first = verdict.tokens(draft)[:, :1]
    assert p_value(first, {(v,): Fraction(m) for v, m in enumerate(target(()))}) > 1e-3


def test_plain_decoding_is_a_draft_of_nothing():
    logits = torch.tensor([0.5, 0.3, 0.2]).log().expand(SAMPLES, 1, 3)
    draft = Draft.deterministic(torch.empty((SAMPLES, 0), dtype=torch.long))
    verdict = accept(logits, draft, generator=torch.Generator().manual_seed(0))
    assert verdict.path.shape == (SAMPLES, 0)
    assert p_value(verdict.tokens(draft), {(v,): m for v, m in enumerate(exact.P3)}) > 1e-3
