"""Estimates of every kind of cache, and the refusal before the run."""

from types import SimpleNamespace

import pytest
import torch

import mmaccel
from mmaccel.cache import RollbackCache, estimate, estimate_bytes, require_memory
from mmaccel.errors import MemoryLimitError, MmaccelError
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
    assert estimate_bytes(config, 3, 20, torch.float16) * 2 == rollback.nbytes()


def test_vision_language_models_are_measured_by_their_decoder(config):
    nested = visual_examples.smolvlm()[0].config  # whose decoder has twice as many layers
    assert estimate_bytes(nested, 1, 9, torch.float32) == 2 * estimate_bytes(config, 1, 9, torch.float32)


def test_free_memory_of_this_machine():
    free = estimate.free_memory("cpu")
    assert 2**20 < free < 2**50
    assert estimate.free_memory("meta") is None
    require_memory(2**60, "meta")  # nobody can say: no refusal
    require_memory(1, "cpu")


def test_refusal_says_what_is_needed_and_free(monkeypatch):
    monkeypatch.setattr(estimate, "free_memory", lambda device: 3 * 2**20)
    with pytest.raises(MemoryLimitError, match=r"this run would take 5.0 MiB, and 3.0 MiB are free on cpu: use fewer"):
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


def heads(**sizes):
    config = SimpleNamespace(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, **sizes)
    config.get_text_config = lambda decoder: config
    return config


def test_sizes_that_a_configuration_leaves_out():
    """As many key heads as query heads, and what of the hidden size falls to each; none where keys are another's."""
    slot = 2 * 4  # a key and a value in float32
    own = heads(head_dim=16, num_key_value_heads=1)
    one = heads(num_key_value_heads=None)
    unlike = heads(is_heterogeneous=True, per_layer_config=[one, own])
    shared = heads(kv_sharing_modes=["store", "reuse"])
    found = [estimate_bytes(config, 1, 3, torch.float32) for config in (one, own, unlike, shared)]
    assert found == [3 * slot * 2 * 4 * 8, 3 * slot * 2 * 1 * 16, 3 * slot * (4 * 8 + 16), 3 * slot * 4 * 8]


def test_a_prompt_that_is_kept_whole_is_held_once():
    slots = lambda keep, new: estimate_bytes(heads(), 1, 50, torch.float32, keep, new)  # noqa: E731
    slot = 2 * (2 * 4 * 8 * 4 + 4 * 4)  # two layers: keys and values, and a position for each head
    assert slots(50, 256) == slots(60, 256) == (50 + 256) * slot
    assert slots(9, 4) == 13 * slot + 50 * slot // 2


@pytest.mark.parametrize(
    ("most", "left"), (("900", 900 - 700 + 30), ("90", 0), ("max", 3 * 4096), ("9999999", 3 * 4096), (None, 3 * 4096))
)
def test_a_container_has_what_its_limit_leaves(tmp_path, monkeypatch, most, left):
    """What it holds of files is given back on demand."""
    files = {"max": most, "current": "700", "stat": "anon 600\nactive_file 10\ninactive_file 20"}
    for name, text in files.items():
        if text is not None:
            (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    monkeypatch.setattr(estimate, "CONTAINER", tmp_path, raising=False)
    monkeypatch.setattr(estimate.psutil, "virtual_memory", lambda: SimpleNamespace(available=3 * 4096))
    assert estimate.free_memory("cpu") == left


def test_what_torch_holds_and_does_not_use_is_free(monkeypatch):
    for name, count in (("memory_reserved", 100), ("memory_allocated", 40), ("mem_get_info", (1000, 5000))):
        monkeypatch.setattr(torch.cuda, name, lambda device, count=count: count)
    assert estimate.free_memory("cuda") == 1060


def test_all_that_is_free_may_be_used(monkeypatch):
    monkeypatch.setattr(estimate, "free_memory", lambda device: 100)
    require_memory(100, "cpu")
    with pytest.raises(MemoryLimitError, match="^the prompt would take "):
        require_memory(101, "cpu", "the prompt")
