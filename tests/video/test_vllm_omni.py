"""Our pipeline for vLLM-Omni's diffusers backend, held to what it publishes; it has no build for this machine.

Facts of `pipeline_diffusers_adapter.py`: it is a `torch.nn.Module` made with `od_config` and `device` by name;
`load_weights()` puts the pipeline into `_pipeline` and reads the arguments of its call; `forward` calls it as a whole
under `torch.inference_mode`, and passes on only the arguments that the call has.
"""

import inspect

import pytest
import torch

import mmaccel
from mmaccel import image, video
from mmaccel.errors import UnsupportedTargetError
from mmaccel.video import examples
from mmaccel.video.vllm_omni import Accelerated

STEPS = 10


class DiffusersAdapterPipeline(torch.nn.Module):
    """What the backend's class does with a pipeline; the one that it loads is a small one."""

    def __init__(self, *, od_config, device=None):
        super().__init__()
        self.od_config, self.device = od_config, device

    def load_weights(self):
        self._pipeline, self.arguments = self.od_config["from_pretrained"]()
        self._pipeline.to(self.device)
        self._accept_call_kwargs = set(inspect.signature(self._pipeline.__call__).parameters)

    def forward(self, request):
        kwargs = {key: value for key, value in request.items() if key in self._accept_call_kwargs}
        with torch.inference_mode():
            return self._pipeline(**kwargs)


class Pipeline(Accelerated, DiffusersAdapterPipeline):
    methods = (video.HeterogeneousSteps(budget=0.8),)


class Unfit(Accelerated, DiffusersAdapterPipeline):
    methods = (image.ZipAR(),)


def made(kind):
    pipeline = kind(od_config={"from_pretrained": examples.wan_pipeline}, device=torch.device("cpu"))
    pipeline.load_weights()
    return pipeline


def frames(pipeline):
    sampling = {"num_inference_steps": STEPS, "an argument of another pipeline": 3}
    return pipeline.forward({**pipeline.arguments(1), **sampling})[0]


def test_requests_are_answered_as_by_the_accelerated_pipeline():
    pipeline = made(Pipeline)
    assert Pipeline.__mro__.index(Accelerated) < Pipeline.__mro__.index(DiffusersAdapterPipeline)
    found = [frames(pipeline) for _ in range(2)]
    report = pipeline.session.report
    assert report.engaged and report.forwards < report.plain_forwards
    pipeline.session.remove()
    plain = frames(pipeline)
    with mmaccel.accelerate(pipeline._pipeline, *Pipeline.methods):
        expected = frames(pipeline)
    assert torch.equal(found[0], expected) and torch.equal(found[1], expected) and not torch.equal(expected, plain)


def test_a_method_that_does_not_fit_is_told_when_weights_are_loaded():
    with pytest.raises(UnsupportedTargetError, match="does not work on diffusion transformer models"):
        made(Unfit)
