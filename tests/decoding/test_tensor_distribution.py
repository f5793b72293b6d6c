"""The kernels and couplings of sampled drafts against the exact token ratio: enumerated, then by chi-square."""

from __future__ import annotations

import itertools

import exact_rules as exact
import pytest
import torch
from scipy.stats import chi2

from mmaccel.decoding import sample
from mmaccel.image.decoding.coupling import Coupling
from mmaccel.kernels import accept_length

SAMPLES = 100_000


def rows(dist, histories):
    return torch.tensor([[float(x) for x in dist(h)] for h in histories])


def chain_tensors(p, q, drafts):
    """Target `[B, K + 1, V]` and draft `[B, K, V]` distributions of all given drafts."""
    length = len(drafts[0])
    target = torch.stack([rows(p, [d[:i] for i in range(length + 1)]) for d in drafts])
    return target, torch.stack([rows(q, [d[:i] for i in range(length)]) for d in drafts])


@pytest.mark.parametrize(("vocabulary", "length"), [(2, 1), (2, 4), (3, 3), (4, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_acceptance_is_that_of_the_exact_rule(vocabulary, length, seed):
    """Every draft, with uniform numbers just below and just above the exact probability of each token."""
    p, q = exact.model(f"p{seed}", vocabulary, zeros=seed == 1), exact.model(f"q{seed}", vocabulary)
    drafts = list(exact.sequence_distribution(q, vocabulary, length))
    target, drafted = chain_tensors(p, q, drafts)
    exactly = [[min(exact.ONE, p(d[:i])[x] / q(d[:i])[x]) for i, x in enumerate(d)] for d in drafts]
    chance, tokens = torch.tensor([[float(x) for x in row] for row in exactly]), torch.tensor(drafts)
    possible = (chance > 0).int().cumprod(1).sum(1, dtype=torch.int32)
    assert torch.equal(accept_length(target, drafted, tokens, (chance - 1e-5).clamp_min(0)), possible)
    for place in range(length):
        above = torch.where(torch.arange(length) == place, (chance + 1e-5).clamp_max(1 - 1e-6), 0.0)
        kept = accept_length(target, drafted, tokens, above)
        stopped = chance[:, place] < 1
        assert bool((kept[stopped] <= place).all()) and torch.equal(kept[~stopped], possible[~stopped])


# ------------------------------------------------------------------------------------ couplings, end to end
def p_value(emitted, expected):
    """Chi-square p-value of emitted tokens `[B, K + 1]` (padded with -1) against an exact distribution."""
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


def drawn_chain(q, vocabulary, length, generator):
    tokens = torch.empty((SAMPLES, 0), dtype=torch.long)
    for _ in range(length):
        tokens = torch.cat([tokens, sample(lookup(q, tokens, vocabulary)[:, -1:], generator)], 1)
    return tokens


def emitted_by(name, p, q, vocabulary, length, seed):
    """What a coupling makes final of sampled drafts, `[B, K + 1]`, padded with -1."""
    generator = torch.Generator().manual_seed(seed)
    drafts = drawn_chain(q, vocabulary, length, generator)
    drafted = torch.nn.functional.pad(lookup(q, drafts, vocabulary)[:, :length], (0, 0, 0, 1))
    noise = -torch.empty(drafted.shape).exponential_(generator=generator).log() if name == "gumbel" else None
    tokens, kept = Coupling(name, generator)(lookup(p, drafts, vocabulary), drafted, drafts, noise)
    return tokens.where(torch.arange(length + 1) <= kept[:, None], -1), kept


@pytest.mark.parametrize("name", ["independent", "maximal", "gumbel"])
@pytest.mark.parametrize(("vocabulary", "length", "seed"), [(3, 3, 3), (4, 2, 0)])
def test_final_tokens_are_those_of_the_token_ratio(name, vocabulary, length, seed):
    p, q = exact.model(f"p{seed}", vocabulary), exact.model(f"q{seed}", vocabulary)
    emitted, _ = emitted_by(name, p, q, vocabulary, length, seed)
    drafts = exact.sequence_distribution(q, vocabulary, length)
    assert p_value(emitted, exact.chain_emitted(drafts, p, exact.token_judge(p, q))) > 1e-3
    wrong = exact.token_judge(p, q, after=lambda a, b: a)
    assert p_value(emitted, exact.chain_emitted(drafts, p, wrong)) < 1e-6


@pytest.mark.parametrize("name", ["independent", "maximal"])
def test_golden_expected_accepted(name):
    """P = (1/3, 2/3), Q = (2/3, 1/3), two drafts: 10/9 are accepted."""
    _, kept = emitted_by(name, exact.constant(exact.P2), exact.constant(exact.Q2), 2, 2, 1)
    assert kept.double().mean().item() == pytest.approx(10 / 9, abs=0.01)


def test_redrawn_tokens_are_distributed_as_the_target():
    """Behind the first failure too, where the maximal coupling keeps or replaces each draft by itself."""
    p = torch.tensor([0.5, 0.3, 0.2]).expand(SAMPLES, 3, 3)
    q = torch.tensor([0.2, 0.3, 0.5]).expand(SAMPLES, 3, 3).clone()
    q[:, -1] = 0
    generator = torch.Generator().manual_seed(0)
    drafts = sample(q[:, :2], generator)
    tokens, _ = Coupling("maximal", generator)(p, q, drafts)
    for place in range(3):
        share = torch.bincount(tokens[:, place], minlength=3) / SAMPLES
        assert torch.allclose(share, p[0, 0], atol=0.006)
    assert (tokens[:, :2] == drafts).float().mean().item() == pytest.approx(0.7, abs=0.01)  # sum of min(p, q)


def test_plain_decoding_is_a_window_of_one():
    p = torch.tensor([0.5, 0.3, 0.2]).expand(SAMPLES, 1, 3)
    nothing = torch.empty((SAMPLES, 0), dtype=torch.long)
    tokens, kept = Coupling("maximal", torch.Generator().manual_seed(0))(p, torch.zeros_like(p), nothing)
    assert not kept.any()
    assert p_value(tokens, {(v,): m for v, m in enumerate(exact.P3)}) > 1e-3
