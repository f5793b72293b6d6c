"""Merging, segment means and sampling in the interpreter."""

import pytest
import torch

from mmaccel import kernels
from mmaccel.kernels.gpu.merge_states import merge_into
from mmaccel.kernels.native.merge_states import merge_states

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}


@pytest.fixture(autouse=True)
def triton():
    with kernels.backend("triton"):
        yield


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def reference(op, *arguments):
    with kernels.backend("reference"):
        return op(*arguments)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "width"), (((2, 3, 7), 40), ((5,), 1), ((1, 33), 200)))
def test_merge_states(dtype, shape, width):
    output, lse = random(3, *shape, width).to(dtype), random(3, *shape, seed=1)
    lse[0, ..., 0], lse[:, ..., 1] = -torch.inf, -torch.inf
    output[0, ..., 0, :] = torch.nan
    merged, total = merge_into(output, lse, output.dtype)
    expected, expected_total = merge_states(output.double(), lse)
    torch.testing.assert_close(merged.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    torch.testing.assert_close(total, expected_total, rtol=2e-6, atol=2e-6)
    assert not merged[..., 1, :].any() and merged.dtype == dtype


def test_merge_states_strides():
    output, lse = random(7, 40, 3).permute(2, 0, 1), random(7, 3, seed=1).T
    merged, total = merge_into(output, lse, output.dtype)
    expected, expected_total = merge_states(output.double(), lse)
    torch.testing.assert_close(merged.double(), expected, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(total, expected_total, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batched", (False, True))
@pytest.mark.parametrize("weighted", (False, True))
def test_segment_mean(dtype, batched, weighted):
    x = random(2, 40, 140).to(dtype)[:, :, :: 2 if batched else 1]
    w = random(2, 40, seed=1).abs() if weighted else None
    perm = torch.stack([torch.randperm(40, generator=torch.Generator().manual_seed(s)) for s in (0, 1)])
    ptr = torch.tensor([[2, 5, 5, 8, 30, 40], [0, 1, 2, 3, 4, 38]])
    if weighted:
        w[0, perm[0, 5:8]] = 0.0
    if not batched:
        x, w, perm, ptr = x[0], None if w is None else w[0], perm[0].int(), ptr[0].int()
    mean = kernels.segment_mean(x, w, perm, ptr)
    expected = reference(kernels.segment_mean, x.double(), w, perm, ptr)
    assert mean.dtype == dtype and torch.equal(mean, kernels.segment_mean(x, w, perm, ptr))
    torch.testing.assert_close(mean.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert not (mean[0, 1] if batched else mean[1]).any()


def distributions(batch, places, vocabulary, seed=0):
    p = (random(batch, places + 1, vocabulary, seed=seed) * 2).softmax(-1)
    return p, (random(batch, places, vocabulary, seed=seed + 1) * 2).softmax(-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("places", (0, 1, 5, 20))
def test_accept_length(dtype, places):
    p, q = (x.to(dtype) for x in distributions(8, places, 30))
    tok = torch.randint(30, (8, places), generator=torch.Generator().manual_seed(2))
    p[:, :places][:4] = q[:4]  # so that some rows pass all places
    u = torch.rand(8, places, generator=torch.Generator().manual_seed(3))
    for model, token in ((p, tok), (p[:, :places].flip(2), tok.int())):
        kept = kernels.accept_length(model, q, token, u)
        assert kept.dtype == torch.int32 and torch.equal(kept, reference(kernels.accept_length, model, q, token, u))


def apart(x):
    """The same numbers, with others between them and around each row."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 3), 7).to(x.dtype)
    wide[..., : 2 * x.shape[-1] : 2] = x
    return wide[..., : 2 * x.shape[-1] : 2]


def test_arguments_of_any_stride():
    p, q = distributions(8, 5, 30)
    for row in range(6):
        p[row, :row] = q[row, :row]  # at least so many are kept
    tok = torch.randint(30, (8, 5), generator=torch.Generator().manual_seed(2))
    u = torch.rand(8, 5, generator=torch.Generator().manual_seed(3))
    kept = kernels.accept_length(p, q, tok, u)
    assert len(kept.unique()) > 2
    given = [p, q, tok, u]
    for number in range(4):
        strided = [apart(x) if i == number else x for i, x in enumerate(given)]
        assert torch.equal(kernels.accept_length(*strided), kept)
    token = kernels.residual_sample(p, q, kept, 5)
    for strided in ((apart(p), q, kept), (p, apart(q), kept), (p, q, apart(kept))):
        assert torch.equal(kernels.residual_sample(*strided, 5), token)
    one_row = (p[:1].expand(8, -1, -1), q[:1].expand(8, -1, -1))
    assert torch.equal(kernels.accept_length(*one_row, tok, u), reference(kernels.accept_length, *one_row, tok, u))


def test_segments_of_any_stride():
    x, w = random(2, 20, 24), random(2, 20, seed=1).abs()
    perm = torch.stack([torch.randperm(20, generator=torch.Generator().manual_seed(s)) for s in (0, 1)])
    ptr = torch.tensor([[0, 3, 9, 20], [1, 2, 12, 18]])
    given = [x, w, perm, ptr]
    expected = kernels.segment_mean(*given)
    for number in range(4):
        strided = [apart(y) if i == number else y for i, y in enumerate(given)]
        assert torch.equal(kernels.segment_mean(*strided), expected)
        shared = [y[:1].expand_as(y) if i == number else y for i, y in enumerate(given)]
        torch.testing.assert_close(kernels.segment_mean(*shared), reference(kernels.segment_mean, *shared))


@pytest.mark.parametrize("name", ("p", "q", "u"))
def test_float64_is_refused_of_each_argument(name):
    given = {"p": torch.ones(1, 2, 3), "q": torch.ones(1, 1, 3), "tok": torch.zeros(1, 1).long(), "u": torch.ones(1, 1)}
    given[name] = given[name].double()
    with pytest.raises(ValueError, match=f"^{name} must be float32, float16 or bfloat16 on the Triton backend"):
        kernels.accept_length(*given.values())
    x, w = torch.ones(2, 3), torch.ones(2)
    for argument, weighted in (("x", (x.double(), None)), ("w", (x, w.double()))):
        with pytest.raises(ValueError, match=f"^{argument} must be"):
            kernels.segment_mean(*weighted, torch.arange(2), torch.tensor([0, 2]))
    p, q = torch.ones(1, 2, 3), torch.ones(1, 1, 3)
    for argument, drafted in (("p", (p.double(), q)), ("q", (p, q.double()))):
        with pytest.raises(ValueError, match=f"^{argument} must be"):
            kernels.residual_sample(*drafted, torch.tensor([0]), 0)


def test_nothing_to_do():
    p = torch.ones(0, 2, 3)
    assert kernels.accept_length(p, p[:, :1], torch.zeros(0, 1).long(), torch.zeros(0, 1)).shape == (0,)
    token = kernels.residual_sample(p, p[:, :1], torch.zeros(0).long(), 0)
    assert token.shape == (0,) and token.dtype == torch.int64
    assert kernels.segment_mean(torch.ones(2, 3), None, torch.arange(2), torch.tensor([0])).shape == (0, 3)
    merged, total = merge_into(torch.ones(2, 0, 4), torch.ones(2, 0), torch.float32)
    assert merged.shape == (0, 4) and total.shape == (0,)


def test_accept_length_is_strict():
    p, q = torch.tensor([[[0.25, 0.75]]]), torch.tensor([[[0.5, 0.5]]])
    for u, kept in ((0.5, 0), (0.49999997, 1)):
        assert kernels.accept_length(p, q, torch.tensor([[0]]), torch.tensor([[u]])).item() == kept


def test_residual_sample_reads_the_right_place():
    p, q = torch.zeros(4, 3, 2500), torch.full((4, 2, 2500), 1 / 2500)
    for row, token in enumerate((3, 1030, 2499, 0)):
        p[row, row % 3, token] = 1.0
    n = torch.tensor([0, 1, 2, 0], dtype=torch.int32)
    assert kernels.residual_sample(p.transpose(0, 1).contiguous().transpose(0, 1), q, n, 3).tolist() == [
        3,
        1030,
        2499,
        0,
    ]


def test_residual_of_zero_falls_back():
    p = torch.zeros(2, 2, 100)
    p[:, 0, 70] = 1.0
    tokens = kernels.residual_sample(p, p[:, :1], torch.tensor([0, 0]), 0)
    assert tokens.tolist() == [70, 70] and tokens.dtype == torch.int64


def test_seeds_and_rows():
    p, q = (x[:1].expand(20, -1, -1) for x in distributions(1, 1, 1100))
    n = torch.ones(20, dtype=torch.int64)
    first, again, other, large = (kernels.residual_sample(p, q, n, seed).tolist() for seed in (1, 1, 2, 2**63 - 1))
    assert first == again and len({tuple(x) for x in (first, other, large)}) == 3
    assert len(set(first)) > 10  # rows draw independently


def chi_square(tokens, distribution):
    expected = distribution.double() * len(tokens)
    return ((torch.bincount(tokens, minlength=len(distribution)) - expected) ** 2 / expected).sum().item()


def test_accepting_and_sampling_have_the_distribution_of_the_model():
    """The first token after one draft; with 5 degrees of freedom 27.9 is exceeded in 4 of 100,000 cases."""
    rows = 800
    p, q = distributions(1, 1, 6, seed=4)
    p, q = p.expand(rows, -1, -1), ((p[:, :1] + q) / 2).expand(rows, -1, -1)
    generator = torch.Generator().manual_seed(0)
    draft = torch.multinomial(q[0], rows, replacement=True, generator=generator).T
    kept = kernels.accept_length(p, q, draft, torch.rand(rows, 1, generator=generator))
    sampled = kernels.residual_sample(p, q, kept, 17)
    first = torch.where(kept > 0, draft[:, 0], sampled)
    assert 0.2 < kept.float().mean() < 0.9
    assert chi_square(first, p[0, 0]) < 27.9
    assert chi_square(sampled[kept == 1], p[0, 1]) < 27.9
    residual = (p[0, 0] - q[0, 0]).clamp(min=0)
    assert not sampled[kept == 0].bincount(minlength=6)[residual == 0].any()
