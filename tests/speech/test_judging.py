"""Frames of several streams that are judged in one pass have the likelihoods that each has alone."""

import pytest
import torch

from mmaccel.speech.audio.endpoint import EnergyEndpoint, SileroEndpoint, judge_all


@pytest.mark.parametrize("policy", (SileroEndpoint(), EnergyEndpoint()))
def test_likelihoods_are_those_of_each_stream_alone(policy):
    pytest.importorskip("silero_vad")
    generator = torch.Generator().manual_seed(0)
    streams = [[0.3 * torch.randn(512, generator=generator) for _ in range(count)] for count in (5, 0, 9)]
    alone = [[*map(policy.listen(), frames)] for frames in streams]
    listeners = [policy.listen() for _ in streams]
    first = judge_all([(one, frames[:4]) for one, frames in zip(listeners, streams, strict=True)])
    rest = judge_all([(one, frames[4:]) for one, frames in zip(listeners, streams, strict=True)])
    together = [left + right for left, right in zip(first, rest, strict=True)]
    assert [len(one) for one in together] == [5, 0, 9] and len({round(one, 4) for one in alone[2]}) > 3
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
