"""RollbackCache: its two ways to write, and how it grows; `generate` with it is in test_full_caches."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mmaccel.cache import RollbackCache

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


def states(batch, width, value=None, heads=2, dim=4):
    """Keys (and values, ten times as large) whose entries tell their position."""
    key = torch.arange(width, dtype=torch.float) if value is None else torch.full((width,), float(value))
    key = key[None, None, :, None].expand(batch, heads, width, dim)
    return key, 10 * key


def small(*capacity, layers=2):
    return RollbackCache(LlamaConfig(**{**SIZES, "num_hidden_layers": layers}), *capacity)


def test_what_is_taken_back_is_written_over():
    cache = small()
    assert cache.length == 0 and cache.nbytes() == 0 and len(cache.layers) == 2
    for layer in range(2):
        cache.update(*states(1, 5), layer)
    for layer in range(2):
        keys, values = cache.update(*states(1, 3, 77), layer)
        assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 3, 4, 77, 77, 77]
        assert torch.equal(values, 10 * keys)
    cache.crop(-3)
    assert cache.length == 5 and cache.layers[1].length == 5
    keys, _ = cache.update(*states(1, 1, 9), 0)
    assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 3, 4, 9]
    cache.crop(-6)
    assert cache.length == 0 and all(layer.length == 0 for layer in cache.layers)


def test_rollback_moves_no_data():
    cache = small(16)
    cache.update(*states(1, 8), 0)
    buffer = cache.layers[0].keys
    cache.crop(-5)
    view, _ = cache.update(*states(1, 2, 5), 0)
    assert cache.layers[0].keys is buffer and view.data_ptr() == buffer.data_ptr()
    assert view.shape[2] == 5


def test_crop_takes_the_sign_of_transformers():
    cache = small()
    cache.update(*states(2, 6), 0)
    cache.crop(-2)
    assert cache.length == 4
    cache.crop(0)
    assert cache.length == 4
    with pytest.raises(ValueError, match=r"at most 0, got 1.*crop\(-n\)"):
        cache.crop(1)
    cache.crop(-100)
    assert cache.length == 0


def test_growth_keeps_what_was_written():
    cache = small()
    cache.update(*states(1, 250), 0)
    bytes_before = cache.nbytes()
    assert bytes_before == 2 * 256 * 2 * 4 * 4  # keys and values of one layer, 2 heads of 4 float32
    keys, _ = cache.update(*states(1, 10, 3), 0)
    assert keys[0, 0, :250, 0].tolist() == list(range(250)) and keys[0, 0, 250:, 0].tolist() == [3] * 10
    assert cache.layers[0].keys.shape[2] == 260 + 256
    cache.update(*states(1, 1000, 4), 0)
    assert cache.length == 1260 and cache.layers[0].keys.shape[2] == 1260 + 1260 // 4


def test_seek():
    cache = small(8)
    cache.update(*states(1, 6), 0)
    cache.seek(2)
    keys, _ = cache.update(*states(1, 1, 9), 0)
    assert keys[0, 0, :, 0].tolist() == [0, 1, 9]
    cache.seek(6)  # ahead, over slots written before
    keys, _ = cache.update(*states(1, 1, 8), 0)
    assert keys[0, 0, :, 0].tolist() == [0, 1, 9, 3, 4, 5, 8]


def test_rows_with_slots_of_their_own():
    """`place` writes each row where it says, and leaves the other slots alone."""
    cache = small(10)
    cache.update(*states(3, 4), 0)
    cache.place(torch.tensor([[4, 5], [2, 3], [6, 9]]), 10)
    keys, values = cache.update(*states(3, 2, 7), 0)
    assert keys.shape[2] == 10 and torch.equal(values, 10 * keys)
    assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 3, 7, 7, 0, 0, 0, 0]
    assert keys[1, 1, :, 2].tolist() == [0, 1, 7, 7, 0, 0, 0, 0, 0, 0]
    assert keys[2, 1, :, 3].tolist() == [0, 1, 2, 3, 0, 0, 7, 0, 0, 7]
    cache.append()
    cache.seek(4)
    assert cache.update(*states(3, 1, 1), 0)[0][0, 0, :, 0].tolist() == [0, 1, 2, 3, 1]


def test_place_in_a_model():
    """Rows at different lengths, in one batch: the logits of each row by itself."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    ids = torch.randint(2, 50, (2, 9), generator=torch.Generator().manual_seed(4))
    lengths, width = (6, 3), 2
    cache = RollbackCache(model.config, 9)
    with torch.no_grad():
        model(ids[:, :6], past_key_values=cache, use_cache=True)  # row 1 is 3 tokens too far: overwritten below
        slots = torch.tensor([[n, n + 1] for n in lengths])
        cache.place(slots, 8)
        mask = torch.arange(8)[None, None] <= slots[:, :, None]
        fed = torch.stack([ids[row, n : n + width] for row, n in enumerate(lengths)])
        logits = model(
            fed, position_ids=slots, attention_mask=mask[:, None], past_key_values=cache, use_cache=True
        ).logits
        for row, n in enumerate(lengths):
            alone = model(ids[row : row + 1, : n + width]).logits[0, n:]
            assert torch.allclose(logits[row], alone, atol=1e-4)


def test_batch_operations():
    cache = small(4, layers=1)
    cache.batch_repeat_interleave(2)  # nothing written yet: nothing to do
    key = torch.arange(3.0)[:, None, None, None].expand(3, 2, 2, 4)
    cache.update(key, -key, 0)
    cache.batch_repeat_interleave(2)
    assert cache.layers[0].keys[:, 0, 0, 0].tolist() == [0, 0, 1, 1, 2, 2]
    cache.batch_select_indices(torch.tensor([4, 1]))
    assert cache.layers[0].keys[:, 1, 1, 3].tolist() == [2, 0]
    cache.reorder_cache(torch.tensor([1, 0]))
    assert cache.layers[0].values[:, 1, 1, 3].tolist() == [0, -2]
    assert cache.length == 2


def test_reset_forgets_everything():
    cache = small(4, layers=1)
    cache.update(*states(1, 3, 5), 0)
    cache.reset()
    assert cache.length == 0
    assert cache.update(*states(1, 1, 2), 0)[0][0, 0, :, 0].tolist() == [2]


def test_masks_and_lengths_that_transformers_asks_for():
    cache = small(12, layers=1)
    cache.update(*states(1, 5), 0)
    assert cache.get_seq_length() == 5 and cache.get_mask_sizes(3, 0) == (8, 0)
    assert cache.layers[0].get_max_length() == -1
    assert cache.is_croppable and not any(cache.is_sliding)
