"""BranchCache: scatter, branches that do not mix, errors."""

import pytest
import torch

from mmaccel.cache import BranchCache, estimate_bytes
from mmaccel.errors import UnknownNameError


def whole(fill=0.0, tokens=8):
    return torch.full((2, 3, tokens, 4), fill)


def test_active_tokens_are_renewed_and_the_rest_stays():
    cache = BranchCache(layers=2)
    with cache.branch("cond"):
        for layer in range(2):
            cache.write(layer, whole(1.0 + layer), whole(5.0 + layer))
        keys, values = cache.write(0, whole(9.0, 2), whole(8.0, 2), torch.tensor([[1, 3], [0, 7]]))
        assert keys[0, 0, :, 0].tolist() == [1, 9, 1, 9, 1, 1, 1, 1]
        assert values[1, 2, :, 3].tolist() == [8, 5, 5, 5, 5, 5, 5, 8]
        assert cache.read(1)[0].unique().tolist() == [2.0] and cache.read(0)[0] is keys


def test_branches_never_mix():
    cache = BranchCache(layers=1, branches=("cond", "uncond", "image"))
    for number, name in enumerate(cache.branches):
        with cache.branch(name):
            cache.write(0, whole(float(number)), whole(float(number)))
    with cache.branch("cond"):
        with cache.branch("uncond"):
            cache.write(0, whole(7.0, 1), whole(7.0, 1), torch.tensor([2]))
        assert cache.read(0)[0].unique().tolist() == [0.0], "back in the outer branch"
    with cache.branch("image"):
        assert cache.read(0)[0].unique().tolist() == [2.0]


def test_what_was_given_is_not_shared():
    cache, key = BranchCache(layers=1), whole(1.0)
    with cache.branch("cond"):
        cache.write(0, key, key)
        key.zero_()
        assert cache.read(0)[0].unique().tolist() == [1.0]
        buffer = cache.read(0)[0]
        assert cache.write(0, whole(3.0), whole(3.0))[0] is buffer, "written in place"
        assert cache.write(0, whole(4.0, 5), whole(4.0, 5))[0].shape[2] == 5, "another length begins anew"


def test_bytes_and_reset():
    cache = BranchCache(layers=2)
    assert cache.nbytes() == 0
    for name in cache.branches:
        with cache.branch(name):
            for layer in range(2):
                cache.write(layer, whole(), whole())
    assert cache.nbytes() == 2 * 2 * 2 * whole().numel() * 4

    class Config:
        num_layers, num_attention_heads, attention_head_dim = 2, 3, 4

    assert estimate_bytes(Config, 2, 8, torch.float32, "branch") == cache.nbytes()
    cache.reset()
    assert cache.nbytes() == 0
    with cache.branch("cond"), pytest.raises(RuntimeError, match="nothing was written yet"):
        cache.read(0)


def test_errors():
    cache = BranchCache(layers=1)
    with pytest.raises(RuntimeError, match="enter a branch first"):
        cache.read(0)
    with pytest.raises(UnknownNameError, match="'uncond'"), cache.branch("uncnd"):
        pass
    with cache.branch("cond"):
        with pytest.raises(RuntimeError, match="before some of them"):
            cache.write(0, whole(tokens=1), whole(tokens=1), torch.tensor([0]))
        cache.write(0, whole(), whole())
        with pytest.raises(ValueError, match="k_new"):
            cache.write(0, whole(tokens=1).half(), whole(tokens=1).half(), torch.tensor([0]))
    with pytest.raises(RuntimeError, match="enter a branch"):
        cache.read(0)
    for wrong in ({"layers": 0}, {"layers": 1, "branches": ()}, {"layers": 1, "branches": ("a", "a")}):
        with pytest.raises(ValueError, match="BranchCache"):
            BranchCache(**wrong)


@pytest.mark.parametrize("kept", ({"dtype": torch.float8_e4m3fn}, {"device": "cpu"}, {"dtype": torch.bfloat16}))
@pytest.mark.parametrize("idx", ([1, 4, 7], [[1, 4, 7], [0, 2, 3]]))
def test_states_may_be_kept_in_another_dtype_or_place(kept, idx):
    whole, part = torch.randn(2, 2, 2, 8, 4), torch.randn(2, 2, 2, 3, 4)
    plain, other = BranchCache(1), BranchCache(1, **kept)
    for cache in (plain, other):
        with cache.branch("cond"):
            cache.write(0, *whole)
            first = cache.write(0, *part, torch.tensor(idx))
            again = cache.write(0, *part, torch.tensor(idx))
            for one, two in zip(first, again, strict=True):
                assert torch.equal(one, two) and one.dtype == torch.float32
    with plain.branch("cond"):
        for exact, near in zip(plain.read(0), first, strict=True):
            torch.testing.assert_close(near, exact, rtol=0.07, atol=0.01)
    assert other.nbytes() <= plain.nbytes()
