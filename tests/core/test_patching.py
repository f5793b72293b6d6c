"""What `mmaccel.patching` puts on an instance does its work, in order, and goes without a trace."""

import copy
from contextlib import ExitStack, contextmanager

import pytest
import torch

from mmaccel.patching import hook, intercept_sdpa, override, wrap_generate, wrap_method
from mmaccel.plan import Plan
from mmaccel.session import Session
from mmaccel.testing.snapshot import snapshot


class Owner:
    colour = "red"

    def method(self):
        return "class"


def test_override_restores_attributes_of_the_instance():
    owner, stack = Owner(), ExitStack()
    owner.colour, own = "green", vars(owner)
    override(stack, owner, "colour", "blue")
    override(stack, owner, "colour", "black")
    override(stack, owner, "method", lambda: "instance")
    override(stack, owner, "fresh", 1)
    assert (owner.colour, owner.method(), owner.fresh) == ("black", "instance", 1)
    assert Owner.colour == "red" and Owner().method() == "class"
    stack.close()
    assert own == {"colour": "green"} and owner.method() == "class" and not hasattr(owner, "fresh")


def test_override_restores_modules():
    module, stack = torch.nn.Linear(2, 2), ExitStack()
    before = snapshot(module)
    override(stack, module, "forward", lambda x: x + 1)
    assert torch.equal(module(torch.zeros(2)), torch.ones(2))
    stack.close()
    assert snapshot(module) == before and module(torch.zeros(2)).shape == (2,)


# Methods


def test_a_wrapped_method_is_restored_and_not_copied():
    owner, stack = Owner(), ExitStack()
    wrap_method(stack, owner, "method", lambda original: f"inner {original()}")
    wrap_method(stack, owner, "method", lambda original: f"outer {original()}")
    assert owner.method() == "outer inner class" and copy.deepcopy(owner).method() == "class"
    stack.close()
    assert owner.method() == "class" and not vars(owner)


def test_what_another_library_put_on_top_stays():
    owner, stack = Owner(), ExitStack()
    wrap_method(stack, owner, "method", lambda original: "ours")
    ours = owner.method
    owner.method = lambda: f"theirs on {ours()}"
    assert owner.method() == "theirs on ours"
    stack.close()
    assert owner.method() == "theirs on class"


# Generate


class Writer:
    def generate(self, inputs=None, **kwargs):
        return [inputs, sorted(kwargs)]


class WriterAdapter:
    call_is_run = False

    def __init__(self, target):
        self.target = target

    def parts(self):
        return [self.target]


@pytest.fixture
def session():
    with Session(Plan((), family="writer"), WriterAdapter(Writer())) as session:
        yield session


def test_methods_on_one_model_are_one_run_and_nest(session):
    starts, within, stack = [], [], ExitStack()
    start = session.report.start
    session.report.start = lambda: (starts.append(1), start())

    @contextmanager
    def around():
        within.append("entered")
        yield
        within.append("left")

    def inner(original, kwargs):
        session.report.warnings.append("inner")
        return [*original(**kwargs), "inner"]

    def outer(original, kwargs):
        result = [*original(**kwargs), "outer"]
        session.report.warnings.append("outer")
        return result

    session.around.append(around)
    wrap_generate(stack, session, inner)
    wrap_generate(stack, session, outer)
    assert session.target.generate(1, more=2) == [1, ["more"], "inner", "outer"]
    assert session.report.warnings == ["inner", "outer"] and session.report.wall_seconds > 0
    assert len(starts) == 1 and within == ["entered", "left"]
    stack.close()
    assert not vars(session.target) and session.target.generate(1) == [1, []]


def test_a_call_that_is_no_run_and_one_from_within_are_plain(session):
    stack = ExitStack()
    wrap_generate(
        stack,
        session,
        lambda original, kwargs: ["ours", *session.target.generate(**kwargs)],
        applies=lambda kwargs: kwargs["inputs"] != "plain",
    )
    assert session.target.generate("plain") == ["plain", []] and not session.report.wall_seconds
    assert session.target.generate("x") == ["ours", "x", []]


def test_a_run_that_fails_can_be_followed_by_another(session):
    calls = iter((ValueError("once"), None))

    def fails_once(original, kwargs):
        if error := next(calls):
            raise error
        return original(**kwargs)

    wrap_generate(ExitStack(), session, fails_once)
    with pytest.raises(ValueError, match="once"):
        session.target.generate()
    assert not session.report.wall_seconds
    assert session.target.generate() == [None, []] and session.report.wall_seconds > 0


# Hooks and attention


def test_hooks_change_a_call_and_go():
    module, stack = torch.nn.Identity(), ExitStack()
    before = snapshot(module)
    hook(
        stack,
        module,
        before=lambda module, args, kwargs: ((args[0] + 1,), kwargs),
        after=lambda module, args, kwargs, output: output * 10,
    )
    assert module(torch.tensor(2)) == 30
    stack.close()
    assert snapshot(module) == before and module(torch.tensor(2)) == 2


class Attends(torch.nn.Module):
    def forward(self, x, fails=False):
        result = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        if fails:
            raise ValueError("in the forward")
        return result


def test_attention_is_intercepted_in_one_module_only_also_after_an_error():
    one, other, stack, x = Attends(), Attends(), ExitStack(), torch.randn(1, 2, 3, 4)
    plain, before = one(x), snapshot(one)
    intercept_sdpa(stack, one, lambda original, *args: original(*args) + 1)
    assert torch.equal(one(x), plain + 1) and torch.equal(other(x), plain)
    with pytest.raises(ValueError, match="in the forward"):
        one(x, fails=True)
    assert torch.equal(other(x), plain) and torch.equal(one(x), plain + 1)
    stack.close()
    assert snapshot(one) == before and torch.equal(one(x), plain)
