"""Token merging and sampling."""

import pytest
import torch
from apple_gpu import AppleGpu

from mmaccel import kernels
from mmaccel.kernels.native import small

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", (False, True))
def test_segment_mean(dtype, weighted):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 12, 5, generator=generator).to(dtype)
    w = torch.rand(3, 12, generator=generator) if weighted else None
    if weighted:
        w[0, :4] = 0
    perm = torch.stack([torch.randperm(12, generator=generator) for _ in range(3)])
    perm[0, :4] = torch.arange(4)  # a segment of weight 0
    ptr = torch.tensor([[0, 4, 4, 12], [0, 1, 5, 9], [2, 3, 8, 12]])
    tolerance = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]
    with kernels.backend("reference"):
        expected = kernels.segment_mean(x.double(), w, perm, ptr)
    means = kernels.segment_mean(x, w, perm, ptr)
    assert means.dtype == dtype and means.shape == (3, 3, 5)
    torch.testing.assert_close(means.double(), expected, rtol=tolerance, atol=tolerance)
    assert not means[0, 1].any(), "an empty segment is 0"
    if weighted:
        assert not means[0, 0].any(), "a segment of weight 0 is 0"
    for row in range(3):  # the last one does not begin at the first of `perm`
        one = kernels.segment_mean(x[row], None if w is None else w[row], perm[row].int(), ptr[row].int())
        torch.testing.assert_close(one, means[row], rtol=tolerance, atol=tolerance)
    assert torch.equal(means, kernels.segment_mean(x, w, perm, ptr)), "deterministic"


@pytest.mark.parametrize("weighted", (False, True))
def test_segment_mean_on_an_apple_gpu(weighted, monkeypatch):
    """Before torch 2.10 it has no `embedding_bag`."""

    def missing(*_, **__):
        raise NotImplementedError("aten::_embedding_bag_forward_only")

    monkeypatch.setattr(small, "embedding_bag", missing)
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(2, 6, 4, generator=generator).half(), torch.tensor([[1, 2, 0, 0, 3, 1.0]] * 2)
    perm, ptr = torch.tensor([[5, 0, 2, 3, 4, 1]] * 2), torch.tensor([[0, 2, 2, 4, 6], [1, 2, 3, 4, 5]])
    given = x, w if weighted else None, perm, ptr
    with kernels.backend("reference"):
        expected = kernels.segment_mean(x.double(), *given[1:])
    with pytest.raises(NotImplementedError):
        small.segment_mean(*given)
    with AppleGpu():
        means = small.segment_mean(*given)
        one = small.segment_mean(*(each if each is None else each[1] for each in given))
    assert torch.equal(means[1], one)
    assert means.dtype == torch.float16
    torch.testing.assert_close(means.double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ("segment_mean", "accept_length", "residual_sample"))
def test_indices_of_both_types(name):
    """int32 and int64 alike, one row or several."""
    p, q = torch.tensor([0.0, 0.25, 0.75]).expand(2, 3, 3), torch.tensor([0.0, 1.0, 0.0]).expand(2, 2, 3)
    new = torch.randn(2, 3, 2, 4)
    tok = torch.tensor([[1, 1], [1, 2]])
    perm, ptr = torch.tensor([[2, 0, 1], [0, 1, 2]]), torch.tensor([[0, 1, 3], [1, 2, 3]])
    calls = {
        "segment_mean": lambda of: kernels.segment_mean(new[:, 0], None, of(perm % 2), of(ptr)),
        "accept_length": lambda of: kernels.accept_length(p, q, of(tok), torch.full((2, 2), 0.2)),
        "residual_sample": lambda of: kernels.residual_sample(p, q, of(torch.tensor([0, 2])), 3),
    }
    assert torch.equal(calls[name](torch.Tensor.int), calls[name](torch.Tensor.long))


def test_half_precision_of_drafts():
    """Products and differences are taken in float32, of drafts and weights of half precision too."""
    p, q = torch.tensor([[[0.2500, 0.75]]]).bfloat16(), torch.tensor([[[0.5, 0.5]]]).bfloat16()
    tok = torch.tensor([[0]])
    assert kernels.accept_length(p, q, tok, torch.tensor([[0.4999]])).item() == 1, "in bfloat16 it is one half"
    x, w = torch.tensor([[1.0], [2.0], [3.0]]).half(), torch.tensor([6e4, 6e4, 6e4]).half()
    mean = kernels.segment_mean(x, w, torch.arange(3), torch.tensor([0, 3]))
    assert mean.item() == 2 and mean.dtype == torch.float16, "sums beyond what half precision holds"


def test_no_draft_at_all():
    p = torch.tensor([0.0, 1.0, 0.0]).expand(2, 1, 3)
    q, none = p[:, :0], torch.zeros(2, 0)
    assert kernels.accept_length(p, q, none.long(), none).tolist() == [0, 0]
    assert kernels.residual_sample(p, q, torch.tensor([0, 0]), 0).tolist() == [1, 1]


def test_accept_length_against_the_reference():
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.rand(64, 5, 7, generator=generator).softmax(-1) for _ in range(2))
    tok, u = torch.randint(7, (64, 5), generator=generator), torch.rand(64, 5, generator=generator)
    with kernels.backend("reference"):
        expected = kernels.accept_length(p, q, tok, u)
    lengths = kernels.accept_length(p, q, tok, u)
    assert torch.equal(lengths, expected) and lengths.dtype == torch.int32
    assert len(lengths.unique()) > 3
    bonus = torch.cat([p, p.flip(-1)[:, :1]], 1)  # the place after the last draft, which nothing is compared with
    assert torch.equal(kernels.accept_length(bonus, q, tok, u), expected)
    assert kernels.accept_length(p, p, tok, u).eq(5).all(), "a draft with the model's own distribution always passes"


@pytest.mark.parametrize("name", ("reference", "native"))
def test_accept_at_the_edges(name):
    """`u` of exactly 0 keeps what the model may say and nothing else, and a `u` of exactly p / q keeps nothing."""
    p = torch.tensor([[[0.0, 1.0]], [[0.25, 0.75]], [[0.25, 0.75]], [[2.0**-40, 1.0]]])
    q, tok = torch.full((4, 1, 2), 0.5), torch.zeros(4, 1, dtype=torch.long)
    with kernels.backend(name):
        kept = kernels.accept_length(p, q, tok, torch.tensor([[0.0], [0.0], [0.5], [0.0]]))
    assert kept.tolist() == [0, 1, 0, 1]


P = torch.tensor([0.1, 0.4, 0.3, 0.2])
Q = torch.tensor([0.4, 0.1, 0.3, 0.2])


@pytest.mark.parametrize("name", ("reference", "native"))
def test_accept_and_residual_keep_the_distribution(name):
    """Two places, drafts from `Q`: the first token is distributed as the model says. Chi-square, 3 degrees."""
    rounds = 20_000 if name == "native" else 4_000
    generator = torch.Generator().manual_seed(1)
    tok = torch.multinomial(Q, 2 * rounds, replacement=True, generator=generator).view(rounds, 2)
    u = torch.rand(rounds, 2, generator=generator)
    p, q = P.expand(rounds, 3, 4), Q.expand(rounds, 2, 4)
    with kernels.backend(name):
        kept = kernels.accept_length(p, q, tok, u)
        after = kernels.residual_sample(p, q, kept, seed=7)
    first = torch.where(kept > 0, tok[:, 0], after)
    assert chi_square(first, P) < 16.3, "0.1 % of a chi-square with 3 degrees of freedom"
    assert chi_square(after[kept == 2], P) < 16.3, "the bonus token is drawn from the model"
    rejected = after[kept < 2]
    assert set(rejected.tolist()) == {1}, "the residual of these distributions is one token"
    assert abs((kept > 0).float().mean() - 0.7) < 0.03


def test_a_wrong_residual_is_seen():
    """The negative control: resampling from the model instead of the residual."""
    rounds = 4_000
    generator = torch.Generator().manual_seed(1)
    tok = torch.multinomial(Q, rounds, replacement=True, generator=generator)[:, None]
    p, q = P.expand(rounds, 2, 4), Q.expand(rounds, 1, 4)
    kept = kernels.accept_length(p, q, tok, torch.rand(rounds, 1, generator=generator))
    wrong = kernels.residual_sample(p, torch.zeros_like(q), kept, seed=7)
    assert chi_square(torch.where(kept > 0, tok[:, 0], wrong), P) > 100


def chi_square(tokens, distribution):
    counts = torch.bincount(tokens, minlength=len(distribution)).double()
    expected = distribution.double() * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_residual_of_equal_distributions_falls_back_to_the_model():
    tokens = kernels.residual_sample(P.expand(500, 2, 4), P.expand(500, 1, 4), torch.zeros(500).long(), seed=3)
    assert chi_square(tokens, P) < 16.3


def test_residual_is_seeded_and_leaves_the_random_state():
    p, q, n = P.expand(50, 2, 4), Q.expand(50, 1, 4), torch.ones(50).int()
    state = torch.get_rng_state()
    first = kernels.residual_sample(p, q, n, seed=3)
    assert torch.equal(first, kernels.residual_sample(p, q, n, seed=3))
    assert not torch.equal(first, kernels.residual_sample(p, q, n, seed=4))
    assert torch.equal(state, torch.get_rng_state())
