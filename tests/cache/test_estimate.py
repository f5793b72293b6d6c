"""Estimates of every kind of cache, and the refusal before the run."""

import pytest
import torch

import mmaccel
from mmaccel.cache import RollbackCache, estimate, estimate_bytes, require_memory
from mmaccel.errors import MemoryLimitError, MmaccelError, UnknownNameError
from mmaccel.vlm import CompressKV, SelectKV, SparsePrefill, examples, visual_examples


@pytest.fixture(scope="module")
def config():
    return examples.llama()[0].config


def test_estimates_are_what_is_allocated(config):
    key = torch.zeros(3, 2, 20, 8)
    rollback = RollbackCache(config, 20)
    for layer in range(3):
        rollback.update(key, key, layer)
    assert rollback.nbytes() == estimate_bytes(config, 3, 20, torch.float32)
    assert estimate_bytes(config, 3, 20, torch.float32, "dynamic") == rollback.nbytes()
    assert estimate_bytes(config, 3, 20, torch.float16) * 2 == rollback.nbytes()
    with pytest.raises(UnknownNameError, match="'evicting'"):
        estimate_bytes(config, 1, 1, torch.float32, "evicing")


def test_vision_language_models_are_measured_by_their_decoder(config):
    nested = visual_examples.smolvlm()[0].config  # whose decoder has twice as many layers
    assert estimate_bytes(nested, 1, 9, torch.float32) == 2 * estimate_bytes(config, 1, 9, torch.float32)


def test_free_memory_of_this_machine():
    free = estimate.free_memory("cpu")
    assert free is None or 2**20 < free < 2**50
    assert estimate.free_memory("meta") is None
    require_memory(2**60, "meta")  # nobody can say: no refusal
    require_memory(1, "cpu")


def test_unknown_platforms_refuse_nothing(monkeypatch):
    monkeypatch.setattr(estimate.os, "sysconf", lambda name: (_ for _ in ()).throw(ValueError(name)))
    assert estimate.free_memory("cpu") is None
    require_memory(2**60, "cpu")


def test_refusal_says_what_is_needed_and_free(monkeypatch):
    monkeypatch.setattr(estimate, "free_memory", lambda device: 3 * 2**20)
    with pytest.raises(MemoryLimitError, match=r"this run needs 5.0 MiB .* 3.0 MiB are free on cpu: use fewer"):
        require_memory(5 * 2**20, "cpu")
    assert issubclass(MemoryLimitError, MmaccelError) and issubclass(MemoryLimitError, MemoryError)


@pytest.mark.parametrize("method", (SelectKV(), CompressKV()), ids=str)
def test_generate_refuses_before_the_run(method, monkeypatch):
    model, arguments = examples.llama()
    plain, calls = model.generate(**arguments()), []
    with mmaccel.accelerate(model, method) as fast:
        handle = model.get_decoder().register_forward_pre_hook(lambda *_: calls.append(1))
        monkeypatch.setattr(estimate, "free_memory", lambda device: 1000)
        with pytest.raises(MemoryLimitError, match="2 x 86 tokens"):
            fast.generate(**arguments(2))
        assert not calls
        monkeypatch.undo()
        fast.generate(**arguments(2))
        handle.remove()
    assert torch.equal(model.generate(**arguments()), plain)


def test_a_method_without_a_cache_refuses_nothing(monkeypatch):
    monkeypatch.setattr(estimate, "free_memory", lambda device: 1000)
    model, arguments = examples.llama()
    with mmaccel.accelerate(model, SparsePrefill()) as fast:
        assert fast.generate(**arguments()).shape == (1, 86)
