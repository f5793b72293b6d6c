"""Steps solved from plain runs."""

import itertools

import numpy as np
import pytest
import torch

import mmaccel
from mmaccel.errors import SettingError
from mmaccel.stepping.forecast import Velocities
from mmaccel.video import HeterogeneousSteps, best_steps, calibrate_steps, examples
from mmaccel.video.heterogeneous.step_solver import record_velocities


def error_of(true, levels, computed):
    """What the solver minimises, by the method's own moves along known velocities."""
    kept, total = Velocities(0.5), 0.0
    for last, k in zip((None, *computed), computed, strict=False):
        kept.step(levels[k], true[k][None, None])
        skipped = [] if last is None else range(last + 1, k)
        moves = ((levels[j + 1] - levels[j]) * (kept.on_line(levels[j])[0, 0] - true[j]) for j in skipped)
        total += float(sum(moves, torch.zeros(true.shape[1], dtype=true.dtype)).norm())
    return total


@pytest.mark.parametrize("count", (2, 3, 4, 6))
def test_no_other_choice_is_better(count):
    generator = torch.Generator().manual_seed(count)
    velocities = torch.randn(8, 5, generator=generator, dtype=torch.float64).cumsum(0)
    levels = [1.0, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.1, 0.0]
    found = best_steps((velocities @ velocities.T).numpy(), levels, count)
    assert len(found) == count and found[0] == 0 and found[-1] == 7
    every = [(0, *rest, 7) for rest in itertools.combinations(range(1, 7), count - 2)]
    least = min(error_of(velocities, levels, computed) for computed in every)
    assert error_of(velocities, levels, found) == pytest.approx(least, rel=1e-4)


def test_all_steps_and_too_few():
    assert best_steps(np.eye(4), [4, 3, 2, 1, 0], 9) == (0, 1, 2, 3)
    with pytest.raises(SettingError, match="at least 2"):
        best_steps(np.eye(4), [4, 3, 2, 1, 0], 1)


def test_calibrated_steps_run_and_leave_no_trace():
    pipe, arguments = examples.wan_pipeline()
    call = arguments(1, steps=20)
    plain = pipe(**call)[0]
    before = mmaccel.testing.contract.snapshot(pipe)
    method = calibrate_steps(pipe, budget=0.4, **call)
    assert (
        isinstance(method, HeterogeneousSteps)
        and len(method.steps) == 8
        and method.steps[0] == 0
        and method.steps[-1] == 19
    )
    assert mmaccel.testing.contract.snapshot(pipe) == before
    with mmaccel.accelerate(pipe, method) as fast:
        out = fast(**call)[0]
        assert [k for k, share in enumerate(fast.report.details["steps"]) if share == 1] == list(method.steps)
        with pytest.raises(SettingError, match="calibrate with 10"):
            fast(**{**call, "num_inference_steps": 10})
    with mmaccel.accelerate(pipe, HeterogeneousSteps(0.4, fraction=0)) as fast:
        spread = fast(**call)[0]
    assert (out - plain).square().mean() < 1.5 * (spread - plain).square().mean()


def test_velocities_are_those_after_guidance():
    pipe, arguments = examples.wan_pipeline()
    velocities, levels = record_velocities(pipe, None, arguments(1, steps=6))[0]
    assert velocities.shape[0] == 6 and len(levels) == 7 and levels[-1] == 0
    other, _ = record_velocities(pipe, None, arguments(1, steps=6, guidance_scale=1.0))[0]
    assert not torch.allclose(velocities[0], other[0])


def test_steps_are_checked():
    for steps in ((1,), (3, 2), (0, 0, 1), (-1, 2)):
        with pytest.raises(SettingError, match="steps"):
            HeterogeneousSteps(steps=steps)
    assert HeterogeneousSteps.from_settings({"steps": [0, 1, 5]}).steps == (0, 1, 5)
