"""BranchCache: some tokens written, branches that do not mix, errors."""

import pytest
import torch

from mmaccel.cache import BranchCache


def whole(fill=0.0, tokens=8):
    return torch.full((2, 3, tokens, 4), fill)


def test_active_tokens_are_renewed_and_the_rest_stays():
    cache = BranchCache(layers=2)
    kept = [cache.write(layer, whole(1.0 + layer), whole(5.0 + layer)) for layer in range(2)]
    keys, values = cache.write(0, whole(9.0, 2), whole(8.0, 2), idx=torch.tensor([3, 1]))
    assert keys[0, 0, :, 0].tolist() == [1, 9, 1, 9, 1, 1, 1, 1]
    assert values[1, 2, :, 3].tolist() == [5, 8, 5, 8, 5, 5, 5, 5]
    assert kept[1][0].unique().tolist() == [2.0] and kept[0][0] is keys


def test_branches_never_mix():
    cache = BranchCache(layers=1)
    kept = [cache.write(0, whole(float(branch)), whole(float(branch)), branch) for branch in range(3)]
    cache.write(0, whole(7.0, 1), whole(7.0, 1), 1, torch.tensor([2]))
    assert [keys.unique().tolist() for keys, _ in kept] == [[0.0], [1.0, 7.0], [2.0]]


def test_what_was_given_is_not_shared():
    cache, key = BranchCache(layers=1), whole(1.0)
    buffer, _ = cache.write(0, key, key)
    key.zero_()
    assert buffer.unique().tolist() == [1.0]
    assert cache.write(0, whole(3.0), whole(3.0))[0] is buffer, "written in place"
    assert cache.write(0, whole(4.0, 5), whole(4.0, 5))[0].shape[2] == 5, "another length begins anew"


def test_a_whole_of_another_type_begins_anew():
    cache = BranchCache(layers=1)
    cache.write(0, whole(1.0), whole(1.0))
    keys, _ = cache.write(0, whole(1.0).double(), whole(1.0).double())
    assert keys.dtype == torch.float64 and cache.nbytes() == 2 * whole().numel() * 8


def test_bytes_and_reset():
    cache = BranchCache(layers=2)
    assert cache.nbytes() == 0
    for branch in range(2):
        for layer in range(2):
            cache.write(layer, whole(), whole(), branch)
    assert cache.nbytes() == 2 * 2 * 2 * whole().numel() * 4
    cache.reset()
    assert cache.nbytes() == 0
    with pytest.raises(RuntimeError, match="before some of them"):
        cache.write(0, whole(tokens=1), whole(tokens=1), idx=torch.tensor([0]))


def test_errors():
    cache = BranchCache(layers=1)
    cache.write(0, whole(), whole())
    with pytest.raises(RuntimeError, match="branch 1, layer 0: write all tokens before some of them"):
        cache.write(0, whole(tokens=1), whole(tokens=1), 1, torch.tensor([0]))
    for wrong, error in ((whole(tokens=1).half(), RuntimeError), (whole(tokens=2), IndexError)):
        with pytest.raises(error, match="index_copy_"):
            cache.write(0, wrong, wrong, idx=torch.tensor([0]))
    for layer in (-1, 1):
        with pytest.raises(IndexError, match="the cache has 1"):
            cache.write(layer, whole(), whole())
    with pytest.raises(ValueError, match="layers must be at least 1"):
        BranchCache(layers=0)


@pytest.mark.parametrize("kept", ({"dtype": torch.float8_e4m3fn}, {"device": "cpu"}, {"dtype": torch.bfloat16}))
def test_states_may_be_kept_in_another_dtype_or_place(kept):
    whole, part = torch.randn(2, 2, 2, 8, 4), torch.randn(2, 2, 2, 3, 4)
    plain, other = BranchCache(1), BranchCache(1, **kept)
    for cache in (plain, other):
        cache.write(0, *whole)
        first = cache.write(0, *part, idx=torch.tensor([1, 4, 7]))
        again = cache.write(0, *part, idx=torch.tensor([1, 4, 7]))
        for one, two in zip(first, again, strict=True):
            assert torch.equal(one, two) and one.dtype == torch.float32
        if cache is plain:
            exact = [x.clone() for x in first]
    for one, near in zip(exact, first, strict=True):
        torch.testing.assert_close(near, one, rtol=0.07, atol=0.01)
    assert other.nbytes() <= plain.nbytes()


@pytest.mark.parametrize("dtype", (torch.float8_e4m3fn, torch.float8_e5m2))
def test_what_is_too_large_for_8_bits_is_kept_as_the_largest(dtype):
    """And not as NaN or infinity, of which one makes all that attends to it NaN."""
    cache, most = BranchCache(1, dtype=dtype), torch.finfo(dtype).max
    cache.write(0, whole(1e6), whole(-1e6))
    keys, values = cache.write(0, whole(1.0, 1), whole(torch.nan, 1), idx=torch.tensor([2]))
    assert keys[0, 0, :, 0].tolist() == [most, most, 1, most, most, most, most, most]
    assert values[0, 0, [0, 1, 3], 0].tolist() == [-most] * 3
    cache.write(0, whole(-1e6, 1), whole(1.0, 1), idx=torch.tensor([5]))
    keys, values = cache.write(0, whole(1.0, 1), whole(1.0, 1), idx=torch.tensor([0]))
    assert keys[0, 0, 5, 0] == -most and values[0, 0, 2].isnan().all(), "NaN stays what it is"
