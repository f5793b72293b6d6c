"""Probability helpers and grouped acceptance."""

from __future__ import annotations

import pytest
import torch

from mmaccel.decoding import grouped_ratio, gumbel, one_hot, sample


def dists(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def test_sample_shape_and_distribution():
    p = torch.tensor([0.5, 0.0, 0.3, 0.2]).expand(4, 25_000, 4)
    tokens = sample(p, torch.Generator().manual_seed(0))
    assert tokens.shape == (4, 25_000)
    assert tokens.dtype == torch.long
    share = torch.bincount(tokens.flatten(), minlength=4) / tokens.numel()
    assert torch.allclose(share, p[0, 0], atol=0.006)


def test_sample_never_returns_an_impossible_token():
    p = torch.zeros(20_000, 50)
    p[:, 7] = 1e-30  # p / noise may underflow, and is still the only choice
    p[:, 31] = 1e-38
    tokens = sample(p, torch.Generator().manual_seed(0))
    assert set(tokens.tolist()) <= {7, 31}
    assert (sample(torch.tensor([[0.0, 0.0, 1e-45]]).expand(1000, -1)) == 2).all()


def test_a_zero_of_the_noise_source_does_not_make_a_rare_token_win(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda noise, generator=None: noise.fill_(1.0).mul_(MASK))
    assert sample(torch.tensor([1.0, 1e-30])).item() == 0


MASK = torch.tensor([1.0, 0.0])


def test_generator_decides_and_the_global_state_is_untouched():
    p, before = dists(8, 16), torch.get_rng_state()
    draws = [sample(p, torch.Generator().manual_seed(3)) for _ in range(2)]
    noise = [gumbel((5, 7), torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(*draws)
    assert torch.equal(*noise)
    assert torch.equal(before, torch.get_rng_state())


def test_gumbel_moments():
    noise = gumbel((200_000,), torch.Generator().manual_seed(0), "cpu")
    assert noise.dtype == torch.float32
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(1.6449, abs=0.03)


def test_one_hot():
    assert one_hot(torch.tensor([[2, 0]]), 3).tolist() == [[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]]


# ------------------------------------------------------------------------------------------------ grouped
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
