"""Bad arguments are a ValueError that names them; plans check themselves; ops work under torch.compile's fakes."""

import re
import subprocess
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mmaccel import kernels
from mmaccel.errors import UnknownNameError
from mmaccel.kernels import BlockPlan, dispatch, library, reference
from mmaccel.kernels.native import long_cache

Q, K = torch.zeros(2, 4, 64, 16), torch.zeros(2, 2, 96, 16)
PLAN = BlockPlan.from_mask(torch.ones(1, 1, 2, 3, dtype=torch.bool), q_len=64, kv_len=96, block_m=32, block_n=32)
LENGTHS = torch.tensor([96, 96])
P = torch.full((2, 4, 8), 1 / 8)


def other_plan(**changes):
    sizes = {"q_len": 64, "kv_len": 96, "block_m": 32, "block_n": 32, **changes}
    rows, columns = -(-sizes["q_len"] // 32), -(-sizes["kv_len"] // 32)
    batch, heads = sizes.pop("batch", 1), sizes.pop("heads", 1)
    return BlockPlan.from_mask(torch.ones(batch, heads, rows, columns, dtype=torch.bool), **sizes)


ATTENTION = {
    "q": (
        (Q[0], K, K), (Q.long(), K, K), (torch.zeros(2, 3, 64, 16), K, K), (Q, K[:, :0], K[:, :0]),
    ),
    "k": (
        (Q, K[0], K), (Q, K[:1], K), (Q, K.half(), K), (Q, K[..., :8], K), (Q, K.to("meta"), K),
    ),
    "v": ((Q, K, K[:, :, :90]), (Q, K, K.half()), (Q, K, K.to("meta")), (Q, K, K[0])),
    "plan.q_len": ((Q, K, K, other_plan(q_len=60)),),
    "plan.kv_len": ((Q, K, K, other_plan(kv_len=95)),),
    "plan": (
        (Q, K, K, other_plan(heads=3)), (Q, K, K, other_plan(batch=3)), (Q, K, K, PLAN.to("meta")),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "arguments"), [(n, a) for n, cases in ATTENTION.items() for a in cases])
def test_attention_names_the_argument(name, arguments):
    with pytest.raises(ValueError, match=rf"^{re.escape(name)} must be .*, got "):
        kernels.block_sparse_attention(*arguments)


def test_an_error_says_what_was_expected_and_what_came():
    with pytest.raises(ValueError) as error:
        kernels.block_sparse_attention(Q, K, K.bfloat16())
    assert str(error.value) == "v must be float32, as q is, got bfloat16 [2, 2, 96, 16] on cpu"
    with pytest.raises(ValueError, match=r"^plan must be of 1 or 2 or 4 heads, got int32 \[1, 3, 2\] on cpu$"):
        kernels.block_sparse_attention(Q, K, K, other_plan(heads=3))
    with pytest.raises(ValueError, match=r"^window_mask must be bool \[64, 64\] or \[2, 64, 64\], got float32"):
        kernels.verify_attention(Q, K, K, LENGTHS, None, torch.ones(64, 64))


@pytest.mark.parametrize("window", (0, (-2, 0), (1, 2, 3)))
def test_windows_are_checked(window):
    with pytest.raises(ValueError, match="^window must be "):
        kernels.block_sparse_attention(Q, K, K, window=window)


@pytest.mark.parametrize(
    ("name", "rest"),
    (
        ("lengths", (torch.tensor([96]),)),
        ("lengths", (torch.tensor([96.0, 96.0]),)),
        ("lengths", (torch.tensor([63, 96]),)),
        ("lengths", (torch.tensor([64, 97]),)),
        ("lengths", (LENGTHS.to("meta"),)),
        ("lengths", (LENGTHS[:, None],)),
        ("token_idx", (LENGTHS, torch.zeros(2, 4, 3, dtype=torch.int32))),
        ("token_idx", (LENGTHS, torch.zeros(1, 2, 1, dtype=torch.int32))),
        ("token_idx", (LENGTHS, torch.zeros(2, 2, 1))),
        ("token_idx", (LENGTHS, torch.zeros(2, 2, 1, dtype=torch.int32, device="meta"))),
        ("token_idx", (LENGTHS, torch.tensor([-2, 3]).expand(2, 2, 2))),
        ("token_idx", (LENGTHS, torch.tensor([3, 3, -1]).expand(2, 2, 3))),
        ("token_idx", (LENGTHS, torch.tensor([3, -1, 5]).expand(2, 2, 3))),
        ("token_idx", (torch.tensor([96, 80]), torch.tensor([3, 80]).expand(2, 2, 2))),
        ("token_idx", (LENGTHS, torch.tensor([3, 2]).expand(2, 2, 2))),
        ("token_idx", (LENGTHS, torch.tensor([3, 3]).expand(2, 2, 2))),
        ("token_idx", (LENGTHS, torch.tensor([-1, 3]).expand(2, 2, 2))),
        ("token_idx", (LENGTHS, torch.tensor([3, 96]).expand(2, 2, 2))),
        ("window_mask", (LENGTHS, None, torch.ones(3, 3, dtype=torch.bool))),
        ("window_mask", (LENGTHS, None, torch.ones(64, 64))),
        ("window_mask", (LENGTHS, None, torch.ones(1, 64, 64, dtype=torch.bool))),
        ("window_mask", (LENGTHS, None, torch.ones(64, 64, dtype=torch.bool, device="meta"))),
    ),
)
def test_verify_names_the_argument(name, rest):
    with pytest.raises(ValueError, match=f"^{name} must be "):
        kernels.verify_attention(Q, K, K, *rest)


def test_more_queries_than_slots_are_refused():
    with pytest.raises(ValueError, match="^q must be of at most 60 tokens, the slots of k"):
        kernels.verify_attention(Q, K[:, :, :60], K[:, :, :60], torch.tensor([60, 60]))
    kernels.verify_attention(Q, K[:, :, :64], K[:, :, :64], torch.tensor([64, 64]))  # as many are none too many


def test_small_ops_name_the_argument():
    x, perm, ptr = torch.zeros(4, 3), torch.arange(4), torch.tensor([0, 2, 4])
    q, tok, u = P[:, :3], torch.zeros(2, 3).long(), torch.zeros(2, 3)
    cases = (
        ("x", kernels.segment_mean, (x[0], None, perm, ptr)),
        ("x", kernels.segment_mean, (x.long(), None, perm, ptr)),
        ("w", kernels.segment_mean, (x, torch.ones(4).long(), perm, ptr)),
        ("w", kernels.segment_mean, (x, torch.ones(4, device="meta"), perm, ptr)),
        ("perm", kernels.segment_mean, (x, None, perm - 1, ptr)),
        ("perm", kernels.segment_mean, (x, None, perm.float(), ptr)),
        ("perm", kernels.segment_mean, (x[None], None, perm.expand(2, -1), ptr[None])),
        ("ptr", kernels.segment_mean, (x[None], None, perm[None], ptr)),
        ("ptr", kernels.segment_mean, (x[None], None, perm[None], ptr.expand(2, -1))),
        ("ptr", kernels.segment_mean, (x, None, perm, ptr[:0])),
        ("ptr", kernels.segment_mean, (x, None, perm, ptr + 1)),
        ("ptr", kernels.segment_mean, (x, None, perm, ptr - 1)),
        ("w", kernels.segment_mean, (x, torch.ones(3), perm, ptr)),
        ("perm", kernels.segment_mean, (x, None, perm + 1, ptr)),
        ("ptr", kernels.segment_mean, (x, None, perm, ptr.flip(0))),
        ("p", kernels.accept_length, (P[:, :2], q, tok, u)),
        ("tok", kernels.accept_length, (P, q, tok + 8, u)),
        ("u", kernels.accept_length, (P, q, tok, u[:1])),
        ("u", kernels.accept_length, (P, q, tok, tok)),
        ("u", kernels.accept_length, (P, q, tok, u.to("meta"))),
        ("tok", kernels.accept_length, (P, q, tok - 1, u)),
        ("tok", kernels.accept_length, (P, q, tok[:, :2], u)),
        ("tok", kernels.accept_length, (P, q, u, u)),
        ("q", kernels.accept_length, (P, q[0], tok, u)),
        ("q", kernels.accept_length, (P, q.long(), tok, u)),
        ("p", kernels.accept_length, (P.long(), q, tok, u)),
        ("p", kernels.accept_length, (P.to("meta"), q, tok, u)),
        ("p", kernels.residual_sample, (P[:, :2], q, torch.zeros(2).long(), 0)),
        ("n", kernels.residual_sample, (P, q, torch.tensor([0, -1]), 0)),
        ("n", kernels.residual_sample, (P, q, torch.tensor([0]), 0)),
        ("n", kernels.residual_sample, (P, q, torch.tensor([0.0, 1.0]), 0)),
        ("n", kernels.residual_sample, (P, q, torch.tensor([0, 1], device="meta"), 0)),
        ("seed", kernels.residual_sample, (P, q, torch.tensor([0, 3]), 2**63)),
        ("n", kernels.residual_sample, (q, q, torch.tensor([0, 3]), 0)),
        ("n", kernels.residual_sample, (P, q, torch.tensor([0, 4]), 0)),
        ("seed", kernels.residual_sample, (P, q, torch.tensor([0, 3]), -1)),
    )
    for name, op, arguments in cases:
        with pytest.raises(ValueError, match=f"^{name} must be "):
            op(*arguments)
    kernels.residual_sample(P, q, torch.tensor([0, 3]), 2**63 - 1)  # the last seed that there is


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
        ("kv_len", {"kv_len": 0}),
        ("block_m", {"block_m": 8}),
        ("block_n", {"block_n": 48}),
        ("n_full", {"n_full": (0, -1)}),
    ),
)
def test_plans_check_themselves(name, changes):
    with pytest.raises(ValueError, match=f"^{name} must be "):
        raw(**changes)


def test_plans_check_their_tensors():
    plan = raw()
    sizes = (32, 32, 64, 96)
    for name, tensors in (
        ("row_ptr", (plan.row_ptr.long(), plan.col, plan.n_full)),
        ("row_ptr", (plan.row_ptr.to("meta"), plan.col, plan.n_full)),
        ("row_ptr", (plan.row_ptr[0], plan.col, plan.n_full)),
        ("row_ptr", (plan.row_ptr.expand(1, 2, -1), plan.col, plan.n_full)),
        ("row_ptr", (plan.row_ptr.expand(1, 2, -1), plan.col, plan.n_full.expand(1, 2, -1))),  # heads share no columns
        ("col", (plan.row_ptr, plan.col.long(), plan.n_full)),
        ("col", (plan.row_ptr, plan.col[None], plan.n_full)),
        ("n_full", (plan.row_ptr, plan.col, plan.n_full.long())),
        ("n_full", (plan.row_ptr, plan.col, plan.n_full.to("meta"))),
    ):
        with pytest.raises(ValueError, match=f"^{name} must be "):
            BlockPlan(*tensors, *sizes)
    for mask in (torch.ones(2, 3).bool(), torch.ones(1, 1, 2, 3)):
        with pytest.raises(ValueError, match="^mask must be a bool tensor"):
            BlockPlan.from_mask(mask, q_len=64, kv_len=96, block_m=32, block_n=32)
    with pytest.raises(ValueError, match="^block_n must be a power of two"):
        BlockPlan.from_mask(torch.ones(1, 1, 2, 4).bool(), q_len=64, kv_len=96, block_m=32, block_n=24)


def test_shares_of_a_plan():
    """Of all blocks, and of those with a pair that is seen; a plan made without a window may hold more than those."""
    plan = other_plan(heads=2)
    assert plan.density == 1 and plan.visible_share() == 1 and plan.visible_share(causal=True) == 1
    plan = BlockPlan.from_mask(torch.eye(3).bool()[None, None], q_len=96, kv_len=96, block_m=32, block_n=32)
    assert plan.density == pytest.approx(1 / 3) and plan.visible_share(causal=True) == pytest.approx(1 / 2)
    assert plan.visible_share(window=(32, 0)) == pytest.approx(3 / 5)
    assert plan.visible_share(True, (0, 0)) == 1  # to the last bit: such a plan needs no measurement


def test_a_plan_says_what_it_holds():
    plan = raw()
    assert plan.mask().tolist() == [[[[True, False, False], [True, False, True]]]]
    assert plan.density == 0.5 and plan.rows == 2 and plan.columns == 3
    again = BlockPlan.from_mask(plan.mask(), q_len=64, kv_len=96, block_m=32, block_n=32, causal=True)
    assert again.mask().tolist() == plan.mask().tolist() and again.n_full.tolist() == [[[1, 1]]]
    assert plan.to("meta").mask().is_meta, "no value is read back"
    moved = plan.to("meta")
    assert {x.device.type for x in (moved.row_ptr, moved.col, moved.n_full)} == {"meta"} and moved.rows == 2
    whole = torch.ones(1, 2, 1, 6).bool()
    other = BlockPlan.from_mask(whole, q_len=40, kv_len=90, block_m=64, block_n=16).to("cpu")
    assert (other.block_m, other.block_n, other.q_len, other.kv_len) == (64, 16, 40, 90)
    assert other.mask().shape == (1, 2, 1, 6) and other.mask().all()
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


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of a compute capability, and the driver of a Triton that has a compiler or an error in its place."""

    def made(capability=(9, 0), error=None):
        def target():
            if error is not None:
                raise error

        driver = SimpleNamespace(active=SimpleNamespace(get_current_target=target))
        monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
        monkeypatch.setitem(sys.modules, "triton.runtime", SimpleNamespace(driver=driver))
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
        monkeypatch.setattr(dispatch, "has_triton", lambda: True)
        dispatch.runs_triton.cache_clear()
        return torch.device("cuda")

    yield made
    dispatch.runs_triton.cache_clear()


def test_triton_runs_where_it_can(monkeypatch, gpu):
    cuda, cpu = gpu(), torch.device("cpu")
    for there, chosen in ((True, "triton"), (False, "native")):
        monkeypatch.setattr(dispatch, "has_triton", lambda there=there: there)
        dispatch.runs_triton.cache_clear()
        assert kernels.choose(cuda) == chosen and kernels.choose(cpu) == "native"
    with kernels.backend("triton"), pytest.raises(ValueError, match="Triton is not installed"):
        dispatch.implementation(cuda)
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with kernels.backend("triton"), pytest.raises(ValueError, match="needs CUDA tensors, got cpu"):
        dispatch.implementation(cpu)


OBSTACLES = {
    "compiler": (RuntimeError("Failed to find C compiler.\nPlease specify one"), "Failed to find C compiler."),
    "headers": (subprocess.CalledProcessError(1, ["gcc", "main.c"]), "Command '['gcc', 'main.c']' returned non-zero"),
    "cache": (PermissionError(13, "Permission denied", "/.triton"), "[Errno 13] Permission denied: '/.triton'"),
    "driver": (AssertionError("libcuda.so cannot found!\nPossible files are"), "libcuda.so cannot found!"),
    "unsaid": (ImportError(), "ImportError"),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_where_triton_cannot_compile_torchs_own_ops_run_and_a_warning_says_so(gpu, name):
    error, said = OBSTACLES[name]
    cuda = gpu(error=error)
    with pytest.warns(UserWarning, match=re.escape(f"on cuda, since Triton cannot run: {said}")) as warned:
        assert [kernels.choose(cuda), kernels.choose(cuda)] == ["native", "native"]
    assert len(warned) == 1 and "\n" not in str(warned[0].message)
    with kernels.backend("triton"):
        assert kernels.choose(cuda) == "triton", "who asks for it gets its error"


def test_triton_is_not_asked_on_gpus_that_it_does_not_support(gpu, monkeypatch):
    with pytest.warns(UserWarning, match=r"compute capability is 7\.5, and Triton supports 8\.0 and up"):
        assert kernels.choose(gpu((7, 5))) == "native"
    assert kernels.choose(gpu((8, 0))) == kernels.choose(gpu((12, 0))) == "triton"
    monkeypatch.setattr("torch.version.hip", "7.0")  # AMD's numbers are others
    assert kernels.choose(gpu((7, 5))) == "triton"


def test_triton_is_looked_for_and_not_imported(monkeypatch):
    asked = []
    monkeypatch.setattr(dispatch.importlib.util, "find_spec", lambda name: asked.append(name))
    dispatch.has_triton.cache_clear()
    try:
        assert not dispatch.has_triton() and not dispatch.has_triton()
        assert asked == ["triton"], "once in a process"
    finally:
        dispatch.has_triton.cache_clear()


def test_the_interpreter_takes_tensors_of_the_cpu(monkeypatch):
    found = []
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    monkeypatch.setattr(dispatch.importlib, "import_module", found.append)
    with kernels.backend("triton") as name:
        assert name == "triton"
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        dispatch.implementation(torch.device("cpu"))
        monkeypatch.delenv("TRITON_INTERPRET")
        dispatch.implementation(torch.device("cuda"))
    with kernels.backend("reference"):
        dispatch.implementation(torch.device("cuda"))
    dispatch.implementation(torch.device("cpu"))
    folders = ("gpu", "gpu", "reference", "native")
    assert found == [f"mmaccel.kernels.{folder}" for folder in folders]


def test_a_backend_of_one_thread_is_not_that_of_another():
    found = []
    with kernels.backend("reference"):
        other = threading.Thread(target=lambda: found.append(kernels.choose(torch.device("cpu"))))
        other.start()
        other.join()
    assert found == ["native"]


def test_the_first_tensor_says_where_an_op_runs(monkeypatch):
    asked = []
    monkeypatch.setattr(library, "implementation", lambda device: asked.append(device) or reference)
    kernels.segment_mean(torch.zeros(2, 3), None, torch.arange(2), torch.tensor([0, 2]))
    assert asked == [torch.device("cpu")]


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
        q = torch.empty(2, 64, 4, 16, dtype=torch.bfloat16).transpose(1, 2)  # as projections leave it
        k = torch.empty(2, 2, 96, 16, dtype=torch.bfloat16)
        for output, lse in (
            kernels.block_sparse_attention(q, k, k, causal=True),
            kernels.verify_attention(q, k, k, torch.empty(2).int(), torch.empty(2, 2, 9).int()),
        ):
            assert output.shape == q.shape and output.dtype == q.dtype and output.is_contiguous()
            assert lse.shape == (2, 4, 64) and lse.dtype == torch.float32
        means = kernels.segment_mean(torch.empty(4, 3), None, torch.empty(4).long(), torch.empty(3).long())
        assert means.shape == (2, 3)
        index = torch.empty(5, 4).long()
        means = kernels.segment_mean(torch.empty(5, 9, 3).half(), None, index, index)
        assert means.shape == (5, 3, 3) and means.dtype == torch.float16
        p, q = torch.empty(2, 4, 8), torch.empty(2, 3, 8)
        count = kernels.accept_length(p, q, torch.empty(2, 3).long(), torch.empty(2, 3))
        assert count.shape == (2,) and count.dtype == torch.int32
        token = kernels.residual_sample(p, q, count, 0)
        assert token.dtype == torch.int64 and token.shape == (2,)


DRAWN = torch.Generator().manual_seed(0)
VERIFIED = (torch.randn(2, 4, 3, 16, generator=DRAWN), *torch.randn(2, 2, 2, 96, 16, generator=DRAWN))
CALLS = {
    "block_sparse_attention": VERIFIED,
    "verify_attention": (*VERIFIED, LENGTHS, torch.arange(96).expand(2, 2, 96)),
    "segment_mean": (torch.randn(6, 3, generator=DRAWN), torch.rand(6), torch.arange(6), torch.tensor([0, 2, 6])),
    "accept_length": (P, P[:, :3], torch.zeros(2, 3).long(), torch.rand(2, 3, generator=DRAWN)),
    "residual_sample": (P, P[:, :3], torch.tensor([0, 3]), 5),
    "skinny_linear": (torch.randn(2, 256, generator=DRAWN), torch.randn(512, 256, generator=DRAWN)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_compiled_whole(name):
    """Values are not read: where a graph is made there are none."""
    op = getattr(kernels, name)
    compiled = torch.compile(lambda *given: op(*given), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*CALLS[name]), op(*CALLS[name]), rtol=0, atol=0)


@pytest.mark.parametrize("name", ("block_sparse_attention", "verify_attention", "segment_mean"))
@pytest.mark.parametrize("place", (0, 1))
def test_gradients_are_an_error(name, place):
    """They would be left out of the sum, which then looks like one."""
    given = list(CALLS[name])
    given[place] = given[place].clone().requires_grad_()
    plain = getattr(kernels, name)(*CALLS[name])
    found = getattr(kernels, name)(*given)
    torch.testing.assert_close(found, plain, rtol=0, atol=0)
    first = found if isinstance(found, torch.Tensor) else found[0]
    with pytest.raises(NotImplementedError, match=rf"^mmaccel\.kernels\.{name} has no gradient: .*torch\.no_grad\(\)"):
        first.sum().backward()
    with torch.no_grad():
        found = getattr(kernels, name)(*given)
    assert not any(x.requires_grad for x in (found if isinstance(found, tuple) else (found,)))


def test_whole_numbers_have_no_gradient():
    p = P.clone().requires_grad_()
    assert not kernels.accept_length(p, *CALLS["accept_length"][1:]).requires_grad
    assert not kernels.residual_sample(p, *CALLS["residual_sample"][1:]).requires_grad


HONEST = {
    "verify_attention": (torch.ones(1, 2, 2, 4), *torch.zeros(2, 1, 2, 5, 4), torch.tensor([5]), None, None, 0.5),
    "segment_mean": (torch.randn(4, 3), None, torch.arange(4), torch.tensor([0, 2, 4])),
}


@pytest.mark.parametrize("name", HONEST)
def test_schemas_are_honest(name):
    """What an op says it mutates and returns is what it does."""
    op = getattr(torch.ops.mmaccel, name).default
    torch.library.opcheck(op, HONEST[name], test_utils=("test_schema", "test_faketensor"))


ACROSS = torch.randn(1, 40, 4, 16, generator=torch.Generator().manual_seed(0)).transpose(1, 2)
NO_PLAN = (None, None, None, 64, 64)
WHOLE = BlockPlan.from_mask(torch.eye(2, 3).bool()[None, None], q_len=40, kv_len=40, block_m=32, block_n=16)
LAYOUTS = {
    "all": ("block_sparse_attention", (*NO_PLAN, -1, -1, 0.25)),
    "causal": ("block_sparse_attention", (*NO_PLAN, -1, 0, 0.25)),
    "window": ("block_sparse_attention", (*NO_PLAN, 9, 0, 0.25)),
    "plan": ("block_sparse_attention", (WHOLE.row_ptr, WHOLE.col, WHOLE.n_full, 32, 16, -1, -1, 0.25)),
    "verify": ("verify_attention", (torch.tensor([40]), None, None, 0.25)),
    "selected": ("verify_attention", (torch.tensor([40]), torch.arange(40).expand(1, 4, 40), None, 0.25)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("few", (False, True))
def test_strides_are_those_of_the_fakes(monkeypatch, layout, few):
    """Else a compiled model reads the output as if it lay otherwise in memory."""
    name, rest = LAYOUTS[layout]
    monkeypatch.setattr(long_cache, "LEAST_BYTES", 0)
    monkeypatch.setattr(long_cache, "way", lambda *_: "packed")
    q = ACROSS[:, :, :3] if few and layout != "plan" else ACROSS
    op = getattr(torch.ops.mmaccel, name).default
    torch.library.opcheck(op, (q, ACROSS, ACROSS, *rest), test_utils=("test_schema", "test_faketensor"))
