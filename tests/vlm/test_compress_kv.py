"""What `CompressKV` keeps by its window, its pooling and its budgets, and what a cache of uneven heads holds."""

import pytest
import torch
from largest_tensor import Largest
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import mmaccel
from mmaccel.cache import EvictingCache, RaggedLayer
from mmaccel.errors import SettingError
from mmaccel.kernels import policies
from mmaccel.vlm import CompressKV, examples
from mmaccel.vlm.decoder.attention import SessionAttention
from mmaccel.vlm.decoder.call import AttentionCall, GenerateRun
from mmaccel.vlm.decoder.compress_kv import _masked

LENGTH, COUNT = 320, 160


class Layer(torch.nn.Module):
    layer_idx, is_causal, num_key_value_groups = 0, True, 2


def states(queries=LENGTH, keys=LENGTH, seed=0):
    """Queries of four heads, keys and values of two; the first key head looks at few tokens."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, h, n, 32, generator=generator) for h, n in ((4, queries), (2, keys), (2, keys)))
    q[:, :2] *= 4
    return q, k, v


def compressed(model, method, room=8):
    """The first layer of a cache after a prompt, and the attention that reads it."""
    layer = RaggedLayer if method.head_budgets else EvictingCache(model.config).layers[0].__class__
    cache = EvictingCache(model.config, room, layer)
    cache.reader = attention = SessionAttention([method])
    q, k, v = states()
    attention(sdpa_attention_forward, Layer(), q, *cache.update(k, v, 0), None)
    return cache, cache.layers[0], attention


def positions(layer):
    return [set(head[head >= 0].tolist()) for head in layer.positions[0, :, : layer.length]]


@pytest.mark.parametrize(
    ("method", "chosen"),
    (
        (CompressKV(budget=0.5), {"window": 32, "recent": 128, "kernel": 15}),
        (CompressKV(budget=0.5, window=64), {"window": 64, "recent": 128, "kernel": 15}),
        (CompressKV(budget=0.5, window=5, kernel=1), {"window": 5, "recent": 128, "kernel": 1}),
        (CompressKV(budget=0.5, kernel=31), {"window": 32, "recent": 128, "kernel": 31}),
        (CompressKV(budget=0.5, recent=0.25), {"window": 32, "recent": 40, "kernel": 15}),
        (CompressKV(budget=0.5, recent=0, kernel=7), {"window": 32}),
    ),
    ids=str,
)
def test_window_and_kernel_are_those_of_the_policy(llama, method, chosen):
    _, layer, attention = compressed(llama[0], method)
    q, k, _ = states()
    wanted = policies.snap_kv(q[:, :, -chosen["window"] :], k, count=COUNT, **chosen)
    assert positions(layer) == [set(head) for head in wanted[0].tolist()]
    assert attention.run is None


def test_votes_are_left_room_in_a_small_budget():
    """By default two surroundings of 15 tokens, or half of what is kept; a share that is asked for is kept to."""
    assert [CompressKV()._newest(count) for count in (2, 32, 80, 160, 800)] == [1, 16, 50, 128, 640]
    assert [CompressKV(recent=0.9)._newest(count) for count in (2, 32, 800)] == [1, 28, 720]


@pytest.mark.parametrize(("window", "used"), ((None, 8), (32, 32)))
@pytest.mark.parametrize("kernel", (1, 7))
def test_fast_kv_has_a_window_of_its_own(llama, window, used, kernel):
    _, layer, _ = compressed(llama[0], CompressKV("fast_kv", 0.5, window=window, kernel=kernel))
    q, k, _ = states()
    wanted = set(policies.fast_kv(q[:, :, -used:], k, count=COUNT, window=used, kernel=kernel)[0].tolist())
    assert positions(layer) == [wanted, wanted]


def test_a_window_that_does_not_fit_is_a_warning(llama):
    model, arguments = llama
    with mmaccel.accelerate(model, CompressKV(budget=0.2, window=12)) as fast:
        fast.generate(**arguments())
        assert fast.report.warnings == ["CompressKV: of window=12, 8 vote, half of the 16 tokens kept"]
    for method in (CompressKV(budget=0.2), CompressKV(budget=0.2, window=8), CompressKV("streaming", 0.2, window=64)):
        with mmaccel.accelerate(model, method) as fast:
            fast.generate(**arguments())
            assert fast.report.engaged and not fast.report.warnings


@pytest.mark.parametrize("head_budgets", (False, True))
def test_keys_are_counted_without_padding(llama, head_budgets):
    """Prompts of 80 and 75 tokens in a batch of 80, of which 16 and 15 are kept, and five steps."""
    model, arguments = llama
    heads, layers, steps = 4, 3, 5
    with mmaccel.accelerate(model, CompressKV(budget=0.2, head_budgets=head_budgets)) as fast:
        fast.generate(**arguments(2))
        report = fast.report
    plain = sum(n * (n + 1) // 2 for n in (80 + steps, 75 + steps))
    prompt = sum(n * (n + 1) // 2 for n in (80, 75))
    decoding = sum(kept + step for kept in (16, 15) for step in range(1, steps + 1))
    assert report.plain_keys == heads * layers * plain and report.keys == heads * layers * (prompt + decoding)


def test_pairs_of_a_chunk_that_the_kernel_masks():
    query, key = torch.zeros(2, 4, 5, 8), torch.zeros(2, 2, 9, 8)
    call = AttentionCall(0, query, key, key, None, None, None, None, lambda: query, GenerateRun())
    assert call.plain_pairs() == 2 * 4 * 15
    step = AttentionCall(0, query[:, :, :1], key, key, None, None, None, None, lambda: query, GenerateRun())
    assert step.plain_pairs() == 2 * 4 * 9, "of one token it masks nothing"


def test_query_heads_share_the_mask_of_their_key_head():
    """A turn of thousands of tokens: a mask for each of them takes many gigabytes."""
    query, key, value = states(40, 60)
    visible = torch.rand(1, 2, 40, 60, generator=torch.Generator().manual_seed(1)) > 0.3
    call = AttentionCall(0, query, key, value, None, 0.3, None, None, lambda: query, GenerateRun())
    each = (x.repeat_interleave(2, 1) for x in (key, value, visible))
    expected = torch.nn.functional.scaled_dot_product_attention(query, *each, scale=0.3)
    with Largest() as largest:
        torch.testing.assert_close(_masked(call, visible), expected)
    assert largest.made < 4 * 40 * 60 * 4


def test_heads_share_the_budget_and_its_memory(llama):
    method = CompressKV(budget=0.25, head_budgets=True, recent=0, kernel=7)  # as published
    cache, layer, attention = compressed(llama[0], method, room=8)
    q, k, v = states()
    wanted = policies.snap_kv(q[:, :, -32:], k, count=80, head_budgets=True)[0]
    kept = [set(head[head >= 0].tolist()) for head in wanted]
    assert [positions(head)[0] for head in layer.heads] == kept
    lengths = [head.length for head in layer.heads]
    assert sum(lengths) == 160 and min(lengths) < 60 and max(lengths) == layer.length
    slot = 2 * 32 * 4 + 4  # a key, a value and a position
    assert cache.nbytes() == cache.shared.allocated == (160 + 2 * 8) * slot
    whole = 2 * LENGTH * slot
    assert cache.peak == whole + cache.nbytes(), "while heads are cut out of it, the prompt is still there"
    # a decoding step, and a draft of three: each head sees what it kept, and what came since
    for start, new in ((LENGTH, 1), (LENGTH + 1, 3)):
        query, key, value = states(new, new, seed=start)
        output = attention(sdpa_attention_forward, Layer(), query, *cache.update(key, value, 0), None)[0].transpose(
            1, 2
        )
        k, v = torch.cat([k, key], 2), torch.cat([v, value], 2)
        seen = torch.ones(new, start + new, dtype=torch.bool).tril(start).repeat(4, 1, 1)
        for number, tokens in enumerate(kept):
            seen[2 * number : 2 * number + 2, :, [i for i in range(LENGTH) if i not in tokens]] = False
        dense = torch.nn.functional.scaled_dot_product_attention(query, k, v, seen, enable_gqa=True)
        assert torch.allclose(output, dense, atol=1e-5)
    assert layer.total == cache.get_seq_length() == LENGTH + 4 and layer.appended == 36


def test_later_passes_keep_how_the_heads_share(llama):
    cache, layer, attention = compressed(llama[0], CompressKV(budget=0.25, head_budgets=True))
    before = [head.length for head in layer.heads]
    q, k, v = states(40, 40, seed=1)
    attention(sdpa_attention_forward, Layer(), q, *cache.update(k, v, 0), None)
    after = [head.length for head in layer.heads]
    assert layer.length == max(after) and layer.appended == min(head.appended for head in layer.heads)
    held = [40 + count for count in before]
    assert after == [pytest.approx(90 * count / (sum(held) / 2), abs=1) for count in held] and sum(after) <= 180
    assert all(set(range(330, 360)) <= positions(head)[0] for head in layer.heads), "the newest tokens stay"


@pytest.mark.parametrize(("window", "few"), ((None, 32), (5, 5), (40, 40)))
def test_a_later_pass_is_a_turn_if_it_is_longer_than_the_window(llama, window, few):
    """What is not, keeps all its tokens: steps and drafts."""
    cache, layer, attention = compressed(llama[0], CompressKV(budget=None, tokens=100, window=window))
    for number, kept in ((few, 100 + few), (1, 101 + few), (few + 1, 100)):
        q, k, v = states(number, number, seed=1)
        attention(sdpa_attention_forward, Layer(), q, *cache.update(k, v, 0), None)
        assert layer.length == kept


@pytest.mark.parametrize("tokens", (2, 10, 20))
def test_a_short_prompt_is_a_prompt(llama, tokens):
    cache = EvictingCache(llama[0].config, 4)
    cache.reader = attention = SessionAttention([CompressKV("streaming", budget=None, tokens=tokens)])
    q, k, v = states(20, 20)
    attention.run = run = GenerateRun()
    attention(sdpa_attention_forward, Layer(), q, *cache.update(k, v, 0), None)
    layer = cache.layers[0]
    assert (layer.length, layer.evicted) == (tokens, tokens < 20)
    assert run.engaged == ({"vlm.CompressKV"} if tokens < 20 else set())


def test_rows_that_keep_all_beside_one_that_does_not(llama):
    """The padding of each row is known from then on."""
    cache = EvictingCache(llama[0].config, 4)
    cache.reader = attention = SessionAttention([CompressKV("streaming", budget=None, tokens=12)])
    q, k, v = (x.expand(3, -1, -1, -1) for x in states(20, 20))
    starts = torch.tensor([0, 10, 8])
    mask = torch.ones(20, 20, dtype=torch.bool).tril() & (torch.arange(20) >= starts[:, None, None])
    attention(sdpa_attention_forward, Layer(), q, *cache.update(k, v, 0), mask[:, None])
    layer = cache.layers[0]
    assert layer.hidden == starts.tolist() and layer.starts == [0, 2, 0]
    held = [[slot for slot in row if slot >= 0] for row in layer.positions[:, 1, : layer.length].tolist()]
    assert held == [[*range(4), *range(12, 20)], [*range(10, 20)], [*range(8, 20)]]


def test_room_of_its_cache_is_that_of_the_new_tokens(llama):
    config = llama[0].config
    assert [CompressKV().make_cache(config, 50, new).shared.room for new in (0, 1, 9)] == [1, 1, 9]
    layers = [CompressKV(head_budgets=shared).make_cache(config, 50, 9).layers[0] for shared in (False, True)]
    assert [isinstance(layer, RaggedLayer) for layer in layers] == [False, True]
    bytes_of = lambda method, new=9: method.cache_bytes(config, 2, 50, new, torch.float32)  # noqa: E731
    assert bytes_of(CompressKV(budget=0.5)) == bytes_of(CompressKV(budget=None, tokens=25))
    assert bytes_of(CompressKV(budget=0.5)) != bytes_of(CompressKV(budget=None, tokens=24))
    assert bytes_of(CompressKV(), 0) == bytes_of(CompressKV(), 1) < bytes_of(CompressKV(), 2)


def test_uneven_heads_take_back_what_all_of_them_have(llama):
    cache = EvictingCache(llama[0].config, 4, RaggedLayer)
    cache.reader = SessionAttention([])
    cache.update(*states(1, 6)[1:], 0)
    layer = cache.layers[0]
    layer.keep(torch.tensor([[[0, 5, -1], [3, 4, 5]]]))
    assert (layer.length, layer.total, layer.appended) == (3, 6, 1)
    cache.update(*states(1, 2)[1:], 0)
    assert (layer.length, layer.total, layer.appended) == (5, 8, 3)
    with pytest.raises(ValueError, match="cannot remove 4 tokens: only 3 were added"):
        cache.crop(-4)


def test_a_cache_of_uneven_heads_takes_tokens_and_rows_back(llama):
    cache, layer, _ = compressed(llama[0], CompressKV(budget=0.25, head_budgets=True))
    lengths = [head.length for head in layer.heads]
    cache.update(*states(1, 3)[1:], 0)
    cache.crop(-2)
    assert cache.get_seq_length() == LENGTH + 1 and [head.length for head in layer.heads] == [n + 1 for n in lengths]
    with pytest.raises(ValueError, match="cannot remove 60 tokens"):
        cache.crop(-60)
    cache.batch_repeat_interleave(2)
    assert layer.hidden == [0, 0]
    cache.reorder_cache(torch.tensor([1, 0]))
    assert all(head.keys.shape[0] == 2 for head in layer.heads) and layer.hidden == [0, 0]
    cache.reader.active = False
    with pytest.raises(ValueError, match="use it within the session that made it"):
        cache.update(*(x.expand(2, -1, -1, -1) for x in states(1, 1)[1:]), 0)
    cache.reset()
    assert not layer.heads and cache.nbytes() == cache.shared.allocated == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    (
        ({"window": -1}, "window=-1"),
        ({"kernel": 4}, "kernel=4.*odd"),
        ({"kernel": 0}, "kernel=0"),
        ({"policy": "streaming", "kernel": 5}, "kernel=5.*snap_kv"),
        ({"head_budgets": 1}, "head_budgets=1"),
        ({"policy": "fast_kv", "head_budgets": True}, "head_budgets=True.*snap_kv"),
    ),
)
def test_bad_settings(settings, message):
    with pytest.raises(SettingError, match=message):
        CompressKV(**settings)


def test_the_cache_of_a_compiled_model_is_compressed_too():
    (model, arguments), method = examples.llama(num_hidden_layers=1), CompressKV(**CompressKV.engaging)
    call = arguments(max_new_tokens=3)
    with mmaccel.accelerate(model, method) as fast:
        expected, keys = fast.generate(**call), fast.report.keys
    model.compile(backend="eager")
    with mmaccel.accelerate(model, method) as fast:
        assert torch.equal(fast.generate(**call), expected)
        assert fast.report.engaged and fast.report.keys == keys and not fast.report.warnings
