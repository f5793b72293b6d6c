"""The rivals of the video benchmark run on a small Wan pipeline, and leave nothing behind."""

import importlib.util
from functools import partial

import pytest
import torch

from mmaccel.testing.contract import snapshot
from mmaccel.video import examples
from mmaccel.video.bench import packages, rivals, spectrum
from mmaccel.video.bench.cases import VideoCase
from mmaccel.video.bench.sampling import Sampling

STEPS = 12


@pytest.fixture
def wan():
    pipe, arguments = examples.wan_pipeline()
    return pipe, arguments(1, steps=STEPS)


def counted(pipe, setup, call):
    """The output with a rival on the pipeline, and how often a middle block ran for each guidance branch."""
    passes = []
    hook = pipe.transformer.blocks[-1].attn1.register_forward_hook(lambda *_: passes.append(1))
    try:
        with setup(pipe) as target:
            return target(**call)[0], len(passes)
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("setup", "least", "most"),
    [
        (partial(packages.sea_cache, 1e6, longest=2), 4, 8),
        (partial(packages.sea_cache, 0.0), STEPS, STEPS),
        (partial(spectrum.spectrum, 1.0), 7, 7),
    ],
    ids=("SeaCache", "SeaCache at 0", "Spectrum"),
)
def test_a_rival_saves_and_leaves_nothing_behind(wan, setup, least, most):
    pipe, call = wan
    expected, whole = counted(pipe, lambda pipe: Bare(pipe), call)
    before = snapshot(pipe)
    output, passes = counted(pipe, setup, call)
    steps = passes * STEPS / whole
    assert least <= steps <= most and torch.equal(output, expected) == (steps == STEPS)
    assert snapshot(pipe) == before and torch.equal(pipe(**call)[0], expected)


class Bare:
    """The pipeline itself."""

    def __init__(self, pipe):
        self.pipe = pipe

    def __enter__(self):
        return self.pipe

    def __exit__(self, *_):
        pass


needs_cache_dit = pytest.mark.skipif(importlib.util.find_spec("cache_dit") is None, reason="cache-dit is not installed")


@needs_cache_dit
@pytest.mark.parametrize("calibrator", ("TaylorSeer", "DMD"))
def test_cache_dit_computes_our_steps(wan, calibrator):
    pipe, call = wan
    expected, whole = counted(pipe, lambda pipe: Bare(pipe), call)
    case = rivals.masked(Sampling(STEPS), 0.5, calibrator)
    output, passes = counted(pipe, case.make(1.0), call)
    assert passes == whole / 2 and not torch.equal(output, expected)
    assert case.told == "6 full steps" and torch.equal(pipe(**call)[0], expected)


@needs_cache_dit
def test_cache_dit_does_not_wait_for_processes_with_a_transformer_of_their_own(wan, monkeypatch):
    pipe, call = wan
    setup = partial(packages.dynamic, 0.3)
    alone, passes = counted(pipe, setup, call)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: pytest.fail("it asked another process"))
    together, as_many = counted(pipe, setup, call)
    assert torch.equal(together, alone) and as_many == passes


def test_a_rival_is_missing_only_with_its_package():
    assert VideoCase("x", "rival", lambda x: x, package="package_that_nobody_has").is_missing
    assert not VideoCase("x", "rival", lambda x: x, package="torch").is_missing
    assert not rivals.spectral(0.5).is_missing


@pytest.mark.parametrize("budget", rivals.GROWTH)
def test_spectrum_takes_about_its_budget(budget):
    computed = spectrum.full_steps(40, rivals.GROWTH[budget])
    assert len(computed) / 40 == pytest.approx(budget, abs=0.05) and computed[:5] == [0, 1, 2, 3, 4]


def test_spectrum_forecasts_a_line(monkeypatch):
    outputs = {k: torch.tensor([2.0 * k]) for k in range(10)}
    assert 18 < spectrum.forecast(outputs, 12, 20).item() < 24, "the ridge pulls it towards zero"
    monkeypatch.setattr(spectrum, "RIDGE", 1e-9)
    assert spectrum.forecast(outputs, 12, 20).item() == pytest.approx(24, abs=0.01)
    assert spectrum.chebyshev([0.5])[0].tolist() == pytest.approx([1, 0.5, -0.5, -1, -0.5])


def test_our_steps_are_those_of_the_method():
    for sampler in ("Euler", "UniPC"):
        ours = rivals.our_steps(Sampling(40, sampler), 0.5)
        assert sum(ours) == 20 and all(ours[:8]) and not all(ours[:10])
