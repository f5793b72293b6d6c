"""A snapshot sees whatever a method could have left behind."""

import pytest
import torch

from mmaccel.testing import contract as testing
from mmaccel.testing.snapshot import snapshot


def base_of(model):
    """The class of transformers that the model's own class is made of."""
    return type(model).__mro__[2]


def left_behind(model):
    """Ways to leave a trace on a model: name -> what does it."""

    def swap():
        weight = model.get_output_embeddings().weight.data
        weight[0], weight[1] = weight[1].clone(), weight[0].clone()

    return {
        "an attribute": lambda: setattr(model, "left", 1),
        "a hook": lambda: next(model.children()).register_forward_pre_hook(lambda *_: None),
        "two weights that changed places": swap,
        "a buffer": lambda: next(model.buffers()).neg_(),
        "a class attribute": lambda: setattr(type(model), "forward", model.forward.__func__.__get__),
        "an attribute of a base class": lambda: setattr(base_of(model), "left", 1),
        "a setting of the configuration": lambda: setattr(model.config, "left", 1),
        "a setting of an inner configuration": lambda: setattr(model.config.text_config, "_attn_implementation", "x"),
        "a setting of generation": lambda: setattr(model.generation_config, "max_length", 7),
    }


@pytest.mark.parametrize("what", left_behind(None))
def test_a_snapshot_sees(what, monkeypatch):
    model, _ = testing.examples("image")[0].build()
    monkeypatch.setattr(type(model), "forward", type(model).forward)  # to be put back
    monkeypatch.setattr(base_of(model), "left", None, raising=False)
    monkeypatch.delattr(base_of(model), "left")
    before = snapshot(model)
    assert snapshot(model) == before
    left_behind(model)[what]()
    assert snapshot(model) != before


@pytest.mark.parametrize("name", ("__annotations__", "__annotations_cache__", "__annotate_func__"))
def test_annotations_that_python_keeps_when_they_are_first_read_are_no_trace(name):
    module = type("Own", (torch.nn.Module,), {})()
    before = snapshot(module)
    setattr(type(module), name, None if name == "__annotate_func__" else {})
    assert snapshot(module) == before


def test_a_snapshot_sees_values_of_the_same_sum():
    module = torch.nn.Module()
    for values in ([1.0, 2.0], [2.0, 1.0], [3.0, 0.0], [3.0, -0.0]):
        module.kept = torch.tensor(values)
        found = snapshot(module)
        module.kept = torch.tensor(values)
        assert snapshot(module) == found, "made anew with the same values"
        for other in ([1.0, 2.0], [2.0, 1.0], [3.0, 0.0], [3.0, -0.0]):
            module.kept = torch.tensor(other)
            assert (snapshot(module) == found) == (str(other) == str(values))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.bool, torch.int64, torch.complex64), ids=str)
def test_a_snapshot_takes_tensors_of_every_kind(dtype):
    module = torch.nn.Module()
    module.register_buffer("one", torch.ones((), dtype=dtype))
    module.register_buffer("none", torch.ones(0, 3, dtype=dtype))
    before = snapshot(module)
    module.one.zero_()
    assert snapshot(module) != before
