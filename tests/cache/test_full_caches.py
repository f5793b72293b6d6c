"""SelectingCache and EvictingCache where nothing is dropped, and RollbackCache: `generate` as with DynamicCache."""

import copy
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from draft_models import call, gemma2
from transformers import DynamicCache

from mmaccel.cache import EvictingCache, RollbackCache, SelectingCache, estimate_bytes
from mmaccel.kernels.policies import DECODE
from mmaccel.vlm import examples

MAKERS = {
    "selecting": lambda config: SelectingCache(config, DECODE["token_select"]),
    "selecting, expected": lambda config: SelectingCache(config, DECODE["token_select"], expected=33),
    "evicting": EvictingCache,
    "evicting, small room": lambda config: EvictingCache(config, room=1),
}
NAMES = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
ALL = pytest.mark.parametrize("make", (RollbackCache, *MAKERS.values()), ids=("rollback", *MAKERS))


@pytest.fixture(scope="module")
def llama():
    return examples.llama()


def greedy(llama, cache, batch=1, **more):
    model, arguments = llama
    return model.generate(**arguments(batch, 24, 8, **more), past_key_values=cache)


@pytest.mark.parametrize("batch", (1, 3))
@NAMES
def test_same_tokens_as_dynamic_cache(llama, make, batch):
    """Batches with padding on the left; also in beam search, which reorders the cache."""
    config = llama[0].config
    assert torch.equal(greedy(llama, make(config), batch), greedy(llama, DynamicCache(config=config), batch))
    beams = {"num_beams": 3, "num_return_sequences": 2}
    plain = greedy(llama, DynamicCache(config=config), batch, **beams)
    assert torch.equal(greedy(llama, make(config), batch, **beams), plain)


@ALL
def test_layers_with_a_window(make):
    """Prompts and answers are longer than it."""
    model, given = gemma2(), call(2, 4)
    plain = model.generate(**given)
    assert torch.equal(model.generate(**given, past_key_values=make(model.config)), plain)


@ALL
def test_prompt_lookup_takes_tokens_back(llama, make):
    model, given = llama[0], call()
    taken, cache = [], make(model.config)
    crop = cache.crop
    cache.crop = lambda count: taken.append(count) or crop(count)
    plain = model.generate(**given)
    assert torch.equal(model.generate(**given, prompt_lookup_num_tokens=3, past_key_values=cache), plain)
    assert min(taken) < 0


@NAMES
@torch.no_grad()
def test_chunks_crop_and_copies(llama, make):
    """Logits of chunks, after a rollback and from a copy are those of one pass."""
    model, _ = llama
    ids = examples.prompts(2, 20, pad=0)[0]
    whole, cache = model(ids).logits, make(model.config)
    for first, last in ((0, 7), (7, 8), (8, 15)):
        logits = model(ids[:, first:last], past_key_values=cache).logits
        assert torch.allclose(logits, whole[:, first:last], atol=1e-4)
    cache.crop(-5)
    assert cache.get_seq_length() == 10
    other = copy.deepcopy(cache)
    assert torch.allclose(model(ids[:, 10:], past_key_values=cache).logits, whole[:, 10:], atol=1e-4)
    assert torch.allclose(model(ids[:, 10:], past_key_values=other).logits, whole[:, 10:], atol=1e-4)
    with pytest.raises(ValueError, match="at most 0"):
        cache.crop(3)


@NAMES
def test_batch_operations_and_reset(make, llama):
    cache = make(llama[0].config)
    cache.batch_repeat_interleave(2)  # nothing written yet
    for layer in range(3):
        key = torch.arange(3.0)[:, None, None, None].expand(3, 2, 5, 8)
        cache.update(key, -key, layer)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([4, 1, 0]))
    cache.reorder_cache(torch.tensor([1, 0, 2]))
    new = torch.zeros(3, 2, 1, 8)
    keys, values = cache.update(new, new, 1)
    assert keys[:, 1, :5, 3].tolist() == [[0.0] * 5, [2.0] * 5, [0.0] * 5]
    assert torch.equal(values, -keys) and keys.shape == (3, 2, 6, 8)
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.update(new, new, 0)[0].shape[2] == 1


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_bytes_are_exact(llama, dtype):
    """2 states x 3 layers x 2 rows x 2 heads x 8 channels; positions are 4 bytes each, per head."""
    config, key = llama[0].config, torch.zeros(2, 2, 10, 8, dtype=dtype)
    slot = 2 * 3 * 2 * 2 * 8 * dtype.itemsize
    caches = {
        "selecting": SelectingCache(config, DECODE["fasa"], expected=12),
        "evicting": EvictingCache(config, room=4),
    }
    for cache in caches.values():
        assert cache.nbytes() == 0
        for layer in range(3):
            cache.update(key, key, layer)
    assert caches["selecting"].nbytes() == 12 * slot == estimate_bytes(config, 2, 12, dtype)
    positions = 3 * 2 * 2 * 4
    evicting = caches["evicting"]
    assert evicting.nbytes() == evicting.peak == 10 * (slot + positions)
    for layer in evicting.layers:
        layer.keep(torch.tensor([0, 4, 9]).expand(2, 2, 3))
    assert evicting.nbytes() == (3 + 4) * (slot + positions)
    assert 3 * evicting.peak == (30 + 7) * (slot + positions), "the first layer had what it was and what it kept"


def test_estimate_of_an_evicting_cache_is_its_peak(llama):
    """Layer after layer is compressed as soon as it has attended."""
    config, key = llama[0].config, torch.zeros(2, 2, 50, 8)
    cache = EvictingCache(config, room=4)
    for layer in range(3):
        cache.update(key, key, layer)
        cache.layers[layer].keep(torch.arange(9).expand(2, 2, 9))
    estimate = estimate_bytes(config, 2, 50, torch.float32, keep=9, new=4)
    assert estimate == cache.peak


@NAMES
def test_more_is_taken_back_than_there_is(llama, make):
    cache, key = make(llama[0].config), torch.ones(1, 2, 3, 8)
    cache.update(key, key, 0)
    cache.crop(-9)
    assert cache.get_seq_length() == 0 and cache.update(2 * key, key, 0)[0].tolist() == (2 * key).tolist()
    assert cache.layers[0].get_max_length() == -1


def test_a_policy_is_asked_with_what_it_remembers_of_these_rows(llama):
    seen = []

    def policy(q, k, lengths, *, count, state, scale):
        seen.append((q.shape[2], lengths.tolist(), count))
        state["steps"] = state.get("steps", 0) + 1
        return state["steps"]

    layer = SelectingCache(llama[0].config, policy).layers[0]
    query, keys = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 5, 8)
    assert [layer.choose(query, keys, 4, rows) for rows in ((0, 1), (0, 1), (1, 2))] == [1, 2, 1]
    assert seen == [(3, [5, 5], 4)] * 3
    layer.batch_repeat_interleave(2)
    assert layer.choose(query, keys, 4, (0, 1)) == 1, "rows of another batch"


@NAMES
def test_a_reader_is_told_of_each_update(llama, make):
    """It finds the layer by the very keys that attention gets; what has changed since is of no layer any more."""
    cache, told = make(llama[0].config), []
    cache.reader = SimpleNamespace(active=True, updated=told.append)
    key = torch.zeros(1, 2, 3, 8)
    for layer in (0, 2, 2):
        assert cache.update(key, key, layer)[0] is cache.layers[layer].current
    assert told == [cache.layers[layer] for layer in (0, 2, 2)]
    cache.reset()
    assert all(layer.current is None for layer in cache.layers)


@ALL
def test_a_cache_that_nobody_holds_is_freed_at_once(llama, make):
    cache, key = make(llama[0].config), torch.ones(1, 2, 3, 8)
    cache.update(key, key, 0)
    alive = weakref.ref(cache.layers[0])
    gc.disable()
    try:
        del cache
        assert alive() is None, "not only once Python looks for cycles"
    finally:
        gc.enable()


def test_what_a_policy_remembers_is_forgotten_with_tokens_alone(llama):
    layer = SelectingCache(llama[0].config, DECODE["token_select"]).layers[0]
    layer.update(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8))
    layer.state((0,))["step"] = 7
    layer.crop(0)
    assert layer.states == {(0,): {"step": 7}} and layer.length == 3
    layer.crop(-1)
    assert not layer.states and layer.length == 2


def test_what_a_policy_remembers_follows_its_beams(llama):
    """Each row's memory goes where its row goes; that of rows which come from elsewhere is forgotten."""
    layer = SelectingCache(llama[0].config, DECODE["token_select"]).layers[0]
    layer.update(torch.zeros(4, 2, 3, 8), torch.zeros(4, 2, 3, 8))
    layer.state((0, 1)).update(step=7, votes=torch.tensor([[1.0], [2.0]]))
    layer.state((2, 3)).update(step=8, votes=torch.tensor([[3.0], [4.0]]))
    layer.reorder_cache(torch.tensor([1, 1, 3, 0]))
    assert layer.state((0, 1))["step"] == 7 and layer.state((0, 1))["votes"].tolist() == [[2.0], [2.0]]
    assert layer.state((2, 3)) == {}
