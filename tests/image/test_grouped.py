"""Acceptance of a draft together with its neighbours, against a plain loop."""

import pytest
import torch

from mmaccel.image.decoding.grouped import grouped_ratio


def dists(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def naive_grouped(p, q, token, group_size, delta, distance, embeddings):
    order = sorted(range(len(p)), key=lambda v: -p[v])
    place = order.index(token)
    top = bottom = 0.0
    for other in range(max(0, place - group_size // 2), min(len(p), place + group_size // 2 + 1)):
        v = order[other]
        near = embeddings is None or (embeddings[v] - embeddings[token]).square().sum() < distance
        if v == token or (abs(p[v] - p[token]) < delta and near):
            top, bottom = top + p[v], bottom + q[v]
    return min(1.0, float(top / bottom))


@pytest.mark.parametrize("group_size", [1, 2, 3, 5, 8, 12, 40])
@pytest.mark.parametrize("delta", [0.0, 0.03, 0.5])
@pytest.mark.parametrize("with_embeddings", [False, True])
def test_grouped_equals_a_naive_loop_at_every_rank(group_size, delta, with_embeddings):
    p, q = dists(12).square(), dists(12, seed=1).square()
    p, q = p / p.sum(), q / q.sum()
    embeddings = dists(12, 3, seed=2) * 3 if with_embeddings else None
    tokens = torch.arange(12)
    fast = grouped_ratio(
        p.expand(12, -1),
        q.expand(12, -1),
        tokens,
        group_size=group_size,
        delta=delta,
        distance=0.2,
        embeddings=embeddings,
    )
    slow = [naive_grouped(p, q, d, group_size, delta, 0.2, embeddings) for d in range(12)]
    assert fast.tolist() == pytest.approx(slow, abs=1e-6)


def ratio(p, q, tokens):
    """The test of speculative sampling, min(1, p / q)."""
    index = tokens.unsqueeze(-1)
    return (p.gather(-1, index) / q.gather(-1, index)).squeeze(-1).clamp(max=1.0)


def test_grouped_of_one_is_the_token_ratio():
    p, q = dists(3, 5, 20), dists(3, 5, 20, seed=1)
    tokens = torch.randint(0, 20, (3, 5), generator=torch.Generator().manual_seed(0))
    one = grouped_ratio(p, q, tokens, group_size=1, delta=0.15, distance=0.5, embeddings=dists(20, 4))
    assert torch.equal(one, ratio(p, q, tokens))


def test_grouped_extremes():
    p, q, tokens = dists(4, 9), dists(4, 9, seed=1), torch.tensor([0, 3, 5, 8])
    everything = grouped_ratio(p, q, tokens, group_size=99, delta=2.0, distance=1.0)
    assert everything.tolist() == pytest.approx([1.0] * 4)
    far = torch.arange(9.0).unsqueeze(1) * 10
    alone = grouped_ratio(p, q, tokens, group_size=9, delta=2.0, distance=0.5, embeddings=far)
    assert torch.equal(alone, ratio(p, q, tokens))
