"""The recipe of learned shares: its dynamic program, what it measures, and which way it learns."""

import itertools

import diffusion_loop as loop
import numpy as np
import pytest
import torch

from mmaccel import video
from mmaccel.demos.video import learned_shares
from mmaccel.demos.video.share_solver import PARTS, StaleTokens, best_shares, record_errors


@pytest.mark.parametrize("total", range(8))
def test_no_other_shares_are_better(total):
    """Against every way to hand the parts out, also where errors do not fall with the parts."""
    for seed, (layers, grid) in itertools.product(range(5), ((1, 4), (2, 5), (4, 3))):
        errors = np.random.default_rng(seed).random((layers, grid))
        if seed % 2:
            errors = np.sort(errors)[:, ::-1]
        found = best_shares(errors, total)
        every = [s for s in itertools.product(range(grid), repeat=layers) if sum(s) <= total]
        least = min(sum(errors[np.arange(layers), list(s)]) for s in every)
        assert len(found) == layers and sum(found) <= total
        assert sum(errors[np.arange(layers), list(found)]) == pytest.approx(least)


def test_tokens_that_are_left_grow_old():
    """Of eight, one is recomputed in each step: the one whose input changed most since it was."""
    steps = [loop.noise(1, 8, 3, seed=seed) for seed in range(6)]
    layer = StaleTokens(steps[0], 2 * steps[0])
    kept = steps[0].clone()
    for now in steps[1:]:
        chosen = int((now - kept).square().sum((0, 2)).argmax())
        kept[:, chosen] = now[:, chosen]
        assert layer.miss(now, 2 * now, 1) == pytest.approx(float((2 * (now - kept)).square().sum()), rel=1e-5)
    for parts, left in ((PARTS, 0.0), (0, float((2 * (steps[5] - steps[0])).square().sum()))):
        layer = StaleTokens(steps[0], 2 * steps[0])
        assert [layer.miss(now, 2 * now, parts) for now in steps[1:]][-1] == pytest.approx(left, rel=1e-5)


def test_errors_of_all_layers_and_branches_are_recorded():
    pipe, start, call = loop.pipeline("WanTransformer3DModel")
    plain = pipe(start, call)
    method = video.TokenCache(0.5, 3, warmup=1, cooldown=0)
    errors = record_errors(pipe, method, (), {"start": start, "call": call, "steps": 6})
    assert errors.shape == (3, PARTS + 1) and (errors[:, 0] > errors[:, -1]).all() and not errors[:, -1].any()
    assert torch.equal(pipe(start, call), plain) and "forward" not in vars(pipe.transformer)


def test_learning_begins_at_equal_shares_and_goes_where_less_is_missed(monkeypatch):
    """Here what matters is the share of the first layer alone, which its own error says nothing of."""
    errors = np.linspace(1, 0, PARTS + 1) ** 2 * np.array([[1.0], [3.0], [9.0]])
    monkeypatch.setattr(learned_shares, "misses", lambda *given: lambda shares, number: -10 * shares[0])
    training, method = type("Training", (), {"prompts": ["one", "two"], "steps": 40}), video.TokenCache(0.5)
    begun = learned_shares.fractions(
        errors * np.exp(learned_shares.equalizing(errors, method, 40))[:, None], method, 40
    )
    assert begun == (0.25, 0.25, 0.25)
    log, shares = learned_shares.learn(training, method, errors, rounds=40, seed=0)
    assert len(log) == 40 and shares[0] > 0.5 and sum(shares) <= 3 * method.share(40)
