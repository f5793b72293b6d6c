"""What the cases in Triton's interpreter share; they run in a process of their own, see test_triton_interpreter.py."""

import functools
import inspect

import pytest
import torch

from mmaccel import kernels

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}


@pytest.fixture(scope="session", autouse=True)
def builtins_are_sought_once():
    """Triton looks for what it replaces at every call of a function, which takes a third of the time of all cases."""
    from triton.language.core import is_builtin  # here, because pytest reads this file in processes without Triton
    from triton.runtime import interpreter

    @functools.cache
    def names(owner):
        return [name for name, member in inspect.getmembers(owner) if is_builtin(member)]

    def replace(owner, builder, scope):
        for name in names(owner):
            if is_builtin(member := getattr(owner, name)):  # else it is replaced already
                interpreter._patch_attr(owner, name, member, builder, scope)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_builtin", replace)
        yield


@pytest.fixture(autouse=True)
def poisoned_outputs():
    """Fresh memory holds NaN, so that what a kernel does not write shows; torch fills it in deterministic mode."""
    torch.use_deterministic_algorithms(True)
    assert torch.zeros(1).new_empty(8).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def draw():
    """Random queries, keys and values."""

    def tensors(dtype=torch.float32, batch=2, query_heads=2, key_heads=1, queries=70, keys=100, width=40, seed=0):
        generator = torch.Generator().manual_seed(seed)
        shapes = ((batch, query_heads, queries, width), *[(batch, key_heads, keys, width)] * 2)
        return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]

    return tensors


@pytest.fixture
def agrees():
    """An attention op in Triton against the reference on float64 copies; returns what Triton computed."""

    def check(op, q, k, v, *rest, **more):
        with kernels.backend("triton"):
            output, lse = op(q, k, v, *rest, **more)
        with kernels.backend("reference"):
            expected, expected_lse = op(q.double(), k.double(), v.double(), *rest, **more)
        assert output.dtype == q.dtype and lse.dtype == torch.float32
        empty = expected_lse == -torch.inf
        assert torch.equal(lse == -torch.inf, empty) and not output[empty].any()
        tolerance = TOLERANCE[q.dtype]
        torch.testing.assert_close(lse, expected_lse, rtol=0, atol=tolerance)
        torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)
        return output, lse

    return check
