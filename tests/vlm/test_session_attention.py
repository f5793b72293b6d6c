"""What the attention of a session leaves to the model, whom it asks, and which scale and mask it reads with."""

from types import SimpleNamespace

import pytest
import torch
from largest_tensor import Largest
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache, StaticCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import mmaccel
from mmaccel import private
from mmaccel.cache import EvictingCache, SelectingCache
from mmaccel.decoding.setting import tokens_made
from mmaccel.errors import UnsupportedTargetError
from mmaccel.kernels import policies
from mmaccel.kernels.policies import COMPRESS, DECODE, PREFILL, Span
from mmaccel.vlm import CompressKV, SelectKV, SparsePrefill, examples
from mmaccel.vlm.decoder import generation, rows
from mmaccel.vlm.decoder.attention import SessionAttention
from mmaccel.vlm.decoder.call import AttentionCall, GenerateRun
from mmaccel.vlm.decoder.compress_kv import _visual
from mmaccel.vlm.decoder.generation import new_tokens
from mmaccel.vlm.decoder.rows import causal_pairs, left_padding, runs, visible_in_blocks

CONFIG = examples.llama()[0].config


class Layer(torch.nn.Module):
    layer_idx, is_causal, num_key_value_groups = 0, True, 2


def states(queries, keys, batch=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, h, n, 8, generator=generator) for h, n in ((4, queries), (2, keys), (2, keys))]


def left_padded(keys, *starts):
    """The mask of a prompt, rows padded up to their starts."""
    seen = torch.arange(keys) >= torch.tensor(starts)[:, None]
    return (torch.ones(keys, keys, dtype=torch.bool).tril() & seen[:, None])[:, None]


class Told:
    """A method that notes its calls and answers with a number, or not at all."""

    decodes = attends = True

    def __init__(self, answer=None):
        self.answer, self.asked, self.after_calls = answer, [], []

    def attend(self, call):
        self.asked.append((call.layer_idx, call.starts))
        return None if self.answer is None else torch.full_like(call.query, self.answer)

    def after(self, call):
        self.after_calls.append(call.starts)


def plainly(module, query, key, value, mask, **more):
    return query.transpose(1, 2), more


@pytest.mark.parametrize(
    ("more", "reason"),
    (
        ({"dropout": 0.1}, "dropout is on: call model.eval()"),
        ({"is_causal": False}, "its attention is not causal"),
        ({"sliding_window": 3}, "it has a sliding window"),
        ({"softcap": 3.0}, "its attention has softcap"),
        ({"position_bias": 1, "s_aux": 2}, "its attention has s_aux, position_bias"),
    ),
    ids=str,
)
def test_what_no_method_knows_runs_plainly_and_says_so_once(more, reason):
    method, given = Told(9), []
    attention = SessionAttention([method])
    attention.run = run = GenerateRun()
    query, key, value = states(4, 4)

    def original(*args, **kwargs):
        given.append(kwargs)
        return plainly(*args, **kwargs)

    for _ in range(2):
        output, weights = attention(original, Layer(), query, key, value, None, scaling=0.5, **more)
        assert torch.equal(output, query.transpose(1, 2)) and weights is None
    assert not method.asked and not method.after_calls
    assert run.warnings == [f"layer 0 and others like it ran plainly: {reason}"]
    assert given == [{"scaling": 0.5, "dropout": 0.0, "is_causal": None, **more}] * 2
    assert run.keys.read() == run.plain_keys.read() == 2 * 4 * 10


def test_a_module_that_is_not_causal_is_left_alone_unless_the_call_says_otherwise():
    method = Told(9)
    attention, module = SessionAttention([method]), Layer()
    module.is_causal = False
    attention(plainly, module, *states(4, 4), None)
    assert not method.asked
    attention(plainly, module, *states(4, 4), None, is_causal=True)
    assert method.asked == [(0, [0])]


@pytest.mark.parametrize("shape", ((1, 2, 4, 6), (1, 3, 4, 8)), ids=("narrow values", "odd heads"))
def test_keys_that_do_not_fit_are_left_to_the_model(shape):
    method = Told(9)
    attention = SessionAttention([method])
    attention.run = run = GenerateRun()
    query, key, _ = states(4, 4)
    value = torch.zeros(shape)
    attention(plainly, Layer(), query, key if shape[1] == 2 else value, value, None)
    assert not method.asked and "its keys and values differ in shape" in run.warnings[0]


def test_the_first_method_that_answers_is_taken_and_all_are_told_after():
    methods = Told(), Told(2.0), Told(3.0)
    output, _ = SessionAttention(methods)(plainly, Layer(), *states(4, 4), None)
    assert (output == 2).all() and output.shape == (1, 4, 4, 8)
    assert [len(method.asked) for method in methods] == [1, 1, 0]
    assert [len(method.after_calls) for method in methods] == [1, 1, 1]


def test_methods_on_prompts_alone_are_not_asked_in_steps_of_one_token():
    method, given = Told(9), []
    method.decodes = False
    attention = SessionAttention([method])
    attention.run = run = GenerateRun()

    def original(*args, **kwargs):
        given.append((args[4], kwargs))
        return plainly(*args, **kwargs)

    query, key, value = states(1, 6)
    output, weights = attention(original, Layer(), query, key, value, None, scaling=0.5)
    assert torch.equal(output, query.transpose(1, 2)) and weights is None and not method.asked
    assert given == [(None, {"scaling": 0.5, "dropout": 0.0, "is_causal": None})]
    assert run.keys.read() == run.plain_keys.read() == 4 * 6, "four heads, six keys each"
    attention(original, Layer(), *states(4, 4), None)
    assert method.asked == [(0, [0])] and method.after_calls == [[0]], "a prompt is theirs"
    method.decodes = True
    SessionAttention([method])(original, Layer(), query, key, value, None)
    assert len(method.asked) == 2


def test_each_mask_is_read_for_itself():
    """Two of one shape one after the other, and one mask for keys of another number."""
    method = Told()
    attention = SessionAttention([method])
    attention.run = GenerateRun()
    for starts in ((0, 2), (3, 0)):
        mask = left_padded(6, *starts)
        for _ in range(2):
            attention(plainly, Layer(), *states(6, 6, batch=2), mask)
    assert [starts for _, starts in method.asked] == [[0, 2], [0, 2], [3, 0], [3, 0]]
    attention(plainly, Layer(), *states(3, 6, batch=2), mask)
    assert method.asked[-1] == (0, None), "it is no mask of these"


def test_keys_that_changed_after_the_cache_are_refused_and_forgotten():
    cache = SelectingCache(CONFIG, DECODE["token_select"], 16)
    cache.reader = attention = SessionAttention([Told()])
    query, key, value = states(4, 4)
    cache.update(key, value, 0)
    with pytest.raises(UnsupportedTargetError, match="changes its keys between the cache and attention"):
        attention(plainly, Layer(), query, key.clone(), value, None)
    attention(plainly, Layer(), query, key, value, None)
    assert len(attention.methods[0].asked) == 1, "a call without a cache is none of the one before"


@pytest.mark.parametrize("queries", (1, 40))
def test_the_scale_of_a_model_reaches_a_compressed_cache(queries):
    """All of the prompt but a few tokens is kept; few queries and many take different ways."""
    cache = EvictingCache(CONFIG, 64)
    cache.reader = attention = SessionAttention([CompressKV(budget=None, tokens=60)])
    query, key, value = states(64, 64)
    attention(sdpa_attention_forward, Layer(), query, *cache.update(key, value, 0), None, scaling=0.9)
    kept = cache.layers[0].positions[0, :, : cache.layers[0].length].long()
    new = states(queries, queries, seed=1)
    output, _ = attention(sdpa_attention_forward, Layer(), new[0], *cache.update(*new[1:], 0), None, scaling=0.9)
    seen = torch.zeros(2, queries, 64 + queries, dtype=torch.bool)
    seen[:, :, 64:] = torch.ones(queries, queries, dtype=torch.bool).tril()
    for head in range(2):
        seen[head, :, kept[head][kept[head] >= 0]] = True
    key, value = torch.cat([key, new[1]], 2), torch.cat([value, new[2]], 2)
    for scale in (0.9, None):
        dense = scaled_dot_product_attention(
            new[0], key, value, seen.repeat_interleave(2, 0), scale=scale, enable_gqa=True
        )
        assert torch.allclose(output.transpose(1, 2), dense, atol=1e-4) == (scale == 0.9)


def test_the_scale_of_a_model_reaches_selected_tokens_and_sparse_blocks():
    """With all but a little read, and the same scale, what comes is near to what all would give."""
    query, key, value = states(64, 64)
    sparse = SparsePrefill(budget=0.99, min_length=32, block_m=16, block_n=16, always=True)
    output, _ = SessionAttention([sparse])(plainly, Layer(), query, key, value, None, scaling=0.9)
    dense = scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.9, enable_gqa=True)
    assert torch.allclose(output.transpose(1, 2), dense, atol=1e-4)
    cache = SelectingCache(CONFIG, lambda q, k, lengths, *, count, state, scale: chosen, 80)
    chosen = torch.arange(65, dtype=torch.int32).expand(1, 2, -1)
    cache.reader = attention = SessionAttention([SelectKV(budget=None, tokens=64, dense_layers=0)])
    attention(sdpa_attention_forward, Layer(), query, *cache.update(key, value, 0), None, scaling=0.9)
    new = states(1, 1, seed=1)
    output, _ = attention(plainly, Layer(), new[0], *cache.update(*new[1:], 0), None, scaling=0.9)
    key, value = torch.cat([key, new[1]], 2), torch.cat([value, new[2]], 2)
    dense = scaled_dot_product_attention(new[0], key, value, scale=0.9, enable_gqa=True)
    assert torch.allclose(output.transpose(1, 2), dense, atol=1e-4)


def planted():
    """Queries of which one head asks for token 20, and all a little less for token 30.

    At a scale of 1 the one head outvotes the others; at 0.01 all votes are nearly even, and those of more heads win.
    """
    query, key, value = states(64, 64)
    query, key = torch.zeros_like(query), torch.zeros_like(key)
    key[:, :, 20, 0] = key[:, :, 30, 1] = 1.0
    query[:, 0::2, :, 0], query[..., 1] = 4.0, 2.5
    return query, key, value


def chosen_by(method, scaling, monkeypatch):
    """What a policy is given as scale, and gives, in a pass over a prompt and one step."""
    seen = []
    for table in (DECODE, COMPRESS, PREFILL):
        if method.policy in table:
            policy = table[method.policy]

            def noted(*given, policy=policy, **more):
                found = policy(*given, **more)
                seen.append((more["scale"], found if isinstance(found, torch.Tensor) else found.col))
                return found

            monkeypatch.setitem(table, method.policy, noted)
    query, key, value = planted()
    cache = method.make_cache(CONFIG, 64, 8) if method.replaces_cache else SelectingCache(CONFIG, None, 80)
    cache.reader = attention = SessionAttention([method])
    for part in (slice(0, 60), slice(60, 61)):
        given = (x[:, :, part] for x in (key, value))
        attention(sdpa_attention_forward, Layer(), query[:, :, part], *cache.update(*given, 0), None, scaling=scaling)
    monkeypatch.undo()
    return seen


@pytest.mark.parametrize(
    "method",
    [CompressKV(policy, budget=None, tokens=2, kernel=1) for policy in ("snap_kv", "fast_kv", "st_lite")]
    + [CompressKV("streaming", budget=None, tokens=2)]
    + [SelectKV(policy, budget=None, tokens=2, dense_layers=0) for policy in DECODE]
    + [
        SparsePrefill(policy, 0.5, min_length=32, block_m=16, block_n=16, min_keys=0, dense_queries=0, always=True)
        for policy in PREFILL
    ],
    ids=lambda method: method.policy,
)
def test_policies_vote_by_the_scale_of_the_model(method, monkeypatch):
    choices = {}
    for scaling in (1.0, 0.01):
        choices[scaling] = chosen_by(method, scaling, monkeypatch)
        assert choices[scaling] and all(scale == scaling for scale, _ in choices[scaling])
    if method.policy in ("snap_kv", "token_select"):
        for scaling, token in ((1.0, 20), (0.01, 30)):
            assert all(row[0] == token for row in choices[scaling][-1][1].flatten(0, 1).tolist())


@pytest.mark.parametrize("method", (SelectKV(budget=None, tokens=8), CompressKV(budget=0.3)))
def test_attention_that_is_switched_within_a_session_is_that_of_the_model(method):
    """As continuous batching does: a method has no part in it, and all of it is the model's own."""
    model, arguments = examples.llama()
    given, names = arguments(), []

    def other(module, query, key, value, mask, **more):
        names.append(module.config._attn_implementation)
        return sdpa_attention_forward(module, query, key * 0.5, value, mask, **more)

    private.register_attention("other", other)
    try:
        for name in ("other", "eager"):
            model.set_attn_implementation(name)
            plain = model.generate(**given)
            model.set_attn_implementation("sdpa")
            with mmaccel.accelerate(model, method) as fast:
                model.set_attn_implementation(name)
                assert torch.equal(fast.generate(**given), plain)
                said = f"{method} ran plainly: attn_implementation was set to {name!r} since accelerate(), call"
                assert fast.report.warnings == [f"{said} model.set_attn_implementation('sdpa')"]
                model.set_attn_implementation("sdpa")
                fast.generate(**given)
                assert fast.report.engaged and not fast.report.warnings
    finally:
        private.unregister_attention("other")
    assert {*names} == {"other"}


@pytest.mark.parametrize("batch", (1, 2))
def test_switched_attention_refuses_a_cache_that_it_cannot_read(batch):
    """Rows of a padded batch keep different numbers of tokens, of which only the session's attention knows."""
    model, arguments = examples.llama()
    with mmaccel.accelerate(model, CompressKV(budget=0.3)) as fast:
        result = fast.generate(**arguments(batch), return_dict_in_generate=True)
        cache = result.past_key_values
        call = {"input_ids": result.sequences, "past_key_values": cache, "max_new_tokens": 3, "do_sample": False}
        model.set_attn_implementation("eager")
        if batch == 1:
            assert fast.generate(**call).shape == (1, result.sequences.shape[1] + 3)
        else:
            with pytest.raises(ValueError, match="with attn_implementation='sdpa'"):
                fast.generate(**call)
        model.set_attn_implementation("sdpa")


def test_each_beam_has_the_pictures_of_its_prompt():
    known = [[Span(3, 1, 1, 2)], [Span(5, 1, 1, 2)]]
    run = GenerateRun(visual=known)
    query, key, _ = states(10, 10, batch=4)
    call = AttentionCall(0, query, key, key, None, None, None, [0] * 4, lambda: query, run)
    assert _visual(call, (0, 4), 0) == [known[0], known[0], known[1], known[1]]
    assert _visual(call, (2, 3), 4) == [[Span(1, 1, 1, 2)]], "slots after the padding"
    assert _visual(call, (0, 1), 4) is None, "a picture in the padding"
    run.visual = [*known, known[0]]
    assert _visual(call, (0, 4), 0) is None, "no whole number of beams"


def test_where_the_rows_of_a_mask_begin():
    mask = left_padded(6, 0, 2, 6)
    assert left_padding(mask, 3, 6, 6) == [0, 2, 6], "the last row is nothing but padding"
    assert left_padding(mask[:, :, -2:], 3, 2, 6) == [0, 2, 6]
    assert left_padding(mask[1:2], 3, 6, 6) == [2, 2, 2], "one row stands for all"
    gap, ahead = mask.clone(), mask.clone()
    gap[0, 0, 4, 1], ahead[1, 0, 3, 4] = False, True
    others = gap, ahead, mask.float(), mask[:, 0], mask.expand(-1, 2, -1, -1), mask[..., :5], mask[:, :, :5]
    assert [left_padding(other, 3, 6, 6) for other in others] == [None] * len(others)


def test_rows_of_a_call_without_a_mask_begin_where_the_kernel_masks_rightly():
    assert [left_padding(None, 2, queries, 6) for queries in (1, 6, 2)] == [[0, 0], [0, 0], None]


def test_runs_of_rows_and_pairs_of_tokens():
    assert runs([3, 3, 0, 3]) == [(0, 2), (2, 3), (3, 4)] and runs([(0, 1), (0, 2), (0, 2)]) == [(0, 1), (1, 3)]
    assert [causal_pairs(queries, 5) for queries in (1, 2, 5, 9)] == [5, 9, 15, 15]
    for queries, window in ((1, 2), (2, 2), (4, 3), (5, 5), (5, 9), (9, 1)):
        seen = torch.ones(5, 5, dtype=torch.bool).tril().triu(1 - window)[-queries:]
        assert causal_pairs(queries, 5, window) == seen.sum()
    seen = torch.ones(5, 7, dtype=torch.bool).tril(2)
    blocks = [[int(seen[i : i + 2, j : j + 3].sum()) for j in (0, 3, 6)] for i in (0, 2, 4)]
    assert visible_in_blocks(5, 7, 2, 3, "cpu").tolist() == blocks


@pytest.mark.parametrize(("queries", "keys"), ((1, 1), (1, 70), (33, 70), (70, 70), (64, 64), (64, 129)))
def test_pairs_in_blocks_are_counted_by_blocks(queries, keys):
    """Queries times blocks of keys are gigabytes for a prompt of 128,000 tokens."""
    seen = torch.ones(queries, keys, dtype=torch.long).tril(keys - queries)
    expected = torch.stack([block.sum(0) for block in seen.split(16)])
    expected = torch.stack([block.sum(1) for block in expected.split(32, 1)], 1)
    with Largest() as largest:
        found = visible_in_blocks(queries, keys, 16, 32, "cpu")
    assert torch.equal(found, expected) and largest.made <= max(found.nbytes, 64)


def test_a_mask_is_looked_at_a_part_at_a_time(monkeypatch):
    mask = left_padded(64, 0, 2, 6)
    wrong = mask.clone()
    wrong[1, 0, 63, 30] = False
    with Largest() as largest:
        monkeypatch.setattr(rows, "AT_ONCE", 3 * 64 * 4)
        assert left_padding(mask, 3, 64, 64) == [0, 2, 6] and left_padding(wrong, 3, 64, 64) is None
    assert largest.made <= mask.nbytes // 8


@pytest.mark.parametrize("shape", ((1, 1), (2, 1), (2, 4)))
def test_pairs_under_a_mask_are_counted_once_for_all_heads(shape):
    query, key, value = states(10, 10, batch=2)
    mask = torch.rand(*shape, 10, 10, generator=torch.Generator().manual_seed(0)) > 0.5
    call = AttentionCall(0, query, key, value, mask, None, None, None, lambda: query, GenerateRun())
    with Largest() as largest:
        assert call.plain_pairs() == mask.expand(2, 4, -1, -1).sum()
        largest.read = 0
        call.plain_pairs()
    assert largest.read == mask.numel()


def selecting(layer_idx, queries, keys, starts, policy="token_select", batch=2):
    """A call over our cache, in a layer of the model."""
    layer = SelectingCache(CONFIG, DECODE[policy]).layers[0]
    query, key, value = states(queries, keys, batch)
    return AttentionCall(layer_idx, query, key, value, None, None, layer, starts, lambda: query, GenerateRun())


def test_which_steps_read_selected_tokens():
    """Those of few queries, after a prompt, behind the dense layers, of which some row has more than it may read."""
    method = SelectKV(budget=None, tokens=8, dense_layers=2)
    cases = ((2, 1, 50), (2, 32, 50), (1, 1, 50), (2, 33, 50), (2, 32, 32), (2, 1, 8), (2, 1, 9))
    found = [method.attend(selecting(*case, [0, 0])) is not None for case in cases]
    assert found == [True, True, False, False, False, False, True]
    assert method.attend(selecting(2, 1, 50, [0, 42])) is not None
    assert method.attend(selecting(2, 1, 50, [42, 45])) is None
    call = selecting(2, 1, 50, [0, 0])
    call.cached = None
    assert method.attend(call) is None


@pytest.mark.parametrize(("policy", "name"), (("fasa", "pairs"), ("double_sparsity", "channels")))
def test_what_a_policy_learns_of_a_prompt_is_kept_by_its_rows(policy, name):
    method = SelectKV(policy=policy, dense_layers=2)
    call = selecting(2, 40, 40, [0, 0, 9, 40], policy, batch=4)
    method.after(call)
    assert set(call.cached.states) == {(0, 1), (2,)}, "rows that begin alike are asked for together, padding is not"
    learn = getattr(policies, {"fasa": "dominant_pairs", "double_sparsity": "label_channels"}[policy])
    expected = learn(call.query[2:3, :, 9:], call.key[2:3, :, 9:])
    assert list(call.cached.states[2,]) == [name] and torch.equal(call.cached.states[2,][name], expected)
    for other in ((1, 40, 40, [0, 0]), (2, 32, 40, [0, 0]), (2, 40, 40, None)):
        call = selecting(*other, policy)
        method.after(call)
        assert not call.cached.states


def test_lengths_of_a_call():
    model, _ = examples.llama()
    assert new_tokens(model, {"max_new_tokens": 7, "max_length": 9}, 5) == 7
    assert new_tokens(model, {"max_length": 9}, 5) == 4 and new_tokens(model, {"max_length": 9}, 30) == 1
    model.generation_config.max_length = None
    assert new_tokens(model, {}, 5) == 20, "as in transformers"
    result, ids = torch.zeros(3, 9), torch.zeros(3, 4)
    for given in ({"input_ids": ids}, {"inputs": ids}):
        assert tokens_made(result, given) == tokens_made(SimpleNamespace(sequences=result), given) == 3 * 5
    assert tokens_made(result[None], {"input_ids": ids}) == 3 * 5, "as continuous batching returns them"
    assert tokens_made(result, {}) == tokens_made(result, {"input_ids": None}) == 3 * 8, "behind the first token"
    assert tokens_made(result, {"inputs_embeds": torch.zeros(3, 4, 2)}) == 3 * 9, "they come without the prompt"


def test_memory_is_asked_for_by_the_rows_of_a_prompt_of_embeddings(monkeypatch):
    model, _ = examples.llama()
    texts = []
    monkeypatch.setattr(generation, "require_memory", lambda *needed: texts.append(needed[2]))
    embeds = model.get_input_embeddings()(torch.randint(4, 20, (2, 30)))
    with mmaccel.accelerate(model, CompressKV(budget=0.5)) as fast:
        fast.generate(inputs_embeds=embeds, max_new_tokens=3, do_sample=False)
        assert fast.report.engaged and fast.report.tokens == 2 * 3
        assert texts == [f"generate with {CompressKV(budget=0.5)}, 2 x 33 tokens,"]
        layers, width = 3, 2 * 2 * (2 * 8 * 4 + 4)  # rows, heads, and a key, a value and a position
        assert fast.report.peak_extra_bytes == (layers * (15 + 3) + 30) * width


@pytest.mark.parametrize("more", ({"use_cache": False}, {"cache_implementation": "static"}), ids=str)
def test_a_call_that_leaves_no_room_for_our_cache_says_so_alone(more):
    """Beside the reason it says nothing of not having engaged."""
    model, arguments = examples.llama()
    with mmaccel.accelerate(model, SelectKV(budget=0.2)) as fast:
        fast.generate(**arguments(1, max_new_tokens=1, **more))
        ((name, value),) = more.items()
        assert fast.report.warnings == [f"{SelectKV(budget=0.2)} ran plainly: {name}={value!r}"]


def test_a_cache_of_another_session_is_not_ours():
    model, arguments = examples.llama()
    with mmaccel.accelerate(model, CompressKV()) as fast:
        first = fast.generate(**arguments(return_dict_in_generate=True))
    ids = torch.cat([first.sequences, first.sequences[:, -3:]], 1)
    with mmaccel.accelerate(model, CompressKV()) as other:
        other.generate(ids, past_key_values=first.past_key_values, max_new_tokens=2, do_sample=False)
        assert "past_key_values is not from this session" in other.report.warnings[0]
        assert other.report.peak_extra_bytes == 0


def test_what_is_not_the_usual_cache_or_not_empty_is_left_as_it_is():
    model, arguments = examples.llama()
    offloaded, filled, usual = DynamicCache(), DynamicCache(), DynamicCache()
    offloaded.offloading = True
    model(input_ids=arguments()["input_ids"], past_key_values=filled)
    fixed = StaticCache(config=model.config, max_cache_len=200)
    assert [generation._is_new(cache) for cache in (offloaded, filled, fixed, usual)] == [False] * 3 + [True]


@pytest.mark.parametrize(
    ("method", "why"),
    (
        (SparsePrefill(min_length=300), "no prompt was longer than min_length=300 tokens"),
        (SelectKV(dense_layers=9), "no step had more tokens than it may read, in a layer after the dense ones"),
        (CompressKV(budget=None, tokens=500), "no prompt had more tokens than are kept"),
    ),
    ids=str,
)
def test_a_method_that_had_nothing_to_do_says_why(method, why):
    model, arguments = examples.llama()
    with mmaccel.accelerate(model, method) as fast:
        fast.generate(**arguments(1, max_new_tokens=2))
        assert fast.report.warnings == [f"{method} did not engage: {why}"] and not fast.report.engaged
