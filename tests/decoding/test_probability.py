"""Probability helpers."""

from __future__ import annotations

import pytest
import torch

from mmaccel.decoding import gumbel, one_hot, sample


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
