"""Block-sparse attention in the interpreter."""

import pytest
import torch

from mmaccel.kernels import BlockPlan, backend, block_sparse_attention

VISIBLE = ({}, {"causal": True}, {"window": 20}, {"causal": True, "window": 33}, {"window": (5, -1)})


def plan(shape, queries, keys, block_m=64, block_n=32, density=0.6, **visible):
    rows, columns = -(-queries // block_m), -(-keys // block_n)
    mask = torch.rand(*shape, rows, columns, generator=torch.Generator().manual_seed(1)) < density
    mask[:, :, -1] = mask[:, :, -1] & (columns < 3)  # often a row without any block
    return BlockPlan.from_mask(mask, q_len=queries, kv_len=keys, block_m=block_m, block_n=block_n, **visible)


@pytest.mark.parametrize("visible", VISIBLE)
def test_range(agrees, draw, visible):
    agrees(block_sparse_attention, *draw(), **visible)


@pytest.mark.parametrize("visible", VISIBLE)
def test_plan(agrees, draw, visible):
    agrees(block_sparse_attention, *draw(), plan((1, 1), 70, 100, **visible), **visible)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_half_precision(agrees, draw, dtype):
    tensors = draw(dtype, width=64)
    agrees(block_sparse_attention, *tensors, causal=True)
    agrees(block_sparse_attention, *tensors, plan((2, 2), 70, 100, window=40), window=40)


@pytest.mark.parametrize("width", (1, 16, 96, 200))
def test_head_dimensions(agrees, draw, width):
    agrees(block_sparse_attention, *draw(batch=1, query_heads=1, queries=20, width=width), causal=True)


@pytest.mark.parametrize("visible", ({}, {"causal": True}, {"window": (150, 0)}))
@pytest.mark.parametrize(("queries", "keys"), ((70, 400), (130, 70), (1, 300), (64, 256)))
def test_long_ranges(agrees, draw, visible, queries, keys):
    """Ranges with a middle part that needs no mask, and queries before the first key."""
    agrees(block_sparse_attention, *draw(batch=1, query_heads=1, queries=queries, keys=keys, width=16), **visible)


@pytest.mark.parametrize("shape", ((1, 1), (2, 2), (1, 4)))
def test_plans_for_heads_and_batches(agrees, draw, shape):
    q, k, v = draw(query_heads=4, key_heads=2, queries=40, keys=50, width=16)
    agrees(block_sparse_attention, q, k, v, plan(shape, 40, 50, 32, 16, causal=True), causal=True)


@pytest.mark.parametrize("sizes", ((16, 16), (128, 128), (16, 128), (128, 16)))
def test_blocks_smaller_and_larger_than_tiles(agrees, draw, sizes):
    q, k, v = draw(batch=1, query_heads=1, queries=150, keys=200, width=16)
    agrees(block_sparse_attention, q, k, v, plan((1, 1), 150, 200, *sizes, causal=True), causal=True)


def test_whole_blocks_are_not_masked(draw):
    """A block that the plan calls whole is read without a mask: the proof that `n_full` is used."""
    q, k, v = draw(batch=1, query_heads=1, queries=64, keys=64, width=16)
    tables = [torch.tensor(x, dtype=torch.int32) for x in ([[[0, 1]]], [0], [[[1]]])]
    with backend("triton"):
        output, _ = block_sparse_attention(q, k, v, BlockPlan(*tables, 64, 64, 64, 64), causal=True)
        whole, _ = block_sparse_attention(q, k, v)
    assert torch.equal(output, whole)


def test_plan_of_nothing(agrees, draw):
    nothing = BlockPlan.from_mask(torch.zeros(1, 1, 2, 4, dtype=torch.bool), q_len=70, kv_len=100, block_n=32)
    output, _ = agrees(block_sparse_attention, *draw(), nothing)
    assert not output.any()


def test_strides(agrees, draw):
    q, k, v = draw()
    expected = agrees(block_sparse_attention, q, k, v)
    for axes in ((1, 2), (2, 3), (0, 1)):
        moved = (x.transpose(*axes).contiguous().transpose(*axes) for x in (q, k, v))
        assert all(map(torch.equal, agrees(block_sparse_attention, *moved), expected))
    agrees(block_sparse_attention, q, k[:1].expand(2, -1, -1, -1), v[:1].expand(2, -1, -1, -1))


@pytest.mark.parametrize("with_plan", (False, True))
def test_scale(agrees, draw, with_plan):
    table = plan((1, 1), 70, 100, causal=True) if with_plan else None
    agrees(block_sparse_attention, *draw(width=16), table, causal=True, scale=0.15)


def test_tables_of_any_stride(agrees, draw):
    q, k, v = draw(query_heads=4, key_heads=2, queries=70, keys=100, width=16)
    table = plan((2, 4), 70, 100, 32, 16, causal=True)

    def across(x):
        return x.permute(2, 0, 1).contiguous().permute(1, 2, 0)

    fields = (table.block_m, table.block_n, table.q_len, table.kv_len)
    strided = BlockPlan(across(table.row_ptr), table.col, across(table.n_full), *fields)
    expected = agrees(block_sparse_attention, q, k, v, table, causal=True)
    assert all(map(torch.equal, agrees(block_sparse_attention, q, k, v, strided, causal=True), expected))


def test_keys_that_no_query_sees_may_hold_anything(agrees, draw):
    q, k, v = draw(queries=20)
    k[:, :, :60], v[:, :, :60] = torch.nan, torch.inf  # before the window of the first query
    agrees(block_sparse_attention, q, k, v, causal=True, window=21)
    blocks = torch.tensor([False, False, True, True]).view(1, 1, 1, 4)
    table = BlockPlan.from_mask(blocks, q_len=20, kv_len=100, block_n=32, window=(20, -1))
    agrees(block_sparse_attention, q, k, v, table, window=(20, -1))


def test_float64_is_refused(draw):
    q, k, v = (x.double() for x in draw())
    with backend("triton"), pytest.raises(ValueError, match="q must be float32.*float64"):
        block_sparse_attention(q, k, v)


def test_nothing_to_do(draw):
    q, k, v = draw(queries=4, keys=3)
    with backend("triton"):
        output, lse = block_sparse_attention(q[:, :, :0], k, v)
        assert output.shape == (2, 2, 0, 40) and lse.shape == (2, 2, 0)
        output, lse = block_sparse_attention(q, k[:, :, :0], v[:, :, :0])
    assert not output.any() and (lse == -torch.inf).all()
