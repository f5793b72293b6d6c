"""EvictingCache when it drops tokens: against attention with an explicit mask."""

from types import SimpleNamespace

import pytest
import torch

from mmaccel.cache import EvictingCache, EvictingLayer, RaggedLayer
from mmaccel.vlm import examples


def states(count, first=0.0, batch=1, heads=2):
    """Keys `[batch, heads, count, 4]` that carry their number, and values 10 times that."""
    key = (first + torch.arange(float(count)))[None, None, :, None].expand(batch, heads, count, 4).clone()
    return key, 10 * key


def small(batch=1, count=6, room=4):
    model, _ = examples.llama()
    cache = EvictingCache(model.config, room)
    cache.update(*states(count, batch=batch), 0)
    return cache, cache.layers[0]


def test_keeps_other_tokens_per_head_and_counts_on():
    cache, layer = small()
    layer.keep(torch.tensor([[[0, 3, 5], [1, 2, 5]]]))
    assert cache.get_seq_length() == 6 and layer.starts == [0] and layer.evicted
    keys, values = cache.update(*states(1, 6.0), 0)
    assert keys[0, :, :, 0].tolist() == [[0, 3, 5, 6], [1, 2, 5, 6]] and torch.equal(values, 10 * keys)
    assert layer.positions[0, :, :4].tolist() == keys[0, :, :, 0].tolist()
    assert cache.get_seq_length() == 7 and cache.get_mask_sizes(2, 0) == (6, 3)
    for _ in range(9):  # grows beyond its room
        keys, _ = cache.update(*states(1, float(cache.get_seq_length())), 0)
    assert keys[0, 0, :, 0].tolist() == [0, 3, 5, *range(6, 16)]


def test_rows_of_different_lengths_lie_at_the_right():
    cache, layer = small(batch=2)
    layer.keep(torch.tensor([[[0, 1, 5]] * 2, [[4, -1, -1]] * 2]))
    assert layer.starts == [0, 2] and layer.valid[1, 0].tolist() == [False, False, True]
    cache.reader = SimpleNamespace(active=False)
    with pytest.raises(ValueError, match="different numbers of tokens"):
        cache.update(*states(1, 6.0, batch=2), 0)
    cache.reader = None
    with pytest.raises(ValueError, match="different numbers of tokens"):
        cache.update(*states(1, 6.0, batch=2), 0)
    cache.reorder_cache(torch.tensor([1, 0]))
    assert layer.starts == [2, 0] and layer.positions[0, 0].tolist()[:3] == [-1, -1, 4]
    cache.batch_repeat_interleave(2)
    assert layer.starts == [2, 2, 0, 0]
    cache.batch_select_indices(torch.tensor([3, 2]))  # rows alike: any attention will do
    assert cache.update(*states(1, 6.0, batch=2), 0)[0][1, 1, :, 0].tolist() == [0, 1, 5, 6]


def test_heads_of_different_lengths():
    _, layer = small()
    layer.keep(torch.tensor([[[0, 3, 5], [2, -1, -1]]]))
    assert layer.starts is None and layer.positions[0, 1].tolist()[:3] == [-1, -1, 2]


def test_hidden_tokens_leave_gaps_until_aligned():
    cache, layer = small(batch=2)
    layer.keep(torch.tensor([[[0, 1]] * 2, [[2, 3]] * 2]))
    cache.update(*states(2, 6.0, batch=2), 0)
    layer.hide(torch.tensor([[True, True], [False, True]]))
    assert layer.hidden == [0, 1] and layer.starts is None
    layer.align()
    assert layer.starts == [0, 1] and layer.positions[1, 0].tolist()[:4] == [-1, 2, 3, 7]


def test_crop_takes_back_new_tokens_only():
    cache, layer = small()
    layer.keep(torch.tensor([[[0, 5], [2, 4]]]))
    cache.update(*states(3, 6.0), 0)
    cache.crop(-2)
    assert cache.get_seq_length() == 7
    assert cache.update(*states(1, 7.0), 0)[0][0, 0, :, 0].tolist() == [0, 5, 6, 7]
    with pytest.raises(ValueError, match="cannot remove 3 tokens: only 2 were added"):
        layer.crop(-3)
    layer.keep(torch.tensor([[[0, 2, 3], [1, 2, 3]]]))  # the newest two are kept in both heads
    cache.crop(-2)
    assert cache.get_seq_length() == 6 and layer.positions[0, :, : layer.length].tolist() == [[0], [4]]
    cache.reset()
    assert cache.get_seq_length() == 0 and not layer.evicted


def test_bytes_are_counted_as_they_come_and_go():
    """36 bytes a token and head; the peak of a layer that drops is what was, and what is kept, with its room."""
    slot = 2 * (2 * 4 * 4 + 4)
    cache, layer = small(room=4)
    cache.update(*states(6), 1)
    assert cache.nbytes() == cache.shared.allocated == cache.peak == 12 * slot
    layer.keep(torch.tensor([[[0, 3, 5], [1, 2, 5]]]))
    assert cache.nbytes() == cache.shared.allocated == (6 + 3 + 4) * slot
    assert cache.peak == (12 + 3 + 4) * slot
    cache.layers[1].keep(torch.tensor([[[4], [5]]]))
    assert cache.nbytes() == (7 + 5) * slot and cache.peak == 19 * slot, "the first layer had the higher peak"
    for token in range(6, 10):
        cache.update(*states(1, float(token)), 0)
    assert cache.nbytes() == (7 + 5) * slot and layer.length == 7, "its room is full"
    cache.update(*states(1, 10.0), 0)
    assert layer.keys.shape[2] == 8 + 4 and cache.nbytes() == cache.shared.allocated == (12 + 5) * slot
    cache.update(*states(30, 11.0), 0)
    assert layer.keys.shape[2] == 38 + 38 // 4 and cache.peak == cache.nbytes() == (47 + 5) * slot
    cache.batch_repeat_interleave(3)
    assert cache.nbytes() == cache.shared.allocated == cache.peak == 3 * (47 + 5) * slot
    cache.batch_select_indices(torch.tensor([True, False, True]))
    assert cache.nbytes() == cache.shared.allocated == 2 * (47 + 5) * slot and cache.peak == 3 * 52 * slot
    cache.reset()
    assert cache.nbytes() == cache.shared.allocated == 0 and cache.peak == 3 * 52 * slot


def test_tokens_are_counted_as_they_come_and_go():
    cache, layer = small(batch=2)
    counts = lambda: (layer.length, layer.total, layer.appended, layer.hidden)  # noqa: E731
    assert counts() == (6, 6, 6, [0, 0])
    layer.keep(torch.tensor([[[1, 4, 5]] * 2, [[0, 4, 5], [3, 4, 5]]]))
    assert counts() == (3, 6, 2, [0, 0]), "all rows and heads have the newest two"
    layer.keep(torch.arange(3).expand(2, 2, -1))
    assert counts() == (3, 6, 2, [0, 0]), "slots that all kept can hold other tokens"
    cache.update(*states(3, 6.0, batch=2), 0)
    assert counts() == (6, 9, 5, [0, 0])
    layer.hide(torch.tensor([[True, True, True], [False, False, True]]))
    assert counts() == (6, 9, 5, [0, 2])
    for seen in ([[True], [False]], [[True] * 2, [False] * 2]):
        layer.hide(torch.tensor(seen))
        assert counts() == (6, 9, 5, [0, 3]), "what is padding of one turn adds to that of others, once"
    cache.crop(-1)
    assert counts() == (5, 8, 4, [0, 3])
    cache.reorder_cache(torch.tensor([1, 1]))
    assert counts() == (5, 8, 4, [3, 3]) and cache.get_mask_sizes(2, 0) == (7, 3)
    layer.keep(torch.tensor([[[0, 4], [0, 1]], [[0, 4], [0, 1]]]))
    assert counts() == (2, 8, 0, [3, 3]), "not all heads have the newest"
    with pytest.raises(ValueError, match="only 0 were added since"):
        cache.crop(-1)


def test_padding_of_uneven_heads_is_counted_once():
    """Their layers share no state, and the reader is told of the layer, not of its heads."""
    told = []
    cache = EvictingCache(examples.llama()[0].config, 4, RaggedLayer)
    cache.update(*states(6), 0)
    layer = cache.layers[0]
    layer.keep(torch.tensor([[[0, 3, 5], [5, -1, -1]]]))
    cache.reader = SimpleNamespace(active=True, updated=told.append)
    key, value = states(2, 6.0)
    assert cache.update(key, value, 0)[0] is layer.current is key
    assert told[-1] is layer
    layer.hide(torch.tensor([[False, True]]))
    assert layer.hidden == [1] and [head.hidden for head in layer.heads] == [[1], [1]]
    assert (layer.total, cache.get_mask_sizes(1, 0)) == (8, (6, 3))


def test_padding_that_is_hidden_before_heads_are_uneven_is_known_to_each():
    """Until then nothing is dropped, and any attention may read the layer."""
    cache = EvictingCache(examples.llama()[0].config, 4, RaggedLayer)
    for first in (0, 3):
        cache.update(*states(3, first), 0)
        if not first:
            cache.layers[0].hide(torch.tensor([[False, True, True]]))
    layer = cache.layers[0]
    assert layer.hidden == [1] and layer.starts == [1] and not layer.evicted
    layer.keep(torch.tensor([[[1, 4, 5], [5, -1, -1]]]))
    cache.reader = SimpleNamespace(active=True, updated=lambda layer: None)
    cache.update(*states(1, 6), 0)
    layer.hide(torch.tensor([[False]]))
    assert layer.hidden == [2] and [head.hidden for head in layer.heads] == [[2], [2]]
    assert [head.starts for head in layer.heads] == [None, None], "there is a gap in each"


@pytest.mark.parametrize("kind", (EvictingLayer, RaggedLayer))
def test_what_attention_was_given_is_not_held_any_longer(kind):
    """Neither when tokens are dropped nor when rows change: it would keep the whole prompt in memory."""
    cache = EvictingCache(examples.llama()[0].config, 4, kind)
    layer = cache.layers[0]
    for drop in (
        lambda: layer.keep(torch.tensor([[[0, 5], [2, 4]]])),
        lambda: cache.reorder_cache(torch.tensor([0])),
        lambda: cache.reset(),
    ):
        cache.reset()
        assert cache.update(*states(6), 0)[0] is layer.current
        drop()
        assert layer.current is None


@torch.no_grad()
def test_model_sees_the_kept_tokens_at_their_positions():
    """Plain SDPA over the cache gives what a mask over the whole sequence gives."""
    model, _ = examples.llama()
    ids, kept = examples.prompts(1, 14, pad=0)[0], [0, 2, 3, 8, 9]
    cache = EvictingCache(model.config)
    model(ids[:, :10], past_key_values=cache)
    for layer in cache.layers:
        layer.keep(torch.tensor(kept).expand(1, 2, -1))
    logits = torch.cat([model(ids[:, a:b], past_key_values=cache).logits for a, b in ((10, 13), (13, 14))], 1)
    mask = torch.ones(14, 14, dtype=torch.bool).tril()
    mask[10:, [i for i in range(10) if i not in kept]] = False
    assert torch.allclose(logits, model(ids, attention_mask=mask[None, None]).logits[:, 10:], atol=1e-4)


def test_no_room_is_an_error():
    with pytest.raises(ValueError, match="room must be at least 1"):
        EvictingCache(examples.llama()[0].config, room=0)
