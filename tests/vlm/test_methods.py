"""What each method computes: against plain attention where nothing is left out, and against explicit masks."""

import pytest
import torch
from transformers import DynamicCache, StaticCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import mmaccel
from mmaccel import kernels
from mmaccel.cache import EvictingCache, SelectingCache
from mmaccel.kernels.native import workspace
from mmaccel.kernels.policies import COMPRESS, DECODE, PREFILL, Span
from mmaccel.vlm import CompressKV, SelectKV, SparsePrefill, examples
from mmaccel.vlm.decoder.attention import SessionAttention
from mmaccel.vlm.decoder.call import GenerateRun
from mmaccel.vlm.decoder.select_kv import LEARNED

BLOCKS = {"min_length": 32, "block_m": 16, "block_n": 16, "min_keys": 0, "dense_queries": 1, "always": True}
METHODS = [
    *(SparsePrefill(policy=name, budget=0.4, **BLOCKS) for name in PREFILL),
    *(SelectKV(policy=name, budget=0.2, dense_layers=1) for name in DECODE),
    *(CompressKV(policy=name, budget=0.2) for name in COMPRESS),
    CompressKV(budget=0.2, head_budgets=True),
]


def everything(q, k, lengths, *, count, state, scale):
    """A policy that chooses all tokens."""
    return torch.arange(k.shape[2], dtype=torch.int32).expand(*k.shape[:2], -1)


def fast(model, method, call):
    with mmaccel.accelerate(model, method) as session:
        return session.generate(**call), session.report


def alone(call, row):
    """The call of one row, without its padding."""
    keep = call["attention_mask"][row].bool()
    ids = call["input_ids"][row, keep][None]
    return {**call, "input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_row_alone_is_the_row_in_a_padded_batch(llama, method):
    model, arguments = llama
    call = arguments(3, max_new_tokens=4)
    call["attention_mask"][2, :31] = 0
    together, report = fast(model, method, call)
    assert report.engaged and not report.warnings and report.keys < report.plain_keys
    for row in range(3):
        tokens, _ = fast(model, method, alone(call, row))
        assert torch.equal(tokens[0, -4:], together[row, -4:]), f"row {row}"


@pytest.mark.parametrize("method", (SparsePrefill(budget=0.4, **BLOCKS), SelectKV(budget=0.2), CompressKV()), ids=str)
def test_calls_go_in_and_out_of_inference_mode(llama, method, monkeypatch):
    monkeypatch.setattr(workspace, "_buffers", workspace._Buffers())
    model, arguments = llama
    with mmaccel.accelerate(model, method) as session:
        with torch.inference_mode():
            inside = session.generate(**arguments())
        assert torch.equal(session.generate(**arguments()), inside) and session.report.engaged


@pytest.mark.parametrize("more", ({}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 3}), ids=str)
@pytest.mark.parametrize("batch", (1, 3))
def test_selecting_everything_is_plain(llama, batch, more, monkeypatch):
    """The selected path over all tokens: decoding, beams, drafts that are verified."""
    if batch > 1 and "prompt_lookup_num_tokens" in more:
        pytest.skip("transformers drafts for one row only")
    model, arguments = llama
    monkeypatch.setitem(DECODE, "token_select", everything)
    call = arguments(batch, 40, 12, **more)
    tokens, report = fast(model, SelectKV(budget=0.2, dense_layers=1), call)
    assert report.engaged and torch.equal(tokens, model.generate(**call))


@pytest.mark.parametrize("batch", (1, 3))
def test_all_blocks_are_plain(llama, batch):
    model, arguments = llama
    call = arguments(batch, return_dict_in_generate=True, output_logits=True)
    result, report = fast(model, SparsePrefill(budget=0.999, **BLOCKS), call)
    plain = model.generate(**call)
    assert report.engaged and report.keys == report.plain_keys and torch.equal(result.sequences, plain.sequences)
    assert torch.allclose(result.logits[0], plain.logits[0], atol=1e-3)


def test_chunked_prefill(llama):
    """Later chunks of a prompt are sparse too: all blocks of them are what one pass is."""
    model, arguments = llama
    call = arguments(1, 90, prefill_chunk_size=40)
    tokens, report = fast(model, SparsePrefill(budget=0.999, **BLOCKS), call)
    assert report.engaged and torch.equal(tokens, model.generate(**arguments(1, 90)))
    tokens, report = fast(model, CompressKV(budget=None, tokens=20, window=16), call)
    heads, layers = 4, 3
    # chunks of 40, 40 and 10: the second sees 20 kept tokens, the last too, and is short enough to stay
    chunks = 40 * 41 // 2 + 20 * 40 + 40 * 41 // 2 + 20 * 10 + 10 * 11 // 2
    assert report.keys == heads * layers * (chunks + sum(30 + step for step in range(1, 6)))


def test_compressed_cache_is_an_explicit_mask(llama):
    """`streaming` keeps the same tokens everywhere: sinks and the newest, at their own positions."""
    model, arguments = llama
    call = arguments(1, max_new_tokens=5)
    tokens, _ = fast(model, CompressKV(policy="streaming", budget=None, tokens=20), call)
    mask = torch.ones(84, 84, dtype=torch.bool).tril()
    mask[80:, 4:64] = False  # 4 sinks, 16 newest
    with torch.no_grad():
        logits = model(tokens[:, :-1], attention_mask=mask[None, None]).logits
    assert torch.equal(logits[0, 79:].argmax(-1), tokens[0, 80:])
    assert not torch.equal(tokens, model.generate(**call)), "the mask would not show"


# The needle: one key that late queries look for.


class Layer(torch.nn.Module):
    layer_idx, is_causal, num_key_value_groups = 0, True, 2


def haystack(queries, length=320, needle=97):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, n, 32, generator=generator) for h, n in ((4, queries), (2, length), (2, length)))
    k[:, :, needle] = 8.0
    q[:, :, -40:] = 8.0 + 0.1 * q[:, :, -40:]
    return q, k, v


def attend(method, cache, q, k, v):
    attention = SessionAttention([method])
    if cache is not None:
        cache.reader = attention
        k, v = cache.update(k, v, 0)
    output = attention(sdpa_attention_forward, Layer(), q, k, v, None)[0].transpose(1, 2)
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)
    return output[:, :, -1], dense[:, :, -1]


@pytest.mark.parametrize("policy", [name for name in PREFILL if name != "a_shape"])
def test_needle_in_a_sparse_prefill(policy):
    method = SparsePrefill(policy=policy, budget=0.4, **{**BLOCKS, "dense_queries": 0})
    sparse, dense = attend(method, None, *haystack(320))
    assert torch.allclose(sparse, dense, atol=1e-3)


def test_settings_reach_the_policy_of_a_sparse_prefill(monkeypatch):
    asked, policy = [], PREFILL["pooled_top_k"]

    def watch(query, key, **settings):
        asked.append(settings)
        return policy(query, key, **settings)

    monkeypatch.setitem(PREFILL, "pooled_top_k", watch)
    method = SparsePrefill(budget=0.4, min_length=32, block_m=16, block_n=32, always=True)
    attend(method, None, *haystack(320))
    assert asked == [{"budget": 0.4, "causal": True, "block_m": 16, "block_n": 32, "scale": None}]


@pytest.mark.parametrize("queries", (0, 1, 16, 40, 1000))
def test_the_last_queries_of_a_sparse_prefill_read_everything(queries):
    method = SparsePrefill(policy="a_shape", budget=0.1, **{**BLOCKS, "dense_queries": queries})
    attention = SessionAttention([method])
    attention.run = GenerateRun()
    q, k, v = haystack(320)
    sparse = attention(sdpa_attention_forward, Layer(), q, k, v, None)[0].transpose(1, 2)
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    same = (sparse - dense).abs().amax((0, 1, 3)) < 1e-4
    whole = 320 - 16 * -(-queries // 16) if queries < 320 else 0
    assert same[whole:].all()
    assert not whole or not same[whole - 16 : whole].all()


@pytest.mark.parametrize("policy", PREFILL)
def test_every_query_of_a_sparse_prefill_reads_the_nearest_keys(policy, monkeypatch):
    """As many as `min_keys`, where it sees so many; what the policy has chosen stays."""
    found, attend_to = [], kernels.block_sparse_attention
    monkeypatch.setattr(kernels, "block_sparse_attention", lambda q, k, v, plan, **how: found.append(plan) or attend_to(
        q, k, v, plan, **how
    ))  # fmt: skip
    for keys in (0, 70):
        attend(SparsePrefill(policy=policy, budget=0.2, **{**BLOCKS, "min_keys": keys, "dense_queries": 0}), None,
               *haystack(320))  # fmt: skip
    few, many = (plan.mask() for plan in found)
    visible = torch.ones(20, 20, dtype=torch.bool).tril()
    least = torch.arange(1, 21).clamp(max=5)
    assert not (few & ~many).any() and not (many & ~visible).any()
    assert torch.equal(many.sum(-1), torch.maximum(few.sum(-1), least).expand(many.shape[:3]))
    nearest = torch.ones(20, 20, dtype=torch.bool).triu(-4) & visible
    for row in (~few).sum(-1).nonzero().tolist():
        added = (many & ~few)[tuple(row)]
        gaps = (visible & ~few[tuple(row[:2])])[row[2]].nonzero().flatten()
        assert torch.equal(added.nonzero().flatten(), gaps[len(gaps) - int(added.sum()) :])
    assert (many | ~nearest)[:, :, :5].all(), "the first rows read all that they see"


def test_pairs_of_unequal_blocks_are_counted(monkeypatch):
    plans, policy = [], PREFILL["pooled_top_k"]
    monkeypatch.setitem(PREFILL, "pooled_top_k", lambda *a, **k: plans.append(policy(*a, **k)) or plans[-1])
    method = SparsePrefill(budget=0.4, min_length=32, block_m=16, block_n=32, min_keys=0, dense_queries=0, always=True)
    attention = SessionAttention([method])
    attention.run = GenerateRun()
    q, k, v = haystack(320)
    attention(sdpa_attention_forward, Layer(), q, k, v, None)
    (plan,) = plans
    seen = plan.mask().repeat_interleave(16, 2).repeat_interleave(32, 3)[:, :, :320, :320].tril()
    assert attention.run.keys.read() == int(seen.sum()) * 4 // seen.shape[1]


@pytest.mark.parametrize("policy", DECODE)
def test_needle_in_selected_tokens(llama, policy):
    method = SelectKV(policy=policy, budget=0.1, dense_layers=0)
    cache = SelectingCache(llama[0].config, DECODE[policy])
    q, k, v = haystack(1)
    for step in range(3):  # the first step of some policies reads everything
        selected, dense = attend(method, cache, *(x[:, :, : 320 if step == 0 else 1] for x in (q, k, v)))
        assert torch.allclose(selected, dense, atol=1e-3)


@pytest.mark.parametrize("policy", [name for name in COMPRESS if name != "streaming"])
def test_needle_in_a_compressed_cache(llama, policy):
    cache = EvictingCache(llama[0].config)
    attend(CompressKV(policy=policy, budget=0.1), cache, *haystack(320))
    layer = cache.layers[0]
    assert layer.length == 32 and bool((layer.positions[:, :, :32] == 97).any(-1).all())


def screen(length=320, first=64, button=100):
    """Keys with a flat picture of 12 x 16 tokens that is asked for, and one in it that stands out and is not."""
    q, k, v = haystack(length, length)
    k[:, :, first : first + 192] = k[:, :, first : first + 1].abs()
    k[:, :, button] *= -1
    return q, k, v


@pytest.mark.parametrize("padding", (0, 10))
def test_st_lite_knows_pictures_of_a_run(llama, padding):
    """Slots count padding, rows are apart, beams share the pictures of their prompt."""
    q, k, v = (torch.cat([x, x, x, x]) for x in screen())
    method = CompressKV(policy="st_lite", budget=0.2)
    attention = SessionAttention([method])
    attention.run = GenerateRun(visual=[[Span(64, 1, 12, 16)], []])
    cache = EvictingCache(llama[0].config)
    cache.reader = attention
    mask = torch.ones(320, 320, dtype=torch.bool).tril() & (torch.arange(320) >= padding)
    k, v = cache.update(k, v, 0)
    attention(sdpa_attention_forward, Layer(), q, k, v, mask.expand(4, 1, 320, 320))
    layer = cache.layers[0]
    kept = (layer.positions == 100).any(-1)
    assert kept[:2].all() and not kept[2:].any()


def test_st_lite_of_a_part_of_the_prompt_goes_by_attention(llama):
    q, k, v = screen()
    attention = SessionAttention([CompressKV(policy="st_lite", budget=0.2)])
    attention.run = GenerateRun(visual=[[Span(64, 2, 12, 16)]])  # the second frame is still to come
    cache = EvictingCache(llama[0].config)
    cache.reader = attention
    k, v = cache.update(k, v, 0)
    attention(sdpa_attention_forward, Layer(), q, k, v, None)
    assert not (cache.layers[0].positions == 100).any()


def test_a_row_that_is_short_does_not_speak_for_a_long_one(llama):
    """Of 70 tokens to read at most, one row has more and the other has not."""
    model, arguments = llama
    call = arguments(2, max_new_tokens=3)
    call["attention_mask"][1, :31] = 0
    tokens, report = fast(model, SelectKV(budget=None, tokens=70, dense_layers=0), call)
    spared = 4 * 3 * sum(80 + step - 70 for step in (1, 2))
    assert report.engaged and report.plain_keys - report.keys == spared and tokens.shape == (2, 83)


@pytest.mark.parametrize("policy", ("fasa", "double_sparsity"))
def test_policies_learn_from_the_end_of_the_prompt(llama, policy, monkeypatch):
    seen = []
    monkeypatch.setitem(LEARNED, policy, ("state", lambda query, key: seen.append((query, key))))
    cache = SelectingCache(llama[0].config, DECODE[policy])
    q, k, v = haystack(320)
    attend(SelectKV(policy=policy, dense_layers=0), cache, q, k, v)
    ((query, key),) = seen
    assert torch.equal(query, q[:, :, -64:]) and torch.equal(key, k)


def test_memory_of_plans_is_that_of_the_largest():
    attention = SessionAttention([SparsePrefill(budget=0.4, **BLOCKS)])
    attention.run = GenerateRun()
    held = []
    for length in (320, 64):
        q, k, v = haystack(length, length, needle=3)
        attention(sdpa_attention_forward, Layer(), q, k, v, None)
        held.append(attention.run.plan_bytes)
    assert held[0] == held[1] > 0


# Neutral, short and long


@pytest.mark.parametrize(
    "method",
    (
        SparsePrefill(min_length=81, always=True),
        SelectKV(budget=None, tokens=90),
        SelectKV(dense_layers=3),
        CompressKV(budget=None, tokens=80),
    ),
    ids=str,
)
def test_short_inputs_are_bit_identical(llama, method):
    model, arguments = llama
    call = arguments(3, return_dict_in_generate=True, output_logits=True)
    result, report = fast(model, method, call)
    plain = model.generate(**call)
    assert torch.equal(result.sequences, plain.sequences)
    assert all(torch.equal(a, b) for a, b in zip(result.logits, plain.logits, strict=True))
    assert not report.engaged and "did not engage: no " in report.warnings[0]
    assert report.keys == report.plain_keys > 0


def test_dense_where_that_is_faster(llama, monkeypatch):
    model, arguments = llama
    asked = []
    monkeypatch.setattr(kernels, "should_use_sparse", lambda *a, **how: asked.append((*a, how)))
    method = SparsePrefill(min_length=32, block_m=16, block_n=16, min_keys=0, dense_queries=0)
    tokens, report = fast(model, method, arguments(2))
    assert torch.equal(tokens, model.generate(**arguments(2)))
    assert [n for _, n, _, _ in asked] == [80, 75] * 3 and all(0.25 < share < 0.7 for share, _, _, _ in asked)
    assert all(how == {"causal": True, "dtype": torch.float32} for *_, how in asked)
    assert not report.engaged and "faster" in report.warnings[0]


def test_both_kinds_together(llama):
    model, arguments = llama
    with mmaccel.accelerate(model, SparsePrefill(budget=0.4, **BLOCKS), CompressKV()) as session:
        both = session.generate(**arguments(2))
        assert session.report.engaged and not session.report.warnings
        keys = session.report.keys
    assert keys < min(fast(model, m, arguments(2))[1].keys for m in (METHODS[0], CompressKV()))
    assert both.shape == (2, 86)


def test_other_masks_run_plainly(llama):
    """Padding in the middle: no wrong result, but a warning."""
    model, arguments = llama
    call = arguments(1)
    call["attention_mask"][0, 20:30] = 0
    plain = model.generate(**call)
    for method in (SparsePrefill(**BLOCKS), SelectKV(dense_layers=0), CompressKV()):
        tokens, report = fast(model, method, call)
        assert torch.equal(tokens, plain) and not report.engaged
        assert "more than causal with padding on the left" in report.warnings[0]


@pytest.mark.parametrize("method", METHODS[::4], ids=str)
def test_half_precision(method):
    model, arguments = examples.llama()
    model.to(torch.bfloat16)
    tokens, report = fast(model, method, arguments(2))
    assert tokens.shape == (2, 86) and report.engaged


def test_gradients_are_plain(llama):
    model, arguments = llama
    ids = arguments(1)["input_ids"]
    with mmaccel.accelerate(model, SparsePrefill(**BLOCKS)):
        loss = model(ids, labels=ids).loss
    assert loss.item() == model(ids, labels=ids).loss.item()
    loss.backward()
    model.zero_grad()


def test_policy_memory_starts_anew(llama):
    """Nothing a policy remembers reaches the next call, or another row of a reordered batch."""
    model, arguments = llama
    with mmaccel.accelerate(model, SelectKV(policy="recycled_attention", dense_layers=0)) as session:
        first = session.generate(**arguments(2))
        session.generate(**arguments(1, 61))
        assert torch.equal(session.generate(**arguments(2)), first) and not session.memory
    cache = SelectingCache(model.config, everything)
    key = torch.zeros(2, 2, 3, 8)
    for change in (
        lambda: cache.reorder_cache(torch.tensor([1, 0])),
        lambda: cache.crop(-1),
        lambda: cache.batch_select_indices(torch.tensor([0, 1])),
        lambda: cache.reset(),
    ):
        cache.update(key, key, 0)
        cache.layers[0].state((0,))["step"] = 1
        change()
        assert cache.layers[0].states == {}


def test_a_users_own_cache(llama):
    model, arguments = llama
    plain = model.generate(**arguments(2))
    for method in (SelectKV(dense_layers=0), CompressKV()):
        with mmaccel.accelerate(model, method) as session:
            fixed = StaticCache(config=model.config, max_cache_len=200)
            for own in ({"past_key_values": fixed}, {"cache_implementation": "static"}):
                assert torch.equal(session.generate(**arguments(2), **own), plain)
                assert "ran plainly: " in session.report.warnings[0] and not session.report.engaged
            assert torch.equal(session.generate(**arguments(2), use_cache=False), plain)
            assert "use_cache=False" in session.report.warnings[0]
    sparse = SparsePrefill(**BLOCKS)
    own = {"past_key_values": DynamicCache(config=model.config)}
    tokens, report = fast(model, sparse, {**arguments(2), **own})
    assert report.engaged and torch.equal(tokens, fast(model, sparse, arguments(2))[0])


def test_a_prompt_is_sparse_in_a_cache_of_fixed_length(llama):
    """Whose other slots are empty. Those of a padded batch have a mask, which says so."""
    model, arguments = llama
    method, call = SparsePrefill(budget=0.4, **BLOCKS), arguments(2)
    call["attention_mask"] = torch.ones_like(call["input_ids"])
    expected, usual = fast(model, method, call)
    tokens, report = fast(model, method, {**call, "cache_implementation": "static"})
    assert torch.equal(tokens, expected) and report.engaged and not report.warnings
    assert (report.keys, report.plain_keys) == (usual.keys, usual.plain_keys)
    padded = {**arguments(2), "cache_implementation": "static"}
    tokens, report = fast(model, method, padded)
    assert torch.equal(tokens, model.generate(**padded)) and not report.engaged
    assert "a padded batch with a cache of fixed length" in report.warnings[0]
