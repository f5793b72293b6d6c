"""Compression policies: which tokens of a prompt stay."""

import itertools

import pytest
import torch

from mmaccel.kernels import policies

NAMES = sorted(policies.COMPRESS)
KEYS, WINDOW = 100, 8


def draw(queries=WINDOW, keys=KEYS, width=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 4, queries, width, generator=generator), torch.randn(2, 2, keys, width, generator=generator)


def left_padding(*padding):
    return torch.arange(KEYS) >= torch.tensor(padding)[:, None]


def as_sets(token_idx):
    return [[{x for x in head if x >= 0} for head in row] for row in token_idx.tolist()]


@pytest.mark.parametrize(("name", "count"), itertools.product(NAMES, (2, 3, 17, 64, 100, 500)))
@pytest.mark.parametrize("padding", (None, (0, 30)), ids=str)
def test_form_window_and_padding(name, count, padding):
    q, k = draw()
    valid = None if padding is None else left_padding(*padding)
    if valid is not None:
        k = k.masked_fill(~valid[:, None, :, None], float("nan"))
    token_idx = policies.COMPRESS[name](q, k, count=count, valid=valid)
    assert token_idx.dtype == torch.int32 and token_idx.shape == (2, 2, min(count, KEYS))
    ahead, behind = token_idx[..., 1:], token_idx[..., :-1]
    assert ((ahead > behind) | (ahead == -1)).all()
    for row, heads in enumerate(as_sets(token_idx)):
        first = (padding or (0, 0))[row]
        for kept in heads:
            assert len(kept) == min(count, KEYS - first)
            assert min(kept) >= first and KEYS - 1 in kept
            if count >= KEYS:
                assert kept == set(range(first, KEYS))


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_independent_and_padding_changes_nothing(name):
    q, k = draw()
    policy = policies.COMPRESS[name]
    whole = policy(q, k, count=20)
    assert torch.equal(whole[1:], policy(q[1:], k[1:], count=20))
    padded = policy(q, k, count=20, valid=left_padding(25, 25))
    assert torch.equal(padded - 25, policy(q, k[:, :, 25:], count=20))


@pytest.mark.parametrize("name", ("snap_kv", "fast_kv"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_planted_tokens_are_kept(name, dtype):
    q, k = draw()
    q[..., 0], k[..., 0] = 6, 0
    k[:, 0, 30, 0] = k[:, 1, 61, 0] = 6
    kept = as_sets(policies.COMPRESS[name](q.to(dtype), k.to(dtype), count=30))
    for heads in kept:
        assert 30 in heads[0] and 61 in heads[1]
        assert (61 in heads[0]) == (30 in heads[1]) == (name == "fast_kv")


@pytest.mark.parametrize("pool", ("avg", "max"))
def test_snap_kv_keeps_surroundings(pool):
    q, k = draw()
    q.zero_(), k.zero_()
    q[..., 0], k[:, :, 40, 0] = 10, 10
    options = {"window": WINDOW, "pool": pool}
    window = set(range(KEYS - WINDOW, KEYS))
    kept = policies.snap_kv(q, k, count=WINDOW + 7, kernel=7, **options)
    assert as_sets(kept) == [[window | set(range(37, 44))] * 2] * 2
    assert as_sets(policies.snap_kv(q, k, count=WINDOW + 1, kernel=1, **options)) == [[window | {40}] * 2] * 2


def test_snap_kv_window_lends_no_weight():
    q, k = draw()
    q.zero_(), k.zero_()
    q[..., 0], k[:, :, -WINDOW:, 0], k[:, :, 40, 0] = 10, 2, 1
    kept = policies.snap_kv(q, k, count=WINDOW + 1, window=WINDOW, pool="avg")
    assert all(37 <= min(head) <= 43 for row in as_sets(kept) for head in row)


def test_snap_kv_is_causal_and_sums_its_window():
    """Only the last queries vote; what they cannot see yet gets no vote."""
    q, k = draw(queries=40)
    expected = policies.snap_kv(q[:, :, -WINDOW:], k, count=24, window=WINDOW)
    assert torch.equal(policies.snap_kv(q, k, count=24, window=WINDOW), expected)
    weights = torch.zeros(2, 2, KEYS - WINDOW)
    for row, head, query in itertools.product(range(2), range(4), range(WINDOW)):
        seen = KEYS - WINDOW + query + 1
        scores = k[row, head // 2, :seen] @ q[row, head, 40 - WINDOW + query] / 4
        weights[row, head // 2] += scores.softmax(-1)[: KEYS - WINDOW]
    top = weights.topk(16, -1).indices.tolist()
    kept = as_sets(policies.snap_kv(q, k, count=24, window=WINDOW, kernel=1))
    assert kept == [[set(head) | set(range(KEYS - WINDOW, KEYS)) for head in row] for row in top]


def test_padding_queries_do_not_vote():
    """A prompt shorter than the window: its padding queries ask for what the real ones do not."""
    q, k = draw()
    k.zero_(), q.zero_()
    valid = left_padding(0, KEYS - 4)
    kept = policies.snap_kv(q, k, count=WINDOW + 2, window=WINDOW, valid=valid)
    assert as_sets(kept)[1] == [set(range(KEYS - 4, KEYS))] * 2


def test_fast_kv_is_one_set_for_all_heads():
    q, k = draw()
    tokens = policies.fast_kv(q, k, keep=0.25)
    assert tokens.shape == (2, 25) and tokens.dtype == torch.int32 and (tokens.diff(dim=1) > 0).all()
    assert (tokens[:, -WINDOW:] == torch.arange(KEYS - WINDOW, KEYS)).all()
    assert policies.fast_kv(q, k, keep=1.0).tolist() == [list(range(KEYS))] * 2
    assert policies.fast_kv(q, k, count=3).shape == (2, WINDOW)  # the window stays
    padded = policies.fast_kv(q, k, keep=0.9, valid=left_padding(0, 50))
    assert padded[1].tolist() == [*range(50, KEYS), *[-1] * 40]
    nested = [set(policies.fast_kv(q, k, count=count)[0].tolist()) for count in (10, 20, 60)]
    assert nested[0] < nested[1] < nested[2]


def test_streaming_is_its_definition():
    _, k = draw()
    kept = as_sets(policies.streaming(k, count=10, sink=3, valid=left_padding(0, 20)))
    assert kept[0] == [{0, 1, 2} | set(range(93, 100))] * 2
    assert kept[1] == [{20, 21, 22} | set(range(93, 100))] * 2


Q, K = torch.zeros(2, 4, 8, 16), torch.zeros(2, 2, 100, 16)
QK = {"q_window": Q, "k": K}
BAD = (
    (policies.snap_kv, QK | {"count": 32}, "count", "above window, which is 32", "32"),
    (policies.snap_kv, QK | {"count": 0}, "count", "at least 1", "0"),
    (policies.snap_kv, QK | {"count": 64, "window": 0}, "window", "at least 1", "0"),
    (policies.snap_kv, QK | {"count": 64, "kernel": 4}, "kernel", "odd", "4"),
    (policies.snap_kv, QK | {"count": 64, "pool": "min"}, "pool", "'avg' or 'max'", "'min'"),
    (policies.snap_kv, QK | {"count": 64, "valid": torch.ones(2, 8).bool()}, "valid", "bool [2, 100]", "[2, 8]"),
    (policies.fast_kv, QK | {"keep": 0.0}, "keep", "above 0", "0.0"),
    (policies.fast_kv, QK | {"keep": 2}, "keep", "at most 1", "2"),
    (policies.fast_kv, QK | {"count": 0}, "count", "at least 1", "0"),
    (policies.streaming, {"k": K, "count": 4}, "count", "above sink, which is 4", "4"),
    (policies.streaming, {"k": K, "count": 8, "sink": -1}, "sink", "at least 0", "-1"),
    (policies.streaming, {"k": K[0], "count": 8}, "k", "[B, Hkv, N, D]", "[2, 100, 16]"),
)


@pytest.mark.parametrize(("policy", "settings", "name", "allowed", "value"), BAD)
def test_bad_settings(policy, settings, name, allowed, value):
    with pytest.raises(ValueError, match=rf"^{name} must be ") as error:
        policy(**settings)
    assert allowed in str(error.value) and value in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_bad_count_in_the_table(name):
    with pytest.raises(ValueError, match=r"^count must be a whole number of at least 2, got 1"):
        policies.COMPRESS[name](Q, K, count=1)
