"""Every cache across steps on ten families: it engages or says why not, and leaves no trace."""

import diffusion_loop as loop
import pytest
import torch

import mmaccel
from mmaccel import video
from mmaccel.errors import UnsupportedTargetError
from mmaccel.testing.contract import snapshot

METHODS = (
    video.EasyCache(threshold=1e6, warmup=2),
    video.TeaCache(threshold=1e6),
    video.BlockCache(threshold=1e6, warmup=1),
    video.FirstBlockCache(threshold=1e6),
    video.TaylorSeer(interval=3, warmup=2),
    video.MagCache(ratios=(1.0, 1.0), warmup=1),
    video.PyramidAttentionBroadcast(timesteps=(0, 1000)),
    video.FasterCache(timesteps=(-1, 1000)),
)


def works(pipe, method):
    """Whether diffusers' hooks find what they need."""
    name = type(pipe.transformer).__name__
    return name not in getattr(method, "unfit", {}) and not (
        hasattr(method, "lacks") and method.lacks(pipe.transformer)
    )


@pytest.mark.parametrize("name", loop.BUILD)
def test_every_cache(name):
    pipe, start, call = loop.pipeline(name)
    plain = {batched: pipe(start, call, batched=batched, return_dict=batched) for batched in (False, True)}
    before = snapshot(pipe)
    assert plain[True].isfinite().all()
    torch.testing.assert_close(plain[False], plain[True], rtol=1e-3, atol=1e-4)
    for method in METHODS:
        if not works(pipe, method):
            with pytest.raises(UnsupportedTargetError, match=f"does not work on {name}: .* Use video"):
                mmaccel.accelerate(pipe, method)
            continue
        with mmaccel.accelerate(pipe, method) as fast:
            for batched in (False, True):
                out = fast(start, call, batched=batched, return_dict=batched)
                assert fast.report.engaged and fast.report.peak_extra_bytes > 0, method
                assert out.isfinite().all() and not torch.equal(out, plain[batched]), method
        assert snapshot(pipe) == before, method
    assert torch.equal(pipe(start, call, batched=True, return_dict=True), plain[True])


@pytest.mark.parametrize("name", loop.BUILD)
def test_what_is_reused_is_what_would_be_computed(name):
    """Where latents and timestep stand still, every step's prediction is the first one's."""
    pipe, start, call = loop.pipeline(name)
    expected = pipe(start, call, still=True)
    for method in METHODS[3:]:  # EasyCache wants its input to move, and the two behind it run on every class
        if works(pipe, method):
            with mmaccel.accelerate(pipe, method) as fast:
                out = fast(start, call, still=True)
                assert fast.report.engaged, method
            torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-4, msg=lambda text, m=method: f"{m}: {text}")


@pytest.mark.parametrize("name", ("LTX2VideoTransformer3DModel", "SD3Transformer2DModel", "ZImageTransformer2DModel"))
@pytest.mark.parametrize("method", (METHODS[3], METHODS[5], METHODS[7]), ids=lambda method: type(method).__name__)
def test_what_does_not_fit_is_refused_for_a_reason(name, method, monkeypatch):
    """Where this fails, diffusers has mended it, and the family can come off the list."""
    if name not in method.unfit:
        pytest.skip("works")
    pipe, start, call = loop.pipeline(name)
    monkeypatch.setattr(type(method), "unfit", {})
    with mmaccel.accelerate(pipe, method) as fast:
        try:
            fast(start, call)
        except (KeyError, TypeError, ValueError):
            return
        assert not fast.report.engaged
