"""Attention ops against the naive reference in float64."""

import itertools

import pytest
import torch
from selected_tokens import select

from mmaccel import kernels
from mmaccel.kernels import BlockPlan
from mmaccel.kernels.native.merge_states import merge_states
from mmaccel.kernels.plan import block_coverage

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}
DTYPES = list(TOLERANCE)


def tensors(dtype, batch=2, query_heads=4, key_heads=2, queries=100, keys=130, width=32, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(heads, length):
        return torch.randn(batch, heads, length, width, generator=generator).to(dtype)

    return draw(query_heads, queries), draw(key_heads, keys), draw(key_heads, keys)


def plan(shape, queries, keys, block_m=32, block_n=16, density=0.4, seed=1, **visible):
    rows, columns = -(-queries // block_m), -(-keys // block_n)
    mask = torch.rand(*shape, rows, columns, generator=torch.Generator().manual_seed(seed)) < density
    mask[:, :, 1] = False  # a row without any block
    return BlockPlan.from_mask(mask, q_len=queries, kv_len=keys, block_m=block_m, block_n=block_n, **visible)


def agrees(op, q, k, v, *rest, **more):
    """The fast version against the reference on float64 copies; returns the fast result."""
    output, lse = op(q, k, v, *rest, **more)
    with kernels.backend("reference"):
        expected, expected_lse = op(q.double(), k.double(), v.double(), *rest, **more)
    tolerance = TOLERANCE[q.dtype]
    assert output.dtype == q.dtype and lse.dtype == torch.float32
    empty = expected_lse == -torch.inf
    assert torch.equal(lse == -torch.inf, empty) and not output[empty].any()
    # half precision rounds the scores' inputs, so the log-sum-exp is held to the same tolerance
    torch.testing.assert_close(lse, expected_lse, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)
    return output, lse


VISIBLE = ({}, {"causal": True}, {"window": 20}, {"causal": True, "window": 33}, {"window": (5, -1)})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("visible", VISIBLE)
def test_without_a_plan(dtype, visible):
    agrees(kernels.block_sparse_attention, *tensors(dtype), **visible)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("visible", "shape"), itertools.product(VISIBLE, ((1, 1), (2, 2), (1, 4))))
def test_with_a_plan(dtype, visible, shape):
    q, k, v = tensors(dtype)
    agrees(kernels.block_sparse_attention, q, k, v, plan(shape, 100, 130, **visible), **visible)


@pytest.mark.parametrize(("queries", "keys"), ((700, 900), (900, 700), (1, 600), (640, 640)))
@pytest.mark.parametrize("visible", VISIBLE)
def test_long_ranges(queries, keys, visible):
    """Ranges with a middle part that needs no mask, and queries before the first key."""
    agrees(kernels.block_sparse_attention, *tensors(torch.float32, 1, 2, 1, queries, keys, 16), **visible)


def seen_pairs(queries, keys, causal=False, window=None):
    """The definition: the last query stands at the last key; a window of w holds the query and w - 1 keys a side."""
    behind = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    left, right = (window, window) if isinstance(window, int) else (None, None)
    if isinstance(window, tuple):
        left, right = (None if side < 0 else side + 1 for side in window)
    seen = torch.ones_like(behind, dtype=torch.bool)
    seen &= (behind >= 0) | (not causal)
    return seen & (behind < (left or keys + queries)) & (-behind < (right or keys + queries))


WINDOWS = (*VISIBLE, {"causal": True, "window": (5, 7)}, {"window": (0, 3)}, {"window": 1}, {"window": 17})


@pytest.mark.parametrize("visible", WINDOWS, ids=str)
@pytest.mark.parametrize(("queries", "keys"), ((48, 48), (40, 70), (70, 40), (1, 33)))
def test_windows_are_their_definition(queries, keys, visible):
    """Of pairs, and of blocks: those with a pair that is seen, and those of nothing else."""
    seen = seen_pairs(queries, keys, **visible)
    q, k, v = tensors(torch.float32, 1, 1, 1, queries, keys)
    output, lse = kernels.block_sparse_attention(q, k, v, **visible)
    some_seen = seen.any(-1)
    assert torch.equal(lse[0, 0] > -torch.inf, some_seen)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen)[:, :, some_seen]
    torch.testing.assert_close(output[:, :, some_seen], expected, rtol=2e-6, atol=2e-6)
    for block_m, block_n in ((16, 16), (32, 16)):
        some, full = block_coverage(
            queries, keys, block_m, block_n, visible.get("causal", False), visible.get("window"), "cpu"
        )
        for row, column in itertools.product(range(len(some)), range(some.shape[1])):
            block = seen[row * block_m :, column * block_n :][:block_m, :block_n]
            assert some[row, column] == block.any()
            # a block of keys that is cut short is never whole
            assert full[row, column] == (bool(block.all()) and block.shape[1] == block_n)


@pytest.mark.parametrize("flash", (True, False))
def test_the_scale_of_the_scores(monkeypatch, flash):
    """Not the usual one, on every path."""
    from mmaccel.kernels.native import dense

    if not flash:
        monkeypatch.setattr(dense, "_FLASH", None)
    q, k, v = tensors(torch.float32, queries=130)
    given = {"scale": 0.37}
    for visible in ({}, {"causal": True}, {"window": 20}):
        agrees(kernels.block_sparse_attention, q, k, v, **visible, **given)
        agrees(kernels.block_sparse_attention, q, k, v, plan((1, 2), 130, 130, **visible), **visible, **given)
    few, lengths = q[:, :, :3], torch.tensor([130, 90])
    agrees(kernels.verify_attention, few, k, v, lengths, **given)
    agrees(kernels.verify_attention, few[:, :, :1], k, v, torch.tensor([130, 130]), **given)
    agrees(kernels.verify_attention, few, k, v, lengths, select([130, 90], 2, 3, 20).int(), **given)
    everything = torch.arange(130).expand(2, 2, -1)
    agrees(kernels.verify_attention, few[:, :, :1], k, v, torch.tensor([130, 130]), everything, **given)


@pytest.mark.parametrize("index", (torch.int32, torch.int64))
def test_selected_tokens_of_any_layout(index):
    """Part of a larger cache, as projections leave it, keys laid out otherwise than values, one cache for all rows."""
    q, k, v = tensors(torch.float32, queries=3)
    lengths = torch.tensor([130, 90])
    chosen = select([130, 90], 2, 3, 20).to(index)
    expected, _ = agrees(kernels.verify_attention, q, k, v, lengths, chosen)

    def part(x):
        whole = torch.full((2, 4, 150, 32), torch.nan)
        whole[:, 1:3, 7:137] = x
        return whole[:, 1:3, 7:137]

    def across(x):
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    def turned(x):
        return x.transpose(2, 3).contiguous().transpose(2, 3)

    def uneven(x):
        return torch.nn.functional.pad(x, (0, 1))[..., :32]

    for key, value in ((part, part), (across, across), (part, across), (turned, turned), (uneven, uneven)):
        output, _ = kernels.verify_attention(q, key(k), value(v), lengths, chosen)
        torch.testing.assert_close(output, expected, rtol=2e-6, atol=2e-6)
    one = [x[:1].expand(2, -1, -1, -1) for x in (k, v)]
    agrees(kernels.verify_attention, q, *one, lengths, chosen)


def test_a_plan_of_everything_and_of_nothing():
    q, k, v = tensors(torch.float32)
    for chosen in (torch.ones, torch.zeros):
        mask = chosen(1, 1, 2, 3, dtype=torch.bool)
        for causal in (False, True):
            table = BlockPlan.from_mask(mask, q_len=100, kv_len=130, causal=causal)
            output, _ = agrees(kernels.block_sparse_attention, q, k, v, table, causal=causal)
    assert not output.any()


@pytest.mark.parametrize("visible", ({"causal": True}, {"window": (40, 0)}))
def test_a_plan_with_hidden_blocks_is_not_taken_for_everything(visible):
    """It names as many blocks as can be seen, and not all of those."""
    columns = {"causal": [0, 1, 0, 1, 1, 2], "window": [0, 2, 0, 1, 1]}
    ends = {"causal": [0, 2, 4, 6], "window": [0, 2, 4, 5]}
    name = next(iter(visible))
    row_ptr, col = torch.tensor([[ends[name]]]).int(), torch.tensor(columns[name]).int()
    table = BlockPlan(row_ptr, col, torch.zeros(1, 1, 3, dtype=torch.int32), 64, 64, 192, 192)
    some, _ = block_coverage(192, 192, 64, 64, visible.get("causal", False), visible.get("window"), "cpu")
    assert some.sum() == len(col)
    agrees(kernels.block_sparse_attention, *tensors(torch.float32, queries=192, keys=192), table, **visible)


@pytest.mark.parametrize("visible", VISIBLE)
def test_without_keys_or_queries(visible):
    q, k, v = tensors(torch.bfloat16)
    agrees(kernels.block_sparse_attention, q, k[:, :, :0], v[:, :, :0], **visible)
    output, lse = kernels.block_sparse_attention(q[:, :, :0], k, v, **visible)
    assert output.shape == (2, 4, 0, 32) and lse.shape == (2, 4, 0) and lse.dtype == torch.float32


@pytest.mark.parametrize("count", (1, 3))
def test_nothing_to_verify(count):
    q, k, v = tensors(torch.float32, queries=count)
    lengths, nothing = torch.tensor([130, 9]), torch.empty(2, 2, 0, dtype=torch.int32)
    agrees(kernels.verify_attention, q, k, v, lengths, nothing)
    for chosen in (None, nothing):
        output, lse = kernels.verify_attention(q[:, :, :0], k, v, lengths, chosen)
        assert output.shape == (2, 4, 0, 32) and lse.shape == (2, 4, 0)


def test_strides():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors(torch.float32))
    assert not q.is_contiguous()
    agrees(kernels.block_sparse_attention, q, k, v, plan((1, 1), 100, 130))


def test_ranges_of_one_length_with_other_limits():
    """The masked ends of a wide window hold as many keys, and each query sees others of them."""
    agrees(kernels.block_sparse_attention, *tensors(torch.float32, 1, 2, 1, 960, 960, 16), window=300)


# Decoding and verifying


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", (1, 5))
@pytest.mark.parametrize("lengths", ((130, 130), (7, 100)))
def test_verify(dtype, count, lengths):
    agrees(kernels.verify_attention, *tensors(dtype, queries=count), torch.tensor(lengths))


@pytest.mark.parametrize(("batch", "query_heads", "key_heads"), ((1, 4, 2), (3, 6, 2), (2, 3, 3), (1, 8, 1)))
@pytest.mark.parametrize("tokens", (1, 63, 128, 130))
@pytest.mark.parametrize("way", ("matrix_products", "packed", "each_head", "in_parts"))
def test_few_queries_over_a_long_cache(monkeypatch, batch, query_heads, key_heads, tokens, way):
    from mmaccel.kernels.native import long_cache

    monkeypatch.setattr(long_cache, "LEAST_BYTES", 0)
    monkeypatch.setattr(long_cache, "way", lambda *_: way)
    q, k, v = tensors(torch.float32, batch, query_heads, key_heads, queries=1)
    k[:, :, tokens:], v[:, :, tokens:] = torch.nan, torch.nan  # a cache that is not full
    lengths = torch.full((batch,), tokens)
    calls = counted(monkeypatch, long_cache)
    agrees(kernels.verify_attention, q, k, v, lengths)
    assert calls == [1]
    across = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]  # as projections leave them
    torch.testing.assert_close(
        kernels.verify_attention(q, *across, lengths), kernels.verify_attention(q, k, v, lengths), rtol=2e-6, atol=2e-6
    )
    assert len(calls) == 2 + (batch == 1)
    output, lse = kernels.verify_attention(100 * q, k, v, lengths)  # scores of some hundred: float32 rounds them
    with kernels.backend("reference"):
        expected, expected_lse = kernels.verify_attention(100 * q.double(), k.double(), v.double(), lengths)
    torch.testing.assert_close(output.double(), expected, rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(lse, expected_lse, rtol=2e-6, atol=1e-4)
    agrees(kernels.block_sparse_attention, q, k[:, :, :tokens], v[:, :, :tokens])
    assert len(calls) == 4 + (batch == 1)


def counted(monkeypatch, module):
    """The calls of its `few_queries` from now on, as a list that grows."""
    calls, few_queries = [], module.few_queries
    monkeypatch.setattr(module, "few_queries", lambda *args: calls.append(1) or few_queries(*args))
    return calls


def test_a_cache_of_some_megabytes_is_read_by_matrix_products(monkeypatch):
    from mmaccel.kernels.native import long_cache

    monkeypatch.setattr(long_cache, "way", lambda *_: "matrix_products")
    calls = counted(monkeypatch, long_cache)
    for expected, keys, dtype in ((0, 8_000, torch.float32), (0, 20_000, torch.bfloat16), (1, 20_000, torch.float32)):
        agrees(kernels.verify_attention, *tensors(dtype, 1, queries=1, keys=keys), torch.tensor([keys]))
        assert len(calls) == expected


@pytest.mark.parametrize("batched", (False, True))
def test_verify_a_tree(batched):
    q, k, v = tensors(torch.float32, queries=4)
    tree = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
    mask = torch.stack([tree, tree.flip(0)]) if batched else tree
    agrees(kernels.verify_attention, q, k, v, torch.tensor([60, 130]), None, mask)


@pytest.mark.parametrize("chosen", (False, True))
@pytest.mark.parametrize("lengths", ((130, 130), (9, 100)))
def test_verify_drafts_that_do_not_see_the_first(chosen, lengths):
    """Each new token has a root of its own; a single one may not even see itself."""
    lengths = torch.tensor(lengths)
    for mask in (torch.eye(4).bool(), torch.zeros(4, 4).bool(), torch.zeros(1, 1).bool()):
        q, k, v = tensors(torch.float32, queries=len(mask))
        token_idx = select(lengths.tolist(), 2, len(mask), 8).int() if chosen else None
        agrees(kernels.verify_attention, q, k, v, lengths, token_idx, mask)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", (1, 3))
@pytest.mark.parametrize("lengths", ((130, 130), (9, 100)))
def test_verify_selected_tokens(dtype, count, lengths):
    q, k, v = tensors(dtype, queries=count)
    agrees(kernels.verify_attention, q, k, v, torch.tensor(lengths), select(lengths, 2, count, 20).int())


def test_selecting_all_tokens_is_selecting_none():
    q, k, v = tensors(torch.float32, queries=3)
    everything = torch.arange(130).expand(2, 2, -1)
    lengths = torch.tensor([130, 130])
    whole, _ = kernels.verify_attention(q, k, v, lengths)
    some, _ = kernels.verify_attention(q, k, v, lengths, everything)
    torch.testing.assert_close(some, whole, rtol=2e-6, atol=2e-6)


def test_slots_beyond_the_lengths_are_never_read():
    q, k, v = tensors(torch.float32, queries=2)
    lengths = torch.tensor([50, 70])
    expected, _ = kernels.verify_attention(q, k, v, lengths)
    for row, length in enumerate(lengths.tolist()):
        k[row, :, length:], v[row, :, length:] = torch.nan, torch.nan
    output, _ = kernels.verify_attention(q, k, v, lengths)
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_merge_states(dtype):
    q, k, v = tensors(dtype)
    parts = [kernels.block_sparse_attention(q, x, y) for x, y in zip(k.split(50, 2), v.split(50, 2), strict=True)]
    nothing = (torch.full_like(q, torch.nan), torch.full(q.shape[:3], -torch.inf))
    output, lse = merge_states(*(torch.stack(x) for x in zip(*parts, nothing, strict=True)))
    with kernels.backend("reference"):
        expected, expected_lse = kernels.block_sparse_attention(q.double(), k.double(), v.double())
    torch.testing.assert_close(output.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    torch.testing.assert_close(lse, expected_lse, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    empty, empty_lse = merge_states(nothing[0][None], nothing[1][None])
    assert not empty.any() and (empty_lse == -torch.inf).all()


def test_the_fallback_without_torchs_private_kernel(monkeypatch):
    from mmaccel.kernels.native import dense

    assert dense._FLASH is not None, "torch no longer has its flash attention for the CPU: native is slow"
    monkeypatch.setattr(dense, "_FLASH", None)
    for dtype in DTYPES:
        for visible in VISIBLE:
            q, k, v = tensors(dtype)
            agrees(kernels.block_sparse_attention, q, k, v, plan((1, 2), 100, 130, **visible), **visible)
        agrees(kernels.verify_attention, *tensors(dtype, queries=3), torch.tensor((7, 100)))
