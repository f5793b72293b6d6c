"""Decoding and verifying in the interpreter."""

import importlib

import pytest
import torch
from selected_tokens import select

from mmaccel.kernels import backend, verify_attention

TREE = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
LENGTHS = torch.tensor([200, 90])


@pytest.fixture
def split(monkeypatch):
    """Function that has the cache worked on in so many parts, instead of as many as the kernel would choose."""
    module = importlib.import_module("mmaccel.kernels.gpu.verify_attention")
    return lambda parts: monkeypatch.setattr(module, "choose_splits", lambda *_: parts)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16))
@pytest.mark.parametrize("count", (1, 5))
def test_dtypes(agrees, draw, dtype, count):
    q, k, v = draw(dtype, query_heads=4, key_heads=2, queries=count, keys=200, width=64)
    agrees(verify_attention, q, k, v, LENGTHS)


@pytest.mark.parametrize("splits", (None, 1, 2, 3))
@pytest.mark.parametrize("keys", (200, 300))
def test_splits(agrees, draw, split, splits, keys):
    if splits:
        split(splits)
    agrees(verify_attention, *draw(queries=3, keys=keys), LENGTHS.int())


def test_a_split_may_see_nothing(agrees, draw, split):
    split(3)
    agrees(verify_attention, *draw(queries=1, keys=200), torch.tensor([1, 65]))


@pytest.mark.parametrize("batched", (False, True))
@pytest.mark.parametrize("splits", (1, 2))
def test_trees(agrees, draw, split, batched, splits):
    split(splits)
    mask = torch.stack([TREE, TREE.flip(0)]) if batched else TREE
    agrees(verify_attention, *draw(queries=4, keys=200), torch.tensor([65, 130]), None, mask)


def test_rows_of_a_tree_that_see_nothing(agrees, draw):
    q, k, v = draw(queries=4, keys=70)
    mask = TREE.clone()
    mask[2], mask[:, 3] = False, False
    k[:, :, 3], v[:, :, 3] = torch.nan, torch.nan  # the last token of row 0, which no query sees
    agrees(verify_attention, q, k, v, torch.tensor([4, 70])[:1].expand(2), None, mask)


@pytest.mark.parametrize(("heads", "count"), ((4, 20), (2, 70), (8, 2)))
def test_many_rows_for_a_key_head(agrees, draw, heads, count):
    q, k, v = draw(query_heads=heads, queries=count, keys=150, width=16)
    agrees(verify_attention, q, k, v, torch.tensor([150, 90]))


@pytest.mark.parametrize("count", (1, 4))
@pytest.mark.parametrize("splits", (1, 2))
@pytest.mark.parametrize("tree", (False, True))
def test_selected_tokens(agrees, draw, split, count, splits, tree):
    split(splits)
    q, k, v = draw(query_heads=4, key_heads=2, queries=count, keys=200)
    lengths = (9, 190)
    chosen = select(lengths, 2, count, 70)
    read = torch.zeros(2, 2, 201, dtype=torch.bool).scatter_(2, chosen.where(chosen >= 0, 200), True)[..., :-1]
    k[~read], v[~read] = torch.nan, torch.nan
    mask = TREE[:count, :count] if tree else None
    agrees(verify_attention, q, k, v, torch.tensor(lengths), chosen.int() if tree else chosen, mask)


def test_no_token_selected(agrees, draw):
    q, k, v = draw(queries=2)
    output, _ = agrees(verify_attention, q, k, v, torch.tensor([40, 50]), torch.full((2, 1, 5), -1))
    assert not output.any()
    agrees(verify_attention, q, k, v, torch.tensor([40, 50]), torch.zeros(2, 1, 0, dtype=torch.int32))


@pytest.mark.parametrize("splits", (1, 3))
def test_slots_beyond_the_lengths_are_never_read(agrees, draw, split, splits):
    split(splits)
    q, k, v = draw(queries=2, keys=200)
    for row, length in enumerate((50, 128)):
        k[row, :, length:], v[row, :, length:] = torch.nan, torch.nan
    agrees(verify_attention, q, k, v, torch.tensor([50, 128]))


def test_strides(agrees, draw):
    q, k, v = draw(queries=3, keys=80)
    expected = agrees(verify_attention, q, k, v, torch.tensor([70, 80]))
    for axes in ((1, 2), (2, 3), (0, 1)):
        moved = (x.transpose(*axes).contiguous().transpose(*axes) for x in (q, k, v))
        assert all(map(torch.equal, agrees(verify_attention, *moved, torch.tensor([70, 80])), expected))
    mask = torch.stack([torch.eye(3), torch.ones(3, 3).tril()], -1).bool().permute(2, 0, 1)
    agrees(verify_attention, q, k, v, torch.tensor([70, 0, 80, 0])[::2], None, mask)


@pytest.mark.parametrize("splits", (1, 2))
def test_scale_and_strides_of_chosen_tokens(agrees, draw, split, splits):
    split(splits)
    q, k, v = draw(query_heads=4, key_heads=2, queries=2, keys=80, width=16)
    lengths, chosen = torch.tensor([70, 80]), select((70, 80), 2, 2, 40)
    mask = torch.stack([torch.eye(2), torch.ones(2, 2).tril()]).bool()
    for tokens in (chosen.transpose(0, 1).contiguous().transpose(0, 1), chosen.mT.contiguous().mT):
        agrees(verify_attention, q, k, v, lengths, tokens, mask, scale=0.15)
    for window in (None, mask, mask.mT.contiguous().mT, mask[:1].expand(2, -1, -1)):
        agrees(verify_attention, q, k, v, lengths, chosen, window, scale=0.15)
    agrees(verify_attention, q, k, v, lengths, scale=0.15)


def test_float64_is_refused(draw):
    q, k, v = (x.double() for x in draw(queries=1))
    with backend("triton"), pytest.raises(ValueError, match="q must be float32.*float64"):
        verify_attention(q, k, v, torch.tensor([100, 100]))


def test_nothing_to_do(draw):
    q, k, v = draw(queries=0, keys=10)
    with backend("triton"):
        output, lse = verify_attention(q, k, v, torch.tensor([10, 10]))
    assert output.shape == (2, 2, 0, 40) and lse.shape == (2, 2, 0) and lse.dtype == torch.float32


@pytest.mark.parametrize(("batch", "pad"), ((1, 0), (2, 3)))
def test_drafts_of_a_decoder(batch, pad):
    """Trees and padded rows, verified with this kernel within `generate`: the tokens of the plain model."""
    import mmaccel
    from mmaccel.vlm import TokenRecycling, examples

    torch.use_deterministic_algorithms(False)  # which no model of transformers promises
    model = examples.llama(num_hidden_layers=1)[0]
    ids = torch.randint(4, 60, (batch, 16), generator=torch.Generator().manual_seed(0)).repeat(1, 2)
    mask = torch.ones_like(ids)
    mask[1:, :pad] = 0
    given = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    plain = model.generate(**given)
    with mmaccel.accelerate(model, TokenRecycling(always=True, block=6)) as fast, backend("triton"):
        for _ in range(2):
            assert torch.equal(fast.generate(**given), plain)
        assert fast.report.details["accepted"] > 0
