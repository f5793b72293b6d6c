"""Bad arguments are a ValueError that names them; plans check themselves; ops work under torch.compile's fakes."""

import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mmaccel import kernels
from mmaccel.errors import UnknownNameError
from mmaccel.kernels import BlockPlan, dispatch

Q, K = torch.zeros(2, 4, 64, 16), torch.zeros(2, 2, 96, 16)
PLAN = BlockPlan.from_mask(torch.ones(1, 1, 2, 3, dtype=torch.bool), q_len=64, kv_len=96, block_m=32, block_n=32)
LENGTHS = torch.tensor([96, 96])
P = torch.full((2, 4, 8), 1 / 8)


def other_plan(**changes):
    sizes = {"q_len": 64, "kv_len": 96, "block_m": 32, "block_n": 32, **changes}
    rows, columns = -(-sizes["q_len"] // 32), -(-sizes["kv_len"] // 32)
    heads = sizes.pop("heads", 1)
    return BlockPlan.from_mask(torch.ones(1, heads, rows, columns, dtype=torch.bool), **sizes)


ATTENTION = {
    "q": (
        (Q[0], K, K), (Q.long(), K, K), (torch.zeros(2, 3, 64, 16), K, K),
    ),
    "k": (
        (Q, K[:1], K), (Q, K.half(), K), (Q, K[..., :8], K), (Q, K.to("meta"), K),
    ),
    "v": ((Q, K, K[:, :, :90]),),
    "plan.q_len": ((Q, K, K, other_plan(q_len=60)),),
    "plan.kv_len": ((Q, K, K, other_plan(kv_len=95)),),
    "plan": ((Q, K, K, other_plan(heads=3)),),
}  # fmt: skip


@pytest.mark.parametrize(("name", "arguments"), [(n, a) for n, cases in ATTENTION.items() for a in cases])
def test_attention_names_the_argument(name, arguments):
    with pytest.raises(ValueError, match=rf"^{re.escape(name)} must be .*, got "):
        kernels.block_sparse_attention(*arguments)


@pytest.mark.parametrize(
    ("name", "more"),
    (
        ("window", {"window": 0}),
        ("window", {"window": (1, 2, 3)}),
        ("q_pos", {"q_pos": torch.zeros(2, 63, dtype=torch.int32)}),
        ("q_pos", {"q_pos": torch.zeros(2, 64)}),
        ("q", {"cu_seqlens_q": torch.tensor([0, 64]), "cu_seqlens_k": torch.tensor([0, 96])}),
    ),
)
def test_positions_are_checked(name, more):
    with pytest.raises(ValueError, match=f"^{name} must be "):
        kernels.block_sparse_attention(Q, K, K, **more)


@pytest.mark.parametrize(
    ("name", "bounds"),
    (
        ("cu_seqlens_k", ([0, 64], [0, 95])),
        ("cu_seqlens_q", ([0, 70, 64], [0, 90, 96])),
        ("cu_seqlens_k", ([0, 64], [0, 10, 96])),
        ("cu_seqlens_k", ([0, 64], None)),
    ),
)
def test_sequence_bounds_are_checked(name, bounds):
    tensors = [None if b is None else torch.tensor(b) for b in bounds]
    with pytest.raises(ValueError, match=f"^{name} must be "):
        kernels.block_sparse_attention(Q[:1], K[:1], K[:1], cu_seqlens_q=tensors[0], cu_seqlens_k=tensors[1])


@pytest.mark.parametrize(
    ("name", "rest"),
    (
        ("lengths", (torch.tensor([96]),)),
        ("lengths", (torch.tensor([96.0, 96.0]),)),
        ("lengths", (torch.tensor([63, 96]),)),
        ("lengths", (torch.tensor([64, 97]),)),
        ("token_idx", (LENGTHS, torch.zeros(2, 4, 3, dtype=torch.int32))),
        ("token_idx", (LENGTHS, torch.tensor([3, 2]).expand(2, 2, 2))),
        ("token_idx", (LENGTHS, torch.tensor([3, 3]).expand(2, 2, 2))),
        ("token_idx", (LENGTHS, torch.tensor([-1, 3]).expand(2, 2, 2))),
        ("token_idx", (LENGTHS, torch.tensor([3, 96]).expand(2, 2, 2))),
        ("window_mask", (LENGTHS, None, torch.ones(3, 3, dtype=torch.bool))),
        ("window_mask", (LENGTHS, None, torch.ones(64, 64))),
        ("num_splits", (LENGTHS, None, None, -1)),
    ),
)
def test_verify_names_the_argument(name, rest):
    with pytest.raises(ValueError, match=f"^{name} must be "):
        kernels.verify_attention(Q, K, K, *rest)


def test_small_ops_name_the_argument():
    new, cache = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 5, 4)
    x, perm, ptr = torch.zeros(4, 3), torch.arange(4), torch.tensor([0, 2, 4])
    q, tok, u = P[:, :3], torch.zeros(2, 3).long(), torch.zeros(2, 3)
    cases = (
        ("idx", kernels.kv_scatter_, (new, new, torch.tensor([1, 1]), cache, cache.clone())),
        ("idx", kernels.kv_scatter_, (new, new, torch.tensor([1, 5]), cache, cache.clone())),
        ("idx", kernels.kv_scatter_, (new, new, torch.tensor([1]), cache, cache.clone())),
        ("k_new", kernels.kv_scatter_, (new.half(), new, torch.tensor([1, 2]), cache, cache.clone())),
        ("x", kernels.segment_mean, (x[0], None, perm, ptr)),
        ("w", kernels.segment_mean, (x, torch.ones(3), perm, ptr)),
        ("perm", kernels.segment_mean, (x, None, perm + 1, ptr)),
        ("ptr", kernels.segment_mean, (x, None, perm, ptr.flip(0))),
        ("p", kernels.accept_length, (P[:, :2], q, tok, u)),
        ("tok", kernels.accept_length, (P, q, tok + 8, u)),
        ("u", kernels.accept_length, (P, q, tok, u[:1])),
        ("p", kernels.residual_sample, (P[:, :2], q, torch.zeros(2).long(), 0)),
        ("n", kernels.residual_sample, (q, q, torch.tensor([0, 3]), 0)),
        ("n", kernels.residual_sample, (P, q, torch.tensor([0, 4]), 0)),
        ("seed", kernels.residual_sample, (P, q, torch.tensor([0, 3]), -1)),
        ("lse", kernels.merge_states, (torch.zeros(2, 3, 4), torch.zeros(2, 4))),
    )
    for name, op, arguments in cases:
        with pytest.raises(ValueError, match=f"^{name} must be "):
            op(*arguments)


# Plans


def raw(row_ptr=(0, 1, 3), col=(0, 0, 2), n_full=(0, 1), **sizes):
    tensors = [torch.tensor(x, dtype=torch.int32) for x in (row_ptr, col, n_full)]
    given = {"block_m": 32, "block_n": 32, "q_len": 64, "kv_len": 96, **sizes}
    return BlockPlan(tensors[0].view(1, 1, -1), tensors[1], tensors[2].view(1, 1, -1), **given)


@pytest.mark.parametrize(
    ("name", "changes"),
    (
        ("row_ptr", {"row_ptr": (0, 2, 1)}),
        ("row_ptr", {"row_ptr": (0, 1, 2)}),
        ("row_ptr", {"row_ptr": (0, 3)}),
        ("row_ptr", {"row_ptr": (1, 2, 3)}),
        ("col", {"col": (0, 0, 3)}),
        ("col", {"col": (0, 0, -1)}),
        ("col", {"col": (0, 2, 0), "n_full": (0, 0)}),
        ("col", {"col": (0, 1, 1), "n_full": (0, 0)}),
        ("col", {"col": (0, 1, 1)}),
        ("n_full", {"n_full": (2, 0)}),
        ("n_full", {"n_full": (0,)}),
        ("block_m", {"block_m": 24}),
        ("q_len", {"q_len": 0}),
    ),
)
def test_plans_check_themselves(name, changes):
    with pytest.raises(ValueError, match=f"^{name} must be "):
        raw(**changes)


def test_a_plan_says_what_it_holds():
    plan = raw()
    assert plan.mask().tolist() == [[[[True, False, False], [True, False, True]]]]
    assert plan.density == 0.5 and plan.rows == 2 and plan.columns == 3
    again = BlockPlan.from_mask(plan.mask(), q_len=64, kv_len=96, block_m=32, block_n=32, causal=True)
    assert again.mask().tolist() == plan.mask().tolist() and again.n_full.tolist() == [[[1, 1]]]
    moved = plan.to("meta")
    assert {x.device.type for x in (moved.row_ptr, moved.col, moved.n_full)} == {"meta"} and moved.rows == 2
    with pytest.raises(ValueError, match="^mask must be 2 rows and 3 columns of blocks"):
        BlockPlan.from_mask(plan.mask()[..., :2], q_len=64, kv_len=96, block_m=32, block_n=32)


# Dispatch


def test_backends():
    cpu = torch.device("cpu")
    assert kernels.choose(cpu) == "native" and kernels.choose(torch.device("meta")) == "native"
    with kernels.backend("reference"):
        assert kernels.choose(cpu) == "reference"
        with kernels.backend("auto"):
            assert kernels.choose(cpu) == "native"
        assert kernels.choose(cpu) == "reference"
    assert kernels.choose(cpu) == "native"
    with pytest.raises(UnknownNameError, match="did you mean 'native'"):
        kernels.backend("nativ")
    with kernels.backend("triton"), pytest.raises(ValueError, match='"triton"'):
        kernels.block_sparse_attention(Q, K, K)


def test_triton_runs_where_it_can(monkeypatch):
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    for there, chosen in ((True, "triton"), (False, "native")):
        monkeypatch.setattr(dispatch, "has_triton", lambda there=there: there)
        assert kernels.choose(cuda) == chosen and kernels.choose(cpu) == "native"
    with kernels.backend("triton"), pytest.raises(ValueError, match="Triton is not installed"):
        dispatch.implementation(cuda)
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with kernels.backend("triton"), pytest.raises(ValueError, match="needs CUDA tensors, got cpu"):
        dispatch.implementation(cpu)


def test_a_backend_is_left_after_an_error():
    with pytest.raises(ZeroDivisionError), kernels.backend("reference"):
        1 / 0  # noqa: B018
    assert kernels.choose(torch.device("cpu")) == "native"


def test_one_backend_entered_twice_leaves_twice():
    cpu, reference = torch.device("cpu"), kernels.backend("reference")
    with reference:
        with kernels.backend("triton"):
            with reference:
                assert kernels.choose(cpu) == "reference"
            assert kernels.choose(cpu) == "triton"
        assert kernels.choose(cpu) == "reference"
    assert kernels.choose(cpu) == "native"


def test_ops_have_fakes():
    with FakeTensorMode():
        q, k = torch.empty(2, 4, 64, 16, dtype=torch.bfloat16), torch.empty(2, 2, 96, 16, dtype=torch.bfloat16)
        for output, lse in (
            torch.ops.mmaccel.block_sparse_attention(q, k, k, None, None, None, 64, 64, -1, 0, None, None, None, 0.25),
            torch.ops.mmaccel.verify_attention(q, k, k, torch.empty(2).int(), None, None, 0, 0.25),
        ):
            assert output.shape == q.shape and output.dtype == q.dtype
            assert lse.shape == (2, 4, 64) and lse.dtype == torch.float32
        means = torch.ops.mmaccel.segment_mean(torch.empty(4, 3), None, torch.empty(4).long(), torch.empty(3).long())
        assert means.shape == (2, 3)
        assert torch.ops.mmaccel.merge_states(torch.empty(2, 3, 4), torch.empty(2, 3))[0].shape == (3, 4)
        p, q = torch.empty(2, 4, 8), torch.empty(2, 3, 8)
        count = torch.ops.mmaccel.accept_length(p, q, torch.empty(2, 3).long(), torch.empty(2, 3))
        assert count.shape == (2,) and count.dtype == torch.int32
        assert torch.ops.mmaccel.residual_sample(p, q, count, 0).dtype == torch.int64


def cache(slots=5):
    return torch.zeros(1, 1, slots, 4)


HONEST = {
    "merge_states": (torch.randn(2, 3, 4), torch.randn(2, 3)),
    "verify_attention": (torch.ones(1, 2, 2, 4), cache(), cache(), torch.tensor([5]), None, None, 0, 0.5),
    "kv_scatter_": (torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4), torch.tensor([1]), cache(), cache()),
    "segment_mean": (torch.randn(4, 3), None, torch.arange(4), torch.tensor([0, 2, 4])),
}


@pytest.mark.parametrize("name", HONEST)
def test_schemas_are_honest(name):
    """What an op says it mutates and returns is what it does."""
    op = getattr(torch.ops.mmaccel, name).default
    arguments = HONEST[name]
    if name == "verify_attention":
        arguments = (arguments[0], *(x.expand(1, 2, -1, -1).contiguous() for x in arguments[1:3]), *arguments[3:])
    torch.library.opcheck(op, arguments, test_utils=("test_schema", "test_faketensor"))
