"""Latents that change their size in the middle of a run, as in pipelines that begin small."""

import diffusion_loop as loop
import pytest
import torch

import mmaccel
from mmaccel import video
from mmaccel.video import examples

METHODS = (
    video.HeterogeneousSteps(fraction=0.0),
    video.HeterogeneousSteps(0.6, interval=4, fraction=0.2),
    video.EasyCache(1e6, warmup=3),
    video.BlockCache(1e6, warmup=3),
    video.TeaCache(1e6, warmup=3),
    video.TokenCache(0.5),
    video.FirstBlockCache(1e6),
    video.TaylorSeer(),
    video.PyramidAttentionBroadcast(),
)
LARGER = 6  # the first step at the larger size


def grow(pipe, step, timestep, tensors):
    if step != LARGER - 1:
        return {}
    return {"latents": torch.nn.functional.interpolate(tensors["latents"], scale_factor=(1, 2, 1))}


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_method_begins_anew_and_says_so(method):
    pipe, arguments = examples.wan_pipeline()
    call = arguments(1, steps=16)
    plain = pipe(**call, callback_on_step_end=grow)[0]
    with mmaccel.accelerate(pipe, method) as fast:
        expected = fast(**call)[0]
        output = fast(**call, callback_on_step_end=grow)[0]
        report = fast.report
        assert report.engaged and any(f"in step {LARGER} latents of" in text for text in report.warnings)
        assert output.shape == plain.shape and float((output - plain).std() / plain.std()) < 0.5
        assert torch.equal(fast(**call)[0], expected) and not fast.report.warnings


def test_lists_that_get_shorter_are_told_by_their_length():
    """Z-Image takes a list with an entry for each row of the batch, and guidance may end before the run."""

    class Ending(loop.Loop):
        def _batch(self, state, t, call):
            is_over = (self.scheduler.step_index or 0) >= LARGER
            return self._pass(state, t, call(1)) if is_over else super()._batch(state, t, call)

    made, start, call = loop.pipeline("ZImageTransformer2DModel")
    with mmaccel.accelerate(Ending(made.transformer, made.scheduler), video.EasyCache(1e6, warmup=2)) as fast:
        fast(start, call, steps=12, batched=True)
        assert any(f"in step {LARGER} 2 latents became 1: nothing" in text for text in fast.report.warnings)


def test_the_second_of_two_transformers_begins_anew_too():
    """As in Wan 2.2, with latents that grow in its part of the run."""
    pipe, arguments = loop.two_experts(0.95)
    with mmaccel.accelerate(pipe, video.EasyCache(1e6, warmup=2)) as fast:
        fast(**arguments(1, steps=16), callback_on_step_end=grow)
        assert any(f"in step {LARGER} latents of" in text for text in fast.report.warnings)
        assert fast.report.details["computed"][2 * LARGER] == 1.0


def test_latents_that_grow_where_the_second_begins_are_no_surprise():
    """Nothing is kept for it yet, so that nothing has to start over."""
    pipe, arguments = loop.two_experts()
    pipe.scheduler.set_timesteps(16)
    before, after = pipe.scheduler.timesteps[LARGER - 1 : LARGER + 1].tolist()
    pipe.register_to_config(boundary_ratio=(before + after) / 2000)
    with mmaccel.accelerate(pipe, video.EasyCache(1e6, warmup=2)) as fast:
        fast(**arguments(1, steps=16), callback_on_step_end=grow)
        assert fast.report.engaged and not fast.report.warnings


def test_the_trace_is_that_of_the_last_size(tmp_path):
    pipe, arguments = examples.wan_pipeline()
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.5)) as fast:
        fast(**arguments(1, steps=16), callback_on_step_end=grow)
        trace = video.trace_of(fast)
    assert len(trace.shares()) == len(trace.levels) == 16 - LARGER
    assert len(fast.report.details["steps"]) == 16, "the report is of all"
    assert trace.heat_map().shape == (examples.FRAMES, 2 * examples.HEIGHT, examples.WIDTH)
    trace.save(tmp_path / "trace.png")


def test_a_warm_up_longer_than_what_is_left_ends_with_the_run():
    pipe, arguments = examples.wan_pipeline()
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(warmup=11)) as fast:
        fast(**arguments(1, steps=16), callback_on_step_end=grow)
        assert fast.report.details["steps"] == [1.0] * 16
