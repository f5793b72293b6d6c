"""Steps solved from plain runs."""

import pytest
import torch

import mmaccel
from mmaccel.errors import SettingError
from mmaccel.video import HeterogeneousSteps, calibrate_steps, examples
from mmaccel.video.heterogeneous.step_solver import record_velocities


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
