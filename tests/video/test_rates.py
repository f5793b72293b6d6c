"""How many frames a second the clips of a pipeline have."""

import inspect
import re
import sys
from types import SimpleNamespace

import diffusers
import pytest
import torch

from mmaccel import zoo
from mmaccel.adapter import find_adapter
from mmaccel.video.comparing import VideoTrial
from mmaccel.video.examples import wan_pipeline
from mmaccel.video.families.rates import RATES, USUAL, rate_of

UNTOLD = {"Mochi"}  # its example leaves the rate to the writer of the file


def made(name):
    """A pipeline of a class of diffusers, without its parts."""
    return object.__new__(getattr(diffusers, name))


@pytest.mark.parametrize("beginning", sorted(RATES.keys() - UNTOLD))
def test_rates_are_those_of_diffusers_own_examples(beginning):
    names = [name for name in dir(diffusers) if name.startswith(beginning) and name.endswith("Pipeline")]
    assert names
    told = {name: rates for name in names if (rates := told_rates(name))}
    assert any(rate_of(made(name)) in rates for name, rates in told.items())


def told_rates(name):
    """Frames a second of the clips that the example of a pipeline of diffusers writes."""
    source = inspect.getsource(sys.modules[getattr(diffusers, name).__module__])
    return {int(rate) for rate in re.findall(r"export_to_video\(.*fps=(\d+)", source)}


def test_a_rate_that_an_example_tells_is_known():
    """Where it tells one, and the call of the pipeline none."""
    wrong = {}
    for name in [name for name in dir(diffusers) if name.endswith("Pipeline")]:
        told = told_rates(name)
        says = {"fps", "frame_rate"} & inspect.signature(getattr(diffusers, name).__call__).parameters.keys()
        if len(told) == 1 and not says and told != {rate_of(made(name))}:
            wrong[name] = told
    assert not wrong


@pytest.mark.parametrize(
    ("name", "rate"),
    (
        ("WanPipeline", 16),
        ("WanAnimatePipeline", 30),
        ("HunyuanVideoFramepackPipeline", 30),
        ("LTXPipeline", 25),
        ("CosmosTextToWorldPipeline", 30),
        ("CogVideoXPipeline", USUAL),
    ),
)
def test_what_a_call_says_comes_before_what_is_known_of_its_class(name, rate):
    assert rate_of(made(name)) == rate


def test_versions_that_share_a_class_have_rates_of_their_own():
    for name, part, later in (("WanPipeline", "expand_timesteps", 24), ("CogVideoXPipeline", "patch_size_t", 16)):
        pipe, usual = made(name), rate_of(made(name))
        for value, rate in ((None, usual), (2, later)):
            config = SimpleNamespace(**{part: value})
            if name == "WanPipeline":
                pipe._internal_dict = config
            else:
                vars(pipe)["transformer"] = SimpleNamespace(config=config)
            assert rate_of(pipe) == rate, (name, value)


def test_the_shipped_models_keep_their_own():
    assert rate_of(zoo.load("tiny-wan")) == USUAL


def test_pages_play_clips_at_the_rate_of_their_model():
    trial = VideoTrial(find_adapter(wan_pipeline()[0]), {"num_inference_steps": 2})
    assert trial.show(torch.zeros(1, 2, 3, 8, 8)).rate == 16
