"""RollbackCache in `generate` of ordinary models, its two ways to write, and its errors."""

import gc
import weakref

import pytest
import torch
from transformers import (
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

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
GPT2 = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": None}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "gemma": lambda: GemmaForCausalLM(GemmaConfig(**SIZES, head_dim=8, tie_word_embeddings=False)),
    # layers with a sliding window get it from the mask, since the cache keeps everything
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, sliding_window=4, tie_word_embeddings=False)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
}


def build(name):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.mul_(4)  # sharp enough that greedy decoding has no near-ties
    model.generation_config.pad_token_id = 0
    return model


def prompt(batch=2, length=7):
    """Ids and mask; the second row is two tokens shorter, padded on the left."""
    ids = torch.randint(2, 50, (batch, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1::2, :2] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def greedy(model, cache, tokens=24, **more):
    call = {**prompt(), **more}
    return model.generate(**call, past_key_values=cache, max_new_tokens=tokens, do_sample=False)


@pytest.mark.parametrize("capacity", (None, 64, 30), ids=("grows", "spare", "just enough"))
@pytest.mark.parametrize("name", MODELS)
def test_same_tokens_as_dynamic_cache(name, capacity):
    model = build(name)
    plain = greedy(model, DynamicCache(config=model.config))
    assert len(plain[:, 7:].unique()) > 4
    cache = RollbackCache(model.config, capacity)
    assert torch.equal(greedy(model, cache), plain)
    assert cache.length == 7 + 23  # the last token is never fed


def test_beam_search_reorders_the_cache():
    model = build("llama")
    call = {**prompt(), "num_beams": 3, "max_new_tokens": 8, "do_sample": False}
    plain = model.generate(**call)
    assert torch.equal(model.generate(**call, past_key_values=RollbackCache(model.config)), plain)


@pytest.mark.parametrize("name", ("llama", "gpt2"))
def test_prompt_lookup_crops(name):
    """Assisted generation of transformers takes rejected tokens back."""
    model = build(name)
    ids = prompt(1)["input_ids"].repeat(1, 3)
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 30, "do_sample": False}
    plain = model.generate(**call)
    removed, cache = [], RollbackCache(model.config)
    crop = cache.crop
    cache.crop = lambda n: (removed.append(n), crop(n))[1]
    assert torch.equal(model.generate(**call, prompt_lookup_num_tokens=3, past_key_values=cache), plain)
    assert removed and min(removed) < 0, "nothing was ever taken back"


def test_assistant_model():
    model, assistant = build("llama"), build("llama")
    for parameter in assistant.parameters():
        parameter.data.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    ids = prompt(1)["input_ids"]
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 20, "do_sample": False}
    plain = model.generate(**call)
    cache = RollbackCache(model.config)
    assert torch.equal(model.generate(**call, assistant_model=assistant, past_key_values=cache), plain)


def states(batch, width, value=None, heads=2, dim=4):
    """Keys (and values, ten times as large) whose entries tell their position."""
    key = torch.arange(width, dtype=torch.float) if value is None else torch.full((width,), float(value))
    key = key[None, None, :, None].expand(batch, heads, width, dim)
    return key, 10 * key


def small(capacity=None, layers=2):
    return RollbackCache(LlamaConfig(**{**SIZES, "num_hidden_layers": layers}), capacity)


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
    cache = small(capacity=16)
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


def test_fixed_capacity():
    cache = small(capacity=4)
    cache.update(*states(1, 4), 0)
    with pytest.raises(ValueError, match=r"capacity=4.*5 slots.*None"):
        cache.update(*states(1, 1), 0)
    assert cache.length == 4, "a refused write must not move the pointer"
    cache.crop(-2)
    assert cache.update(*states(1, 2), 0)[0].shape[2] == 4
    for capacity in (0, -1):
        with pytest.raises(ValueError, match=f"capacity={capacity}.*at least 1"):
            small(capacity)


def test_seek():
    cache = small(capacity=8)
    cache.update(*states(1, 6), 0)
    cache.seek(2)
    keys, _ = cache.update(*states(1, 1, 9), 0)
    assert keys[0, 0, :, 0].tolist() == [0, 1, 9]
    cache.seek(6)  # ahead, over slots written before
    keys, _ = cache.update(*states(1, 1, 8), 0)
    assert keys[0, 0, :, 0].tolist() == [0, 1, 9, 3, 4, 5, 8]
    for length in (-1, 9):
        with pytest.raises(ValueError, match=f"move to {length}.*capacity is 8"):
            cache.seek(length)
    with pytest.raises(ValueError, match="capacity is None"):
        small().seek(1)


def test_rows_with_slots_of_their_own():
    """`place` writes each row where it says, and leaves the other slots alone."""
    cache = small(capacity=10)
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
    model = build("llama")
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
    cache = small(capacity=4, layers=1)
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
    cache = small(capacity=4, layers=1)
    cache.update(*states(1, 3, 5), 0)
    cache.reset()
    assert cache.length == 0
    assert cache.update(*states(1, 1, 2), 0)[0][0, 0, :, 0].tolist() == [2]


def test_masks_and_lengths_that_transformers_asks_for():
    cache = small(capacity=12, layers=1)
    cache.update(*states(1, 5), 0)
    assert cache.get_seq_length() == 5 and cache.get_mask_sizes(3, 0) == (8, 0)
    assert cache.layers[0].get_max_length() == 12 and small().layers[0].get_max_length() == -1
    assert cache.is_croppable and not any(cache.is_sliding)


def test_a_cache_that_nobody_holds_is_freed_at_once():
    cache = small()
    cache.update(*states(1, 3, 5), 0)
    alive = weakref.ref(cache.layers[0])
    gc.disable()
    try:
        del cache
        assert alive() is None, "not only once Python looks for cycles"
    finally:
        gc.enable()
