"""The nodes without ComfyUI, whose modules are stood in for."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch

from mmaccel.demos.comfyui.__main__ import PACK


@pytest.fixture
def nodes(monkeypatch):
    api = SimpleNamespace(ComfyExtension=object, io=SimpleNamespace(ComfyNode=object), ui=None)
    names = ("comfy", "comfy.patcher_extension", "comfy.sample", "comfy.samplers", "comfy_api", "latent_preview")
    found = {"comfy_api.latest": api, "comfy.model_sampling": SimpleNamespace(CONST=object)}
    stands_in = {**{name: SimpleNamespace() for name in names}, **found}
    for name, module in stands_in.items():
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("nodes_under_test", PACK / "nodes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Executor:
    """A run of a sampler whose steps cannot be forecast, as ComfyUI hands it to what wraps it."""

    class_obj = SimpleNamespace(sampler_function=print)

    def __init__(self, told):
        self.told = told

    def __call__(self, *_):
        self.told.append("run")
        return "samples"


def sampled(nodes, acceleration, told):
    options = {"model_options": {"transformer_options": {nodes.KEY: acceleration}}}
    return nodes.sample(Executor(told), None, torch.linspace(1, 0, 21), options)


def test_a_speed_up_is_told_of_the_compared_run_alone(nodes):
    acceleration = nodes.Acceleration(0.5, node="")
    sampled(nodes, acceleration, [])
    acceleration.report.baseline_seconds = 60.0  # as Compare leaves it
    assert "both measured" in acceleration.told()
    sampled(nodes, acceleration, [])
    assert "not measured: the node Compare does" in acceleration.told()


@pytest.mark.parametrize(("budget", "warns"), ((1, False), (0.5, True)))
def test_no_advice_where_nothing_was_to_change(nodes, budget, warns):
    acceleration = nodes.Acceleration(budget, node="")
    sampled(nodes, acceleration, [])
    assert any("cannot be forecast" in text for text in acceleration.report.warnings) == warns
    assert len(acceleration.report.warnings) == warns


def test_the_clock_waits_for_the_accelerator(nodes, monkeypatch):
    told = []
    monkeypatch.setattr(nodes, "synchronize", lambda: told.append("wait"))
    monkeypatch.setattr(nodes.time, "perf_counter", lambda: told.append("look") or 0.0)
    assert sampled(nodes, nodes.Acceleration(0.5, node=""), told) == "samples"
    assert told == ["wait", "look", "run", "wait", "look"]


@pytest.mark.parametrize(
    ("levels", "is_whole"), (([1.0, 0.5, 0.0], True), ([0.7, 0.3, 0.0], False), ([1.0, 0.5, 0.2], False))
)
def test_a_run_is_whole_from_pure_noise_to_the_end(nodes, monkeypatch, levels, is_whole):
    def sample_euler():
        """Of this name the steps are forecast."""

    sampling = SimpleNamespace(timestep=lambda sigmas: 1000 * sigmas)
    guider = SimpleNamespace(inner_model=SimpleNamespace(model_sampling=sampling))
    sampler = SimpleNamespace(sampler_function=sample_euler, max_denoise=lambda _, sigmas: float(sigmas[0]) >= 1)
    monkeypatch.setattr(nodes, "reason_to_pass", lambda *_: "")
    with nodes.Acceleration(0.25, node="").in_charge(sampler, guider, torch.tensor(levels)):
        assert sampler.sampler_function.is_whole is is_whole
    assert sampler.sampler_function is sample_euler
